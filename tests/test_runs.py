"""The directory of a run: appended to, killed at any moment, and read back bit for bit; or one clear line why not."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_records import lists_of_records

from mlvbench.records import files, schema
from mlvbench.records import run as runs

RECORD = schema.make_record(50, {"a": 1.5, "a/b": 0.5}, samples=8, accounted=1.5, wall=2.0, memory=(0.0, 0.0))


def records_of(run):
    """All records of a run, whatever rank and process they are of."""
    return [record for processes in run.ranks.values() for process in processes for record in process]


def append_all(run, directory, name="0"):
    file = runs.RunFile(directory, name)
    for record in run:
        file.append(record)
    file.close()
    return file.path


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


@pytest.fixture(params=["msgspec", "json"], scope="class")
def decoder(request):
    """Records are read with msgspec where it is installed, and without it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "json":
            patch.setitem(sys.modules, "msgspec", None)
        yield


@pytest.mark.usefixtures("decoder")
class TestReadingBack:
    @given(run=lists_of_records())
    @example(run=[schema.make_record(2**70, {"\ud800": 10**30}, samples=0, accounted=0, wall=0, memory=(0, 0))])
    def test_records_that_were_saved_are_read(self, folder, run):
        for name in ("run.json", "run.jsonl"):
            files.save(run, folder / name)
            if run:
                found = records_of(runs.read_run(folder / name))
                assert found == run
                assert [list(record) for record in found] == [list(record) for record in run]

    @given(run=lists_of_records())
    def test_records_that_were_saved_as_csv_are_read_with_half_surrogate_pairs_as_escapes(self, folder, run):
        files.save(run, folder / "run.csv")
        if run:
            shown = [{key.encode("utf-8", "backslashreplace").decode(): v for key, v in r.items()} for r in run]
            assert records_of(runs.read_run(folder / "run.csv")) == shown

    @given(run=lists_of_records())
    def test_records_that_were_appended_are_read(self, tmp_path_factory, run):
        directory = tmp_path_factory.mktemp("run")
        append_all([RECORD, *run], directory)
        assert records_of(runs.read_run(directory)) == [RECORD, *run]

    @given(run=lists_of_records(), data=st.data())
    def test_whole_lines_of_a_file_cut_anywhere_are_read(self, tmp_path_factory, run, data):
        path = append_all([RECORD, *run], tmp_path_factory.mktemp("run"))
        lines = path.read_bytes().splitlines(keepends=True)
        cut = data.draw(st.integers(len(lines[0]), sum(map(len, lines))))
        os.truncate(path, cut)
        found = runs.read_run(path.parent)
        # A line that lacks nothing but its end is whole.
        ends = [sum(map(len, lines[: number + 1])) for number in range(len(lines))]
        whole = sum(end - 1 <= cut for end in ends)
        assert records_of(found) == [RECORD, *run][:whole]
        assert found.torn == int(cut > ends[whole - 1])


