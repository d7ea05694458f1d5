"""Files of records: whole or not there, in each of three formats."""

import csv
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlvbench.records import files, schema

numbers = st.one_of(st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False))
# Python 3.10 cannot read a NUL from a CSV file.
phase_names = st.text(min_size=1, max_size=8).filter(lambda name: "/" not in name and "\0" not in name)


@st.composite
def lists_of_records(draw):
    return [
        schema.make_record(
            draw(st.integers(0, 10**9)),
            draw(st.dictionaries(phase_names, numbers, max_size=3)),
            samples=draw(st.integers(0, 10**9)),
            accounted=draw(st.floats(0, 1e9)),
            wall=draw(numbers),
            memory=(draw(numbers), draw(numbers)),
        )
        for _ in range(draw(st.integers(0, 4)))
    ]


def read(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    with path.open(encoding="utf-8", newline="") as file:
        return [{key: value for key, value in row.items() if value != ""} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


class TestFormats:
    @given(lists_of_records())
    def test_json_and_jsonl_come_back_bit_for_bit(self, folder, run):
        for name in ("run.json", "run.jsonl"):
            files.save(run, folder / name)
            found = read(folder / name)
            assert found == run
            assert [list(record) for record in found] == [list(record) for record in run]
            assert [list(map(type, record.values())) for record in found] == [
                list(map(type, record.values())) for record in run
            ]

    @given(lists_of_records())
    @example([schema.make_record(1, {"\r": 1, "\n": 2, '",': 3}, samples=0, accounted=0, wall=0, memory=(0, 0))])
    def test_csv_has_a_column_for_every_key_and_loses_no_digit(self, folder, run):
        files.save(run, folder / "run.csv")
        found = read(folder / "run.csv")
        shown = [{key.encode("utf-8", "backslashreplace").decode(): repr(v) for key, v in r.items()} for r in run]
        assert found == shown

    def test_a_phase_that_appears_later_has_a_column_from_the_start(self, monitor, clock, tmp_path):
        for names in (["forward"], ["forward", "distill"]):
            for name in names:
                with monitor.phase("outer"), monitor.phase(name):
                    clock.advance(3)
            monitor.snapshot(1)
        monitor.save(tmp_path / "run.csv")
        first, second = read(tmp_path / "run.csv")
        assert "t_distill" not in first
        assert second["t_distill"] == "3"
        header = (tmp_path / "run.csv").read_text().splitlines()[0]
        assert header == (
            "step,t_outer,t_forward,t_distill,t_outer/forward,t_outer/distill,"
            "samples,wall_sec,samples_per_sec,gpu_mem_gb,gpu_mem_peak_gb"
        )

    def test_no_records_give_a_file_that_says_so(self, monitor, tmp_path):
        for name in ("run.json", "run.jsonl", "run.csv"):
            monitor.save(tmp_path / name)
            assert read(tmp_path / name) == []

    def test_saving_changes_no_record(self, monitor, tmp_path):
        monitor.step(1)
        before = monitor.records
        for name in ("run.json", "run.jsonl", "run.csv"):
            monitor.save(tmp_path / name)
        assert monitor.records == before

    @pytest.mark.parametrize("accounted", [0, 0.0, 5e-324, -1.0])
    def test_a_rate_is_always_a_finite_number(self, accounted):
        record = schema.make_record(1, {}, samples=32, accounted=accounted, wall=1.0, memory=(0.0, 0.0))
        assert record["samples_per_sec"] == 0.0


class TestWriting:
    @pytest.mark.parametrize("name", ["run", "run.txt", "run.json.gz", "run.JSON", ".json"])
    def test_an_unknown_suffix_is_refused_before_anything_is_touched(self, monitor, tmp_path, name):
        folder = tmp_path / "new"
        with pytest.raises(ValueError, match=r"path must end in \.json, \.jsonl or \.csv, got '.*'"):
            monitor.save(folder / name)
        assert not folder.exists()

    def test_paths_may_be_strings_and_folders_are_made(self, monitor, tmp_path):
        monitor.step(1)
        monitor.save(str(tmp_path / "deep" / "er" / "run.json"))
        assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == ["run.json"]

    def test_a_link_stays_a_link(self, monitor, tmp_path):
        (tmp_path / "real").mkdir()
        target, link = tmp_path / "real" / "run.json", tmp_path / "latest.json"
        link.symlink_to(target)
        monitor.step(1)
        monitor.save(link)
        assert link.is_symlink()
        assert len(read(target)) == 1

    def test_the_file_has_the_permissions_of_any_new_file(self, monitor, tmp_path):
        (tmp_path / "other").write_text("")
        monitor.save(tmp_path / "run.json")
        modes = {stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("other", "run.json")}
        assert len(modes) == 1

    def test_a_file_that_is_replaced_keeps_its_permissions(self, monitor, tmp_path):
        path = tmp_path / ("x" * 250 + ".csv")
        path.touch(mode=0o600)
        monitor.save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_an_error_in_writing_leaves_the_old_file_and_nothing_else(self, monitor, tmp_path, monkeypatch):
        path = tmp_path / "run.json"
        path.write_text("old")
        monkeypatch.setattr(os, "fsync", self.no_space)
        with pytest.raises(OSError, match="No space left"):
            monitor.save(path)
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]

    @staticmethod
    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    @pytest.mark.parametrize("suffix", [".json", ".jsonl", ".csv"])
    def test_a_program_killed_between_write_and_rename_leaves_the_old_file(self, tmp_path, suffix):
        path = tmp_path / f"run{suffix}"
        path.write_text("old")
        program = textwrap.dedent("""
            import os, signal, sys
            from pathlib import Path
            from mlvbench.records import files, schema
            def killed(self, target):
                assert self.stat().st_size > 0, "all is written"
                os.kill(os.getpid(), signal.SIGKILL)
            Path.replace = killed
            record = schema.make_record(1, {"a": 1.5}, samples=1, accounted=1, wall=1, memory=(0, 0))
            files.save([record] * 1000, sys.argv[1])
        """)
        run = subprocess.run([sys.executable, "-c", program, path], check=False)
        assert run.returncode == -signal.SIGKILL
        assert path.read_text() == "old"
