"""What is typed, what comes back: exit codes, one line for each mistake, pipes."""

import json
import os
import re
import subprocess
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_report import small

from mlvbench import cli
from mlvbench.records.files import save
from mlvbench.records.run import RunFile, describe_run


def make_run(directory, factors, **description):
    describe_run(directory, {"command": ["train.py"], "device": "cpu", **description})
    file = RunFile(directory, "0")
    for number, factor in enumerate(factors, start=1):
        file.append(small(50 * number, factor))
    file.close()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name in ("COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "mlvbench-runs" / "old", [1] * 6, started="2026-12-01T00:00:00+00:00")
    make_run(tmp_path / "mlvbench-runs" / "new", [2] * 6, started="2026-12-02T00:00:00+00:00")
    return tmp_path


OLD, NEW = "mlvbench-runs/old", "mlvbench-runs/new"


def mlvbench(*arguments, **options):
    command = [sys.executable, "-m", "mlvbench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


class TestReport:
    def test_of_the_newest_run(self, capsys):
        assert cli.main(["report"]) == 0
        assert capsys.readouterr().out.startswith(f"{NEW}  train.py\n\nphase ")

    def test_of_a_directory_and_of_a_file(self, capsys):
        save([small(50)], "throughput.csv")
        for path in (OLD, f"{OLD}/0.jsonl", "throughput.csv"):
            assert cli.main(["report", path]) == 0
            assert capsys.readouterr().out.startswith(path)

    @pytest.mark.parametrize(
        ("form", "start"), [("table", OLD), ("json", "{"), ("csv", "kind,"), ("markdown", f"`{OLD}")]
    )
    def test_formats(self, capsys, form, start):
        assert cli.main(["report", "--format", form, OLD]) == 0
        out, err = capsys.readouterr()
        assert (out.startswith(start), err) == (True, "")

    def test_with_the_warm_up(self, capsys):
        assert cli.main(["report", "--include-warmup", "--format=json"]) == 0
        assert json.loads(capsys.readouterr().out)["snapshots"] == 6

    def test_without_rich(self, capsys, monkeypatch):
        monkeypatch.setitem(sys.modules, "rich.console", None)
        assert cli.main(["report"]) == 0
        out, err = capsys.readouterr()
        assert "| wall time |" in out
        assert err == "mlvbench: for a table, install rich: pip install rich\n"

    def test_with_a_path_that_would_obey_a_terminal(self, capsys, folder):
        make_run(folder / "a\nb\x1b[31m", [1])
        assert cli.main(["report", "a\nb\x1b[31m"]) == 0
        assert capsys.readouterr().out.startswith("a\\nb\\x1b[31m  train.py\n")


class TestPage:
    @pytest.mark.parametrize("command", [["report", OLD], ["compare", OLD, NEW]])
    def test_it_is_written_and_nothing_printed(self, capsys, folder, command):
        assert cli.main([*command, "--html", "pages/page.html"]) == 0
        assert capsys.readouterr() == ("", "")
        assert (folder / "pages" / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>\n")
        assert [path.name for path in (folder / "pages").iterdir()] == ["page.html"]

    @pytest.mark.parametrize("command", [["report", OLD], ["compare", OLD, NEW]])
    def test_with_a_format_that_is_printed_too(self, capsys, folder, command):
        assert cli.main([*command, "--html", "page.html", "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["format"] == 1
        assert (folder / "page.html").exists()

    def test_it_counts_what_the_table_counts(self, folder):
        for option, words in ((["--include-warmup"], "300 steps in 6 snapshots"), ([], "250 steps in 5 snapshots")):
            assert cli.main(["report", OLD, "--html", "page.html", *option]) == 0
            assert words in (folder / "page.html").read_text(encoding="utf-8")

    def test_a_slower_run_fails_as_ever(self, capsys):
        assert cli.main(["compare", OLD, NEW, "--html", "page.html", "--fail-if-slower", "5"]) == 1
        out, err = capsys.readouterr()
        assert (out, err.startswith("mlvbench compare: 100.0 % slower")) == ("", True)

    @pytest.mark.parametrize("path", ["mlvbench-runs", "", f"{OLD}/0.jsonl/page.html"])
    @pytest.mark.parametrize("command", [["report", OLD], ["compare", OLD, NEW, "--fail-if-slower", "5"]])
    def test_where_it_cannot_be_written_is_one_line_and_code_2(self, capsys, command, path):
        assert cli.main([*command, "--html", path, "--format", "json"]) == 2
        out, err = capsys.readouterr()
        assert err.startswith(f"mlvbench {command[0]}: cannot write '{path}': ")
        assert (out, err.count("\n")) == ("", 1)

    @pytest.mark.parametrize("path", [f"{OLD}/0.jsonl", "train.py"])
    def test_what_is_no_page_is_not_replaced(self, capsys, folder, path):
        (folder / "train.py").write_text("import torch\n")
        before = (folder / path).read_bytes()
        assert cli.main(["report", "--html", path]) == 2
        message = f"mlvbench report: --html would replace '{path}', which is no page: give it another name\n"
        assert capsys.readouterr() == ("", message)
        assert (folder / path).read_bytes() == before

    def test_a_page_and_an_empty_file_are_replaced(self, folder):
        (folder / "page.html").touch()
        for run in (OLD, NEW):
            assert cli.main(["report", run, "--html", "page.html"]) == 0
            assert run in (folder / "page.html").read_text(encoding="utf-8")

    def test_what_was_there_stays_until_the_new_one_is_whole(self, folder, monkeypatch):
        old = "<!DOCTYPE html>\nold"
        (folder / "page.html").write_text(old)
        monkeypatch.setattr(os, "fsync", lambda descriptor: exec("raise OSError(28, 'No space left on device')"))
        assert cli.main(["report", OLD, "--html", "page.html"]) == 2
        assert (folder / "page.html").read_text() == old
        assert sorted(path.name for path in folder.iterdir()) == ["mlvbench-runs", "page.html"]

    @pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="there is no such device")
    def test_to_a_pipe(self):
        assert mlvbench("report", OLD, "--html", "/dev/stdout").stdout.startswith("<!DOCTYPE html>\n")


class TestCompare:
    def test_two_runs(self, capsys):
        assert cli.main(["compare", OLD, NEW]) == 0
        out, err = capsys.readouterr()
        assert out.startswith(f"before  {OLD}  train.py\nafter   {NEW}  train.py\n")
        assert (re.search(r"wall time .* 2.00x .* slower", out) is not None, err) == (True, "")

    @pytest.mark.parametrize("form", ["json", "csv", "markdown"])
    def test_formats(self, capsys, form):
        assert cli.main(["compare", OLD, NEW, "--format", form, "--include-warmup"]) == 0
        assert capsys.readouterr().out.startswith({"json": "{", "csv": "kind,", "markdown": "`before"}[form])

    @pytest.mark.parametrize(
        ("runs", "percent", "code", "words"),
        [
            ((OLD, NEW), "5", 1, "100.0 % slower a step: more than 5 %, and more than noise (p = 0.008)"),
            ((OLD, NEW), "99.5%", 1, "100.0 % slower a step: more than 99.5 %, and more than noise (p = 0.008)"),
            ((OLD, NEW), "150", 0, "100.0 % slower a step: not slower by more than 150 %"),
            ((NEW, OLD), "0", 0, "50.0 % faster a step: not slower by more than 0 %"),
        ],
    )
    def test_fail_if_slower(self, capsys, runs, percent, code, words):
        assert cli.main(["compare", *runs, "--fail-if-slower", percent, "--format", "json"]) == code
        out, err = capsys.readouterr()
        assert err == f"mlvbench compare: {words}\n"
        json.loads(out)

    def test_within_noise_it_does_not_fail(self, capsys, folder):
        make_run(folder / "a", [1, 1, 2, 1, 2, 1])
        make_run(folder / "b", [1, 2, 1, 2, 1, 2])
        assert cli.main(["compare", "a", "b", "--fail-if-slower", "5"]) == 0
        expected = "mlvbench compare: 14.3 % slower a step: more than 5 %, but within noise (p = 1.000)\n"
        assert capsys.readouterr().err == expected

    def test_too_few_snapshots_do_not_fail_and_it_says_so(self, capsys, folder):
        make_run(folder / "a", [1, 1, 1])
        make_run(folder / "b", [9, 9, 9])
        assert cli.main(["compare", "a", "b", "--fail-if-slower", "5"]) == 0
        expected = (
            "too few snapshots to tell whether it is slower: 2 and 2, 4 and 4 would do; run with a smaller --every"
        )
        assert capsys.readouterr().err == f"mlvbench compare: {expected}\n"


MISTAKES = [
    ([], "mlvbench: no command given: use run, report or compare (mlvbench --help tells more)"),
    (["reprot"], "mlvbench: there is no command 'reprot': use run, report or compare (mlvbench --help tells more)"),
    (["a\nb"], "mlvbench: there is no command 'a\\nb': use run, report or compare (mlvbench --help tells more)"),
    (["--verbose"], "mlvbench: there is no command '--verbose': use run, report or compare"),
    (["report", "nowhere"], "mlvbench report: there is no 'nowhere'"),
    (
        ["report", "mlvbench-runs"],
        f"mlvbench report: 'mlvbench-runs' holds no records: name one of the runs in it, such as '{NEW}'",
    ),
    (
        ["report", "--format", "xml"],
        "mlvbench report: argument --format: must be table, json, csv or markdown, got 'xml'",
    ),
    (["report", "--form", "csv"], "mlvbench report: unrecognized arguments: --form"),
    (["report", "--\x1b[31m"], "mlvbench report: unrecognized arguments: --\\x1b[31m"),
    (["report", OLD, NEW], f"mlvbench report: unrecognized arguments: {NEW}"),
    (["report", "--format"], "mlvbench report: argument --format: expected one argument"),
    (["compare"], "mlvbench compare: the following arguments are required: before, after"),
    (["compare", OLD], "mlvbench compare: the following arguments are required: after"),
    (["compare", OLD, "nowhere"], "mlvbench compare: there is no 'nowhere'"),
    (["compare", OLD, "zero.jsonl"], "mlvbench compare: 'zero.jsonl' cannot be compared: its records count no step"),
    *(
        (
            ["compare", OLD, NEW, f"--fail-if-slower={value}"],
            "mlvbench compare: argument --fail-if-slower: must be a percentage from 0 on, such as 5 or 2.5, "
            f"got '{value}'",
        )
        for value in ("-1", "x", "nan", "inf", "", "%")
    ),
    (["run"], "mlvbench run: no script given, such as: mlvbench run train.py"),
    (["run", "--quiet"], "mlvbench run: no script given, such as: mlvbench run train.py"),
    (["run", "--"], "mlvbench run: no script given, such as: mlvbench run train.py"),
    (["run", "-m"], "mlvbench run: no script given, such as: mlvbench run train.py"),
    (["run", "--every"], "mlvbench run: --every needs a value (mlvbench run --help tells more)"),
    (["run", "--output", "--quiet", "a.py"], "mlvbench run: --output needs a value (mlvbench run --help tells more)"),
    *(
        (["run", "--every", value, "a.py"], f"mlvbench run: --every must be a positive integer, got '{value}'")
        for value in ("0", "-5", "1.5", "x", "", "٣", "1_0", "9" * 20)
    ),
    (
        ["run", "--evry=5", "a.py"],
        "mlvbench run: there is no option '--evry': use --every, --output, --phase, --timing or --quiet",
    ),
    (["run", "--quiet=1", "a.py"], "mlvbench run: there is no option '--quiet': use"),
    (["run", "-x", "a.py"], "mlvbench run: there is no option '-x': use --every, --output, --phase, --timing or"),
    (["run", "--timing"], "mlvbench run: --timing needs a value (mlvbench run --help tells more)"),
    *(
        (["run", f"--timing={value}", "a.py"], f"mlvbench run: --timing must be synchronize or events, got '{value}'")
        for value in ("event", "", "EVENTS")
    ),
]


class TestMistakes:
    @pytest.mark.parametrize(("arguments", "message"), MISTAKES)
    def test_are_one_line_and_code_2(self, capsys, arguments, message):
        save([{**small(50), "step": 0}], "zero.jsonl")
        assert cli.main(arguments) == 2
        out, err = capsys.readouterr()
        assert err.startswith(message)
        assert (out, err.count("\n"), err[-1]) == ("", 1, "\n")

    def test_without_any_run(self, capsys, folder, monkeypatch):
        monkeypatch.chdir(folder / OLD)
        assert cli.main(["report"]) == 2
        assert capsys.readouterr().err.startswith("mlvbench report: there is no run in 'mlvbench-runs': make one with ")

    def test_the_launcher_finds_are_told_alike(self, capsys, monkeypatch):
        launch = types.ModuleType("mlvbench.run.launch")
        launch.CommandError = type("CommandError", (ValueError,), {})

        def refuse(command, **options):
            raise launch.CommandError("there is no script 'a\nb.py'")

        launch.launch = refuse
        monkeypatch.setitem(sys.modules, "mlvbench.run.launch", launch)
        assert cli.main(["run", "a.py"]) == 2
        assert capsys.readouterr().err == "mlvbench run: there is no script 'a\\nb.py'\n"


class TestRunOptions:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ("train.py", {"command": ["train.py"]}),
            ("train.py --every 5 --quiet", {"command": ["train.py", "--every", "5", "--quiet"]}),
            ("--every 5 train.py --every 7", {"command": ["train.py", "--every", "7"], "every": 5}),
            ("--every=5 --every=7 train.py", {"command": ["train.py"], "every": 7}),
            ("--quiet -m package.module -m x", {"command": ["-m", "package.module", "-m", "x"], "quiet": True}),
            ("--output=o -- torchrun --x -- t.py", {"command": ["--", "torchrun", "--x", "--", "t.py"], "output": "o"}),
            ("--output -o train.py", {"command": ["train.py"], "output": "-o"}),
            ("--phase a=m:f --phase=b=m:g=h train.py", {"command": ["train.py"], "phases": ["a=m:f", "b=m:g=h"]}),
            ("- --help", {"command": ["-", "--help"]}),
            ("--quiet --help", {"command": [], "quiet": True, "help": True}),
        ],
    )
    def test_options_end_where_the_script_begins(self, arguments, expected):
        assert cli.read_run_options(arguments.split()) == cli.RunOptions(**expected)

    @given(st.lists(st.text(max_size=6), max_size=5))
    def test_all_that_follows_the_script_is_its_own(self, arguments):
        found = cli.read_run_options(["--every", "5", "train.py", *arguments])
        assert (found.command, found.every) == (["train.py", *arguments], 5)

    def test_they_reach_the_launcher(self, monkeypatch):
        launch = types.ModuleType("mlvbench.run.launch")
        launch.CommandError = type("CommandError", (ValueError,), {})
        called = []

        def take_over(command, **options):
            called.append((command, options))
            raise SystemExit(3)

        launch.launch = take_over
        monkeypatch.setitem(sys.modules, "mlvbench.run.launch", launch)
        with pytest.raises(SystemExit, match="3"):
            cli.main(
                [
                    "run",
                    "--quiet",
                    "--every=5",
                    "--output",
                    "o",
                    "--phase",
                    "p",
                    "--timing=synchronize",
                    "train.py",
                    "-x",
                ]
            )
        assert called == [
            (
                ["train.py", "-x"],
                {"every": 5, "output": "o", "phases": ["p"], "timing": "synchronize", "quiet": True},
            ),
        ]

    def test_the_device_is_not_held_up_unless_it_is_asked_for(self):
        assert cli.read_run_options(["train.py"]).timing == "events"


class TestHelp:
    def test_the_version(self, capsys):
        assert cli.main(["--version"]) == 0
        assert re.fullmatch(r"mlvbench \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)

    @pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["run", "--help"], ["run", "--every", "5", "-h"]])
    def test_of_the_whole_and_of_run(self, capsys, arguments):
        assert cli.main(arguments) == 0
        assert capsys.readouterr().out.startswith("usage: mlvbench run [options] train.py")

    @pytest.mark.parametrize("command", ["report", "compare"])
    def test_of_the_others(self, capsys, command):
        with pytest.raises(SystemExit, match="0"):
            cli.main([command, "--help"])
        out = capsys.readouterr().out
        assert out.startswith(f"usage: mlvbench {command} ")
        assert "--include-warmup" in out


class TestProcess:
    def test_it_loads_no_torch(self):
        program = "import sys; from mlvbench.cli import main; main(['report']); main(['compare', *sys.argv[1:]]); "
        program += "main(['report', '--html', 'page.html']); "
        program += "print([name for name in sys.modules if name == 'torch'])"
        run = subprocess.run([sys.executable, "-c", program, OLD, NEW], capture_output=True, text=True, check=True)
        assert run.stdout.endswith("\n[]\n")

    def test_as_a_module_and_as_a_script(self):
        assert mlvbench("report").stdout.startswith(NEW)
        assert mlvbench("report", "nowhere").returncode == 2

    def test_a_closed_pipe_is_no_error(self):
        read, write = os.pipe()
        os.close(read)
        command = [sys.executable, "-m", "mlvbench", "report"]
        with os.fdopen(write, "w") as pipe:
            run = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
        assert (run.returncode, run.stderr) == (0, "")

    def test_a_closed_pipe_does_not_hide_that_it_is_slower(self):
        read, write = os.pipe()
        os.close(read)
        command = [sys.executable, "-m", "mlvbench", "compare", OLD, NEW, "--fail-if-slower", "5"]
        with os.fdopen(write, "w") as pipe:
            run = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
        assert (run.returncode, run.stderr.count("\n")) == (1, 1)

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no disk that is always full")
    def test_a_full_disk_is_one_line(self):
        command = [sys.executable, "-m", "mlvbench", "report"]
        with open("/dev/full", "w") as full:
            run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert (run.returncode, run.stderr) == (2, "mlvbench report: cannot print: No space left on device\n")

    def test_without_an_output_it_is_silent(self):
        command = f"{sys.executable} -m mlvbench report >&- 2>&-"
        assert subprocess.run(command, shell=True, check=False).returncode == 0

    def test_in_another_encoding(self):
        run = mlvbench("report", env={**os.environ, "PYTHONIOENCODING": "latin-1"})
        assert (run.returncode, run.stderr) == (0, "")
        assert "wall time" in run.stdout

    def test_in_a_pipe_there_is_no_colour_and_the_width_is_that_of_columns(self):
        run = mlvbench("report", env={**os.environ, "COLUMNS": "40", "FORCE_COLOR": "1"})
        assert "\x1b" not in run.stdout
        assert "phase      self ms/step   share\n" in run.stdout

    def test_ctrl_c_is_130_and_silent(self, capsys, monkeypatch):
        def interrupted(path):
            raise KeyboardInterrupt

        monkeypatch.setattr(cli, "read_run", interrupted)
        assert cli.main(["report"]) == 130
        assert capsys.readouterr() == ("", "")