class TestRunFile:
    def test_nothing_is_written_before_the_first_record(self, tmp_path):
        file = runs.RunFile(tmp_path / "new" / "run", "0")
        file.close()
        assert file.path is None
        assert list(tmp_path.iterdir()) == []

    def test_each_record_is_a_line_as_soon_as_it_is_appended(self, tmp_path):
        file = runs.RunFile(tmp_path / "new" / "run", "0")
        for number in range(1, 4):
            file.append(RECORD)
            assert file.path == tmp_path / "new" / "run" / "0.jsonl"
            assert file.path.read_text().count("\n") == number
        file.close()

    def test_a_record_is_one_write(self, tmp_path, monkeypatch):
        written = []
        write = os.write
        monkeypatch.setattr(os, "write", lambda descriptor, line: written.append(line) or write(descriptor, line))
        append_all([RECORD, RECORD], tmp_path)
        assert written == [json.dumps(RECORD).encode() + b"\n"] * 2

    def test_file_whose_name_is_taken_gets_a_number(self, tmp_path):
        paths = [append_all([RECORD], tmp_path, name) for name in ("0", "0", "0", "1", "0.restart1")]
        assert [path.name for path in paths] == ["0.jsonl", "0.2.jsonl", "0.3.jsonl", "1.jsonl", "0.restart1.jsonl"]
        assert all(len(path.read_bytes().splitlines()) == 1 for path in paths)

    def test_number_that_json_cannot_represent_is_refused_and_leaves_the_file_as_it_is(self, tmp_path):
        file = runs.RunFile(tmp_path, "0")
        file.append(RECORD)
        with pytest.raises(ValueError, match="not JSON compliant"):
            file.append({**RECORD, "wall_sec": float("nan")})
        file.close()
        assert len(file.path.read_bytes().splitlines()) == 1

    def test_a_disk_that_is_full_leaves_no_piece_of_a_line(self, tmp_path, monkeypatch):
        file = runs.RunFile(tmp_path, "0")
        file.append(RECORD)
        write = os.write
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:10]))
            with pytest.raises(OSError, match="No space left on device"):
                file.append(RECORD)
        file.append(RECORD)
        file.close()
        assert records_of(runs.read_run(tmp_path)) == [RECORD, RECORD]

    def test_directory_that_cannot_be_made_is_an_error_of_append(self, tmp_path):
        (tmp_path / "taken").write_text("")
        with pytest.raises(OSError, match="taken"):
            runs.RunFile(tmp_path / "taken", "0").append(RECORD)

    def test_a_program_that_closes_all_of_its_files_keeps_its_own_and_ours(self, tmp_path):
        file = runs.RunFile(tmp_path, "0")
        file.append(RECORD)
        os.close(file._descriptor)
        with (tmp_path / "theirs").open("wb") as theirs:
            assert theirs.fileno() == file._descriptor
            file.append(RECORD)
            theirs.write(b"theirs")
        assert (tmp_path / "theirs").read_bytes() == b"theirs"
        assert records_of(runs.read_run(tmp_path)) == [RECORD, RECORD]
        file.close()

    def test_a_process_killed_at_any_moment_leaves_whole_lines(self, tmp_path):
        program = textwrap.dedent("""
            import os, signal, sys
            from pathlib import Path
            from mlvbench.records import files, run as runs, schema
            file = runs.RunFile(Path(sys.argv[1]), "0")
            record = schema.make_record(1, {"a": 1.5}, samples=1, accounted=1, wall=1, memory=(0, 0))
            for _ in range(3):
                file.append(record)
            os.kill(os.getpid(), signal.SIGKILL)
        """)
        run = subprocess.run([sys.executable, "-c", program, tmp_path], check=False)
        assert run.returncode == -signal.SIGKILL
        assert len(records_of(runs.read_run(tmp_path))) == 3


class TestDirectory:
    def test_the_files_of_a_rank_are_its_processes_in_natural_order(self, tmp_path):
        names = ["0", "0.2", "0.10", "0.restart1", "0.restart1.2", "0.restart10", "1", "10"]
        for index, name in reversed(list(enumerate(names, start=1))):
            files.save([{**RECORD, "step": index}], tmp_path / f"{name}.jsonl")
        (tmp_path / "notes.jsonl").write_text("not ours")
        (tmp_path / "throughput.json").write_text("not ours")
        found = runs.read_run(tmp_path)
        steps = {rank: [process[0]["step"] for process in processes] for rank, processes in found.ranks.items()}
        assert steps == {0: [1, 2, 3, 4, 5, 6], 1: [7], 10: [8]}

    def test_a_process_that_was_killed_before_its_first_record_is_as_if_it_had_not_been(self, tmp_path):
        append_all([RECORD], tmp_path, "0")
        (tmp_path / "1.jsonl").write_text("")
        (tmp_path / "2.jsonl").write_text('{"step": 50, "t_')
        found = runs.read_run(tmp_path)
        assert (list(found.ranks), found.torn) == ([0], 1)

    def test_description_of_a_run_is_the_first_that_was_given(self, tmp_path):
        directory = tmp_path / "new" / "run"
        runs.describe_run(directory, {"format": 1, "command": ["train.py", "\ud800"]})
        runs.describe_run(directory, {"command": ["other.py"]})
        append_all([RECORD], directory)
        assert runs.read_run(directory).description == {"format": 1, "command": ["train.py", "\ud800"]}

    def test_a_description_says_its_format(self, tmp_path):
        runs.describe_run(tmp_path, {"device": "cpu"})
        assert json.loads((tmp_path / "run.json").read_text()) == {"format": runs.FORMAT, "device": "cpu"}

    @pytest.mark.parametrize("content", [None, "", "{", "[]", "3", '"cpu"', "\ufffe", "[" * 100_000], ids=repr)
    def test_records_are_read_without_a_readable_description(self, tmp_path, content):
        append_all([RECORD], tmp_path)
        if content is not None:
            (tmp_path / "run.json").write_text(content, encoding="utf-8")
        found = runs.read_run(tmp_path)
        assert found.description == {}
        assert records_of(found) == [RECORD]

    def test_the_newest_run_is_the_one_that_started_last(self, tmp_path):
        for name, started in [("a", "2026-12-01T09:00:00+00:00"), ("b", "2026-12-01T08:00:00-05:00"), ("c", "x")]:
            runs.describe_run(tmp_path / name, {"started": started})
            append_all([RECORD], tmp_path / name)
        os.utime(tmp_path / "c", (0, 0))
        assert runs.newest_run(tmp_path) == tmp_path / "b"

    def test_newest_run_without_descriptions_is_the_newest_directory(self, tmp_path):
        for age, name in enumerate(["b", "a", "c"]):
            append_all([RECORD], tmp_path / name)
            os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
        assert runs.newest_run(tmp_path) == tmp_path / "b"

    def test_a_run_without_records_is_not_the_newest(self, tmp_path):
        append_all([RECORD], tmp_path / "a")
        runs.describe_run(tmp_path / "b", {"started": "2999-01-01T00:00:00+00:00"})
        (tmp_path / "b" / "0.jsonl").write_text("")
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "0.jsonl").symlink_to("nowhere")
        (tmp_path / "d").write_text("")
        assert runs.newest_run(tmp_path) == tmp_path / "a"

    def test_a_run_of_a_newer_format_may_be_the_newest_and_says_so_when_read(self, tmp_path):
        runs.describe_run(tmp_path / "a", {"format": 2})
        append_all([RECORD], tmp_path / "a")
        with pytest.raises(files.RecordsError, match="newer mlvbench"):
            runs.read_run(runs.newest_run(tmp_path))

    def test_directory_holds_records_where_it_has_a_file_of_them(self, tmp_path):
        append_all([RECORD], tmp_path / "a")
        assert runs.holds_records(tmp_path / "a")
        assert not runs.holds_records(tmp_path)
        assert not runs.holds_records(tmp_path / "a" / "0.jsonl")
        assert not runs.holds_records(tmp_path / "b")


def line(**changes):
    record = {**RECORD, **changes}
    return json.dumps({key: value for key, value in record.items() if value is not ...})


CSV = "step,samples,wall_sec\r\n"
BAD = [
    ("run.jsonl", "", "'{path}' holds no records: it is empty"),
    ("run.json", " \n", "'{path}' holds no records: it is empty"),
    ("run.json", "[]", "'{path}' holds no records: it is empty"),
    ("run.csv", CSV, "'{path}' holds no records: it is empty"),
    ("run.jsonl", "hello", "'{path}' holds no records: its only line is not JSON"),
    ("run.txt", "hello", "'{path}' is not a run's directory and does not end in .json, .jsonl or .csv"),
    ("run", "hello", "'{path}' is not a run's directory and does not end in .json, .jsonl or .csv"),
    ("run.json", "hello", "'{path}' is not JSON: "),
    ("run.json", line(), "'{path}' is not an array of records, but a JSON object"),
    ("run.json", "3", "'{path}' is not an array of records, but a JSON number"),
    ("run.json", "[3]", "'{path}', record 1 is not a record, but a JSON number"),
    ("run.json", f"[{line()},\n{line()[:20]}", "'{path}' is not JSON: "),
    ("run.json", "[" * 100_000, "'{path}' is not JSON: "),
    (
        "run.jsonl",
        f"{line()}\n{{\n{line()}\n",
        "'{path}', line 2 is not JSON: the file is damaged, or not one of records",
    ),
    ("run.jsonl", "[1, 2]\n", "'{path}', line 1 is not a record, but a JSON array"),
    ("run.jsonl", '{"loss": 0.5}\n', "'{path}', line 1 is not a record of mlvbench: it has no 'step'"),
    ("run.jsonl", line(samples=...), "'{path}', line 1 is not a record of mlvbench: it has no 'samples'"),
    ("run.jsonl", line(wall_sec=...), "'{path}', line 1 is not a record of mlvbench: it has no 'wall_sec'"),
    ("run.jsonl", f"{line()}\n{line(t_a='x')}", "'{path}', line 2: 't_a' must be a finite number, got 'x'"),
    ("run.jsonl", line(t_a=None), "'{path}', line 1: 't_a' must be a finite number, got None"),
    ("run.jsonl", line(step=True), "'{path}', line 1: 'step' must be a finite number, got True"),
    ("run.jsonl", line(t_a=[1]), "'{path}', line 1: 't_a' must be a finite number, got [1]"),
    ("run.jsonl", line(t_a=float("nan")), "'{path}', line 1: 't_a' must be a finite number, got nan"),
    ("run.jsonl", line(t_a=-float("inf")), "'{path}', line 1: 't_a' must be a finite number, got -inf"),
    ("run.jsonl", line(t_a=10**400), "'{path}', line 1: 't_a' must be a finite number, got 1000000"),
    (
        "run.jsonl",
        line(**{"t_\x1b[31m\n": "x"}),
        "'{path}', line 1: 't_\\x1b[31m\\n' must be a finite number, got 'x'",
    ),
    ("run.csv", "a,b\r\n1,2\r\n", "'{path}', line 2 is not a record of mlvbench: it has no 'step'"),
    ("run.csv", CSV + "1,2\r\n", "'{path}', line 2 has 2 cells, and the header has 3"),
    ("run.csv", CSV + "1,2,3,4\r\n", "'{path}', line 2 has 4 cells, and the header has 3"),
    ("run.csv", CSV + "1,2,x\r\n", "'{path}', line 2: 'wall_sec' must be a finite number, got 'x'"),
    ("run.csv", CSV + "1,2,nan\r\n", "'{path}', line 2: 'wall_sec' must be a finite number, got nan"),
    ("run.csv", CSV + "1,,3\r\n", "'{path}', line 2 is not a record of mlvbench: it has no 'samples'"),
    ("run.csv", 'step,"samples\r\n1,2,3\r\n', "'{path}' is not CSV: "),
]


@pytest.mark.usefixtures("decoder")
class TestBadRecords:
    @pytest.mark.parametrize(("name", "content", "message"), BAD)
    def test_file_that_is_not_of_records_is_refused_with_what_is_wrong(self, tmp_path, name, content, message):
        path = tmp_path / name
        path.write_bytes(content.encode())
        with pytest.raises(files.RecordsError) as caught:
            runs.read_run(path)
        assert str(caught.value).startswith(message.replace("{path}", str(path)))
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("name", ["run.json", "run.jsonl", "run.csv", "0.jsonl"])
    def test_binary_file_is_refused(self, tmp_path, name):
        (tmp_path / name).write_bytes(bytes(range(256)) * 3)
        with pytest.raises(files.RecordsError, match=re.escape(name)):
            runs.read_run(tmp_path / name)

    @given(content=st.one_of(st.binary(), st.text().map(lambda text: text.encode("utf-8", "replace"))))
    def test_any_file_is_read_or_refused_in_one_line(self, folder, content):
        for name in ("any.json", "any.jsonl", "any.csv"):
            (folder / name).write_bytes(content)
            try:
                runs.read_run(folder / name)
            except files.RecordsError as error:
                assert len(str(error).splitlines()) == 1

    def test_path_that_does_not_exist_is_refused(self, tmp_path):
        with pytest.raises(files.RecordsError, match=r"^there is no '.*a\\nb.jsonl'$"):
            runs.read_run(tmp_path / "a\nb.jsonl")

    def test_path_that_is_too_long_is_refused(self):
        with pytest.raises(files.RecordsError, match=r"^cannot read 'a{9999}': File name too long$"):
            runs.read_run("a" * 9999)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_file_without_permission_is_refused(self, tmp_path):
        (tmp_path / "run.json").touch(mode=0)
        with pytest.raises(files.RecordsError, match=r"^cannot read '.*run\.json': Permission denied$"):
            runs.read_run(tmp_path / "run.json")

    def test_directory_without_records_is_refused(self, tmp_path):
        message = f"{str(tmp_path)!r} holds no records: a run has files such as 0.jsonl"
        with pytest.raises(files.RecordsError, match=f"^{re.escape(message)}$"):
            runs.read_run(tmp_path)

    def test_directory_of_runs_is_refused_with_one_of_them_named(self, tmp_path):
        append_all([RECORD], tmp_path / "a")
        message = f"{str(tmp_path)!r} holds no records: name one of the runs in it, such as {str(tmp_path / 'a')!r}"
        with pytest.raises(files.RecordsError, match=f"^{re.escape(message)}$"):
            runs.read_run(tmp_path)

    def test_newer_format_is_refused(self, tmp_path):
        runs.describe_run(tmp_path, {"format": 2})
        append_all([RECORD], tmp_path)
        with pytest.raises(files.RecordsError) as caught:
            runs.read_run(tmp_path)
        assert str(caught.value) == (
            f"{str(tmp_path)!r} was written by a newer mlvbench (format 2, this one reads up to 1): update mlvbench"
        )

    def test_newest_run_where_there_is_none_says_how_to_make_one(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(files.RecordsError) as caught:
            runs.newest_run()
        assert str(caught.value) == (
            "there is no run in 'mlvbench-runs': make one with `mlvbench run train.py`, or name a directory or file"
        )

    def test_records_of_other_versions_may_have_more_and_may_lack_what_is_not_needed(self, tmp_path):
        record = {"step": 1, "samples": 2, "wall_sec": 3, "new_figure": 4}
        (tmp_path / "run.jsonl").write_text(json.dumps(record))
        assert records_of(runs.read_run(tmp_path / "run.jsonl")) == [record]
