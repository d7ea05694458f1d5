"""What a report looks like: on a terminal, in a pipe, as Markdown, CSV and JSON; whatever the names are."""

import csv
import io
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from test_records import lists_of_records
from test_summary import ranks_of, record, run_of

from mlvbench import report
from mlvbench.records.run import Run, RunFile, describe_run
from mlvbench.report import export, text
from mlvbench.report.compare import compare
from mlvbench.report.summary import summarize
from mlvbench.report.table import draw


class Stream(io.StringIO):
    """A stream that may be a terminal, in an encoding of its own."""

    def __init__(self, *, terminal=False, encoding="utf-8"):
        super().__init__()
        self._terminal, self._encoding = terminal, encoding

    @property
    def encoding(self):
        return self._encoding

    def isatty(self):
        return self._terminal


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


def small(step, factor=1.0, **figures):
    seconds = {"data": 0.5, "forward": 2.0, "forward/blocks": 1.5, "backward": 2.0}
    seconds = {name: second * factor for name, second in seconds.items()}
    return record(step, seconds, wall=5 * factor, samples=3200, **figures)


RUN = run_of([small(100, 3), small(200), small(300, 1.1)], command=["train.py", "--lr", "0.1"], device="cpu")
ESCAPE = "\x1b["
NAMES = [
    "<script>", "a\nb", "a\rb", "🔥", "a|b", "a\\|b", "[bold]x", "\x1b[31mred", "\u202etxet", "\ud800", "`tick`", "``",
    "=1+1", "+1", "-1", "@cmd", "\t=1", "__init__", "*b*", "a" * 300, "模型" * 40, "e\u0301", "\u200b", "&nbsp;", "# x",
    " x ", "|", "www.x.example", ":smile:", "'", '"', ",", "\x7f", "\x9b31m", "other", "wall time",
]  # fmt: skip


def drawn(run, stream=None, **options):
    return draw(text.report_sheet(run, summarize(run, **options)), stream or Stream())


def markdown(run):
    return text.markdown(text.report_sheet(run, summarize(run)))


def with_name(name):
    key = f"t_{name}"
    records = [{"step": 10 * i, key: 2.0 + i, f"t_outer/{name}": 1.0, "t_outer": 2.0} for i in (1, 2, 3)]
    return run_of([{**r, "samples": 0, "wall_sec": 9.0} for r in records], command=["train.py", name])


class TestTable:
    def test_where_the_time_went(self):
        assert drawn(RUN) == (
            "run  train.py --lr 0.1\n"
            "\n"
            "phase      self ms/step   share                            mean ms/step    sd\n"
            "data               5.25   10.0%  ██████                            5.25  0.35\n"
            "forward            5.25   10.0%  ██████                           21.00  1.41\n"
            "  blocks          15.75   30.0%  ██████████████████               15.75  1.06\n"
            "backward          21.00   40.0%  ████████████████████████         21.00  1.41\n"
            "other              5.25   10.0%  ██████                            5.25\n"
            "wall time         52.50  100.0%                                   52.50  3.54\n"
            "\n"
            "610 samples/s over the wall time\n"
            "677 samples/s over the accounted time (outermost phases)\n"
            "200 steps in 2 snapshots; 1 more of warm-up left out\n"
            "self, share: without nested phases; mean: with them; sd: its standard deviation over snapshots\n"
        )

    def test_the_diagnosis_stands_below_the_table(self):
        run = run_of([record(50, {"data": 3, "forward": 1}, wall=4)])
        assert "\n\nwaiting for data takes 75% of the wall time: training waits" in drawn(run)

    @pytest.mark.parametrize(
        ("description", "peak", "words"),
        [
            ({"device": "cuda:0", "timing": "events"}, 12.3, "timing: events (cuda:0)"),
            ({"device": "cuda:0"}, 0.0, "timing: not known (cuda:0)"),
            ({}, 12.3, "timing: not known (an accelerator)"),
            ({"device": "\x1b[31m", "timing": ["x"]}, 12.3, "timing: not known (an accelerator)"),
            ({"device": "cpu", "timing": "synchronize"}, 0.0, None),
            ({}, 0.0, None),
        ],
    )
    def test_the_timing_is_named_where_there_is_an_accelerator(self, description, peak, words):
        shown = drawn(run_of([small(50, peak=peak)], **description))
        assert shown.endswith(f"{words}\n") if words else "timing" not in shown

    def test_the_memory_is_told_where_there_is_any(self):
        assert "12.30 GB of device memory at the peak" in drawn(run_of([small(50, peak=12.3)]))
        assert "memory" not in drawn(RUN)

    @pytest.mark.parametrize(
        ("run", "options", "words"),
        [
            (run_of([small(50)]), {}, "50 steps in 1 snapshot, warm-up included"),
            (run_of([small(1)]), {}, "1 step in 1 snapshot, warm-up included"),
            (RUN, {"include_warmup": True}, "300 steps in 3 snapshots, 1 of them warm-up"),
            (ranks_of(r0=[small(5000)], r1=[small(5000)]), {}, "5,000 steps on each of 2 ranks in 2 snapshots"),
            (ranks_of(r0=[small(50)], r1=[small(40)]), {}, "40 to 50 steps on each of 2 ranks in 2 snapshots"),
        ],
    )
    def test_what_it_is_the_mean_of(self, run, options, words):
        assert words in drawn(run, **options)

    @pytest.mark.parametrize(("torn", "words"), [(1, "1 torn line skipped"), (2, "2 torn lines skipped")])
    def test_torn_lines_are_told(self, torn, words):
        assert words in drawn(Run(Path("run"), RUN.ranks, {}, torn))

    def test_phases_that_overlap_the_loop_are_told(self):
        run = run_of([record(50, {"loop": 6, "writer": 8}, wall=10, samples=12, accounted=6)])
        shown = drawn(run)
        assert "phases add up to 180.0% of the wall time with other: those of other threads overlap the loop" in shown
        assert re.search(r"other +80.0 +40.0%", shown)

    def test_without_samples_there_is_no_rate(self):
        assert "samples" not in drawn(run_of([record(50, {"a": 1}, wall=1)]))

    def test_without_steps_there_are_shares(self):
        shown = drawn(run_of([record(0, {"a": 1}, wall=2)]))
        assert re.search(r"phase +share", shown)
        assert re.search(r"a +50.0%", shown)
        assert "0 steps in 1 snapshot" in shown

    @pytest.mark.parametrize(
        ("wall", "words"), [(150.0, "150.0"), (15.0, "15.00"), (1.5, "1.500"), (0.15, "150.0"), (15e-6, "15.00")]
    )
    def test_one_unit_and_one_number_of_digits(self, wall, words):
        unit = "s" if wall >= 1 else "ms" if wall >= 1e-3 else "µs"
        shown = drawn(run_of([record(1, {"a": wall / 1000}, wall=wall)]))
        assert f"self {unit}/step" in shown
        assert re.search(rf"wall time +{words} ", shown)
        digits = {len(number.partition(".")[2]) for number in re.findall(r"\d+\.\d+(?![\d%])", shown.split("\n\n")[1])}
        assert len(digits) == 1

    def test_a_command_that_is_none_is_left_out(self):
        assert drawn(run_of([small(50)], command="rm -rf")).startswith("run\n")


class TestStream:
    def test_in_a_pipe_there_is_no_colour(self):
        assert ESCAPE not in drawn(RUN)

    def test_on_a_terminal_there_is(self):
        assert ESCAPE in drawn(RUN, Stream(terminal=True))

    @pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
    def test_unless_it_is_not_wanted(self, monkeypatch, name, value):
        monkeypatch.setenv(name, value)
        assert ESCAPE not in drawn(RUN, Stream(terminal=True))

    def test_not_even_if_the_environment_would_force_it(self, monkeypatch):
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert ESCAPE not in drawn(RUN)

    @pytest.mark.parametrize("terminal", [True, False])
    @pytest.mark.parametrize("columns", [*range(1, 60), 80, 200, 10**7])
    def test_no_row_is_wider_than_the_terminal(self, monkeypatch, columns, terminal):
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = drawn(with_name("模型" * 50), Stream(terminal=terminal)).splitlines()
        rows = shown[shown.index("") + 1 :]
        rows = rows[: rows.index("")]
        assert len(rows) == 6
        # A wide character takes two columns.
        assert all(cell_len(row) <= max(columns, 2) for row in rows)

    @pytest.mark.parametrize(
        ("columns", "header"),
        [
            ("100", "phase      self ms/step   share                            mean ms/step    sd"),
            ("61", "phase      self ms/step   share            mean ms/step    sd"),
            ("52", "phase      self ms/step   share  mean ms/step    sd"),
            ("46", "phase      self ms/step   share  mean ms/step"),
            ("40", "phase      self ms/step   share"),
            ("20", "phase       share"),
            ("8", "phase"),
        ],
    )
    def test_what_there_is_no_room_for_goes_the_bar_first(self, monkeypatch, columns, header):
        monkeypatch.setenv("COLUMNS", columns)
        assert drawn(RUN).splitlines()[2] == header

    def test_long_names_end_in_an_ellipsis(self, monkeypatch):
        monkeypatch.setenv("COLUMNS", "40")
        assert re.search("^a+… ", drawn(with_name("a" * 300)), re.MULTILINE)

    @pytest.mark.parametrize("columns", ["", "0", "-5", "x", "9" * 30, "٣"])
    def test_a_width_that_is_none_does_not_matter(self, monkeypatch, columns):
        monkeypatch.setenv("COLUMNS", columns)
        for terminal in (True, False):
            assert "wall time" in drawn(RUN, Stream(terminal=terminal))

    def test_without_unicode_there_are_other_signs(self):
        shown = drawn(with_name("\N{SNOWMAN}"), Stream(encoding="ascii"))
        assert "###" in shown
        assert "█" not in shown

    def test_what_the_encoding_lacks_is_an_escape(self):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        report.write("µ\N{SNOWMAN}\n", stream)
        assert stream.buffer.getvalue() == b"\\xb5\\u2603\n"


class TestNames:
    @pytest.mark.parametrize("name", NAMES, ids=ascii)
    def test_print_harmlessly_everywhere(self, name):
        run = with_name(name)
        found = summarize(run)
        shown = [drawn(run), markdown(run), export.report_csv(found), export.report_json(run, found)]
        comparison = compare(found, found)
        sheet = text.comparison_sheet(run, run, comparison)
        shown += [draw(sheet, Stream()), text.markdown(sheet), export.comparison_csv(comparison)]
        shown += [export.comparison_json(run, run, comparison)]
        for output in shown:
            assert all(char.isprintable() or char == "\n" for char in output), ascii(output)
            output.encode("utf-8")

    @given(st.text(min_size=1, max_size=20).filter(lambda name: "/" not in name and name != "outer"))
    def test_whatever_they_are(self, name):
        self.test_print_harmlessly_everywhere(name)

    @pytest.mark.parametrize("name", NAMES, ids=ascii)
    def test_each_is_one_row_of_the_table(self, name):
        lines = drawn(with_name(name)).splitlines()
        assert len(lines[2 : lines.index("", 2)]) == 6

    @pytest.mark.parametrize(
        ("name", "cell"),
        [
            ("forward", "forward"),
            ("forward_features", "forward_features"),
            ("Model.block-0", "Model.block-0"),
            ("a|b", r"`a\|b`"),
            (r"a\|b", r"`a\\\|b`"),
            ("<b>", "`<b>`"),
            ("__init__", "`__init__`"),
            ("`x`", "`` `x` ``"),
            ("@all", "`@all`"),
            ("\x1b[31m", r"`\x1b[31m`"),
            ("*x*", "`*x*`"),
        ],
    )
    def test_markdown_leaves_them_alone(self, name, cell):
        assert f"\n| {cell} | " in markdown(with_name(name))

    @pytest.mark.parametrize("name", NAMES, ids=ascii)
    def test_a_row_of_markdown_has_as_many_cells_as_its_header(self, name):
        rows = [line for line in markdown(with_name(name)).splitlines() if line.startswith("|")]
        # A bar after an odd number of backslashes is part of its cell.
        assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows} == {6}

    @pytest.mark.parametrize(
        ("name", "cell"),
        [("=1+1", "'=1+1"), ("+1", "'+1"), ("-1", "'-1"), ("@x", "'@x"), ("a=1", "a=1"), ("\t=", r"\t=")],
    )
    def test_no_cell_of_csv_is_a_formula(self, name, cell):
        rows = list(csv.DictReader(io.StringIO(export.report_csv(summarize(with_name(name))))))
        assert cell in [row["phase"] for row in rows]

    @pytest.mark.parametrize("name", NAMES, ids=ascii)
    def test_json_has_them_as_they_are(self, name):
        run = with_name(name)
        found = json.loads(export.report_json(run, summarize(run)))
        assert [name] in [phase["path"] for phase in found["phases"]]
        assert found["command"] == ["train.py", name]


def test_where_warm_up_is_most_of_a_run_it_says_what_to_do():
    run = run_of([record(50 * i, {"forward": 3}, wall=4) for i in (1, 2)])
    assert "50 steps in 1 snapshot; 1 more of warm-up left out (--include-warmup counts it; " in markdown(run)


class TestMarkdown:
    def test_a_table_for_a_pull_request(self):
        assert markdown(RUN) == (
            "`run  train.py --lr 0.1`\n"
            "\n"
            "| phase | self ms/step | share | mean ms/step | sd |\n"
            "| --- | ---: | ---: | ---: | ---: |\n"
            "| data | 5.25 | 10.0% | 5.25 | 0.35 |\n"
            "| forward | 5.25 | 10.0% | 21.00 | 1.41 |\n"
            "| &nbsp;&nbsp;blocks | 15.75 | 30.0% | 15.75 | 1.06 |\n"
            "| backward | 21.00 | 40.0% | 21.00 | 1.41 |\n"
            "| other | 5.25 | 10.0% | 5.25 |  |\n"
            "| wall time | 52.50 | 100.0% | 52.50 | 3.54 |\n"
            "\n"
            "- 610 samples/s over the wall time\n"
            "- 677 samples/s over the accounted time (outermost phases)\n"
            "- 200 steps in 2 snapshots; 1 more of warm-up left out\n"
            "- self, share: without nested phases; mean: with them; sd: its standard deviation over snapshots\n"
        )


class TestMachines:
    def test_csv_has_a_row_for_each_phase(self):
        rows = list(csv.DictReader(io.StringIO(export.report_csv(summarize(RUN)))))
        assert [(row["kind"], row["phase"]) for row in rows] == [
            ("phase", "data"), ("phase", "forward"), ("phase", "forward/blocks"), ("phase", "backward"),
            ("other", ""), ("wall", ""),
        ]  # fmt: skip
        assert sum(float(row["self_share"]) for row in rows[:-1]) == pytest.approx(1)
        assert float(rows[2]["sec_per_step"]) == pytest.approx(0.01575)

    def test_json_has_all_unrounded_in_seconds(self):
        found = json.loads(export.report_json(RUN, summarize(RUN)))
        assert {key: value for key, value in found.items() if key != "phases"} == {
            "format": 1,
            "path": "run",
            "command": ["train.py", "--lr", "0.1"],
            "device": "cpu",
            "timing": None,
            "torn_lines": 0,
            "ranks": 1,
            "steps": 200,
            "snapshots": 2,
            "warm_up_snapshots": 1,
            "warm_up_included": False,
            "wall_sec": 10.5,
            "accounted_sec": pytest.approx(9.45),
            "other_sec": pytest.approx(1.05),
            "overlap_sec": 0.0,
            "wall_sec_per_step": 0.0525,
            "wall_sec_per_step_sd": pytest.approx(0.0025 * 2**0.5),
            "samples": 6400,
            "samples_per_wall_sec": pytest.approx(6400 / 10.5),
            "samples_per_accounted_sec": pytest.approx(6400 / 9.45),
            "memory_peak_gb": 0.0,
            "diagnosis": None,
            "other_sec_per_step_min": None,
            "other_sec_per_step_max": None,
            "other_slowest_rank": None,
            "wall_sec_per_step_min": None,
            "wall_sec_per_step_max": None,
            "wall_slowest_rank": None,
            "stragglers": [],
            "stopped_early": [],
        }
        assert found["phases"][2] == {
            "path": ["forward", "blocks"],
            "self_sec": pytest.approx(3.15),
            "self_sec_per_step": pytest.approx(0.01575),
            "self_share": pytest.approx(0.3),
            "sec": pytest.approx(3.15),
            "sec_per_step": pytest.approx(0.01575),
            "sec_per_step_sd": pytest.approx(0.00075 * 2**0.5),
            "sec_per_step_min": None,
            "sec_per_step_max": None,
            "slowest_rank": None,
        }

    def test_what_is_not_known_is_null(self):
        run = run_of([record(0, {"a": 1}, wall=2)])
        found = json.loads(export.report_json(run, summarize(run)))
        assert found["wall_sec_per_step"] is found["command"] is found["phases"][0]["sec_per_step"] is None

    def test_json_is_json_even_of_sums_without_bound(self):
        run = run_of([record(1, {"a": 1e308}, wall=1e308)] * 3)
        found = json.loads(export.report_json(run, summarize(run)), parse_constant=pytest.fail)
        assert found["format"] == 1
        assert "wall time" in drawn(run)


class TestAnyNumbers:
    @given(processes=st.lists(lists_of_records().filter(bool), min_size=1, max_size=3), include=st.booleans())
    def test_whatever_the_records_say_there_is_a_report(self, processes, include):
        run = run_of(*processes)
        found = summarize(run, include_warmup=include)
        sheet = text.report_sheet(run, found)
        assert "wall time" in draw(sheet, Stream(terminal=True))
        assert text.markdown(sheet)
        assert export.report_csv(found)
        json.loads(export.report_json(run, found), parse_constant=pytest.fail)
        if found.per_step(found.wall) is not None:
            comparison = compare(found, found)
            assert draw(text.comparison_sheet(run, run, comparison), Stream())
            json.loads(export.comparison_json(run, run, comparison), parse_constant=pytest.fail)


class TestComparison:
    @staticmethod
    def sheet(*factors):
        before = run_of([small(100 * i, f) for i, f in enumerate([1, 1, 1, 1.2, 1.2], start=1)])
        after = run_of([small(100 * i, f) for i, f in enumerate([1, *factors], start=1)])
        return text.comparison_sheet(before, after, compare(summarize(before), summarize(after)))

    def test_side_by_side(self):
        assert draw(self.sheet(2, 2, 2.2, 2.2), Stream()) == (
            "before  run\n"
            "after   run\n"
            "\n"
            "phase      before ms/step  after ms/step  ratio      p\n"
            "data                  5.5           10.5  1.91x  0.029  slower\n"
            "forward              22.0           42.0  1.91x  0.029  slower\n"
            "  blocks             16.5           31.5  1.91x  0.029  slower\n"
            "backward             22.0           42.0  1.91x  0.029  slower\n"
            "other                 5.5           10.5  1.91x  0.029  slower\n"
            "wall time            55.0          105.0  1.91x  0.029  slower\n"
            "\n"
            "582 samples/s over the wall time before, 305 after: 0.52x\n"
            "phases with what is nested in them; permutation test on 4 blocks of snapshots before and 4 after\n"
        )

    def test_too_few(self):
        assert "too few snapshots" in draw(self.sheet(2), Stream())

    def test_other_batches_are_told(self):
        runs = [run_of([record(50, {"a": 1}, wall=1, samples=samples)]) for samples in (3200, 6400)]
        summaries = [summarize(run) for run in runs]
        shown = draw(text.comparison_sheet(*runs, compare(*summaries)), Stream())
        assert "64 samples a step before, 128 after: compare samples/s, not steps" in shown

    @pytest.mark.parametrize(
        ("before", "after", "is_told"),
        [
            ({"device": "cuda:0", "timing": "synchronize"}, {"device": "cuda:0", "timing": "events"}, True),
            ({"device": "cuda:0", "timing": "events"}, {"device": "cuda:1", "timing": "events"}, False),
            ({"device": "cpu", "timing": "synchronize"}, {"device": "cpu", "timing": "events"}, False),
            ({}, {"device": "cuda:0", "timing": "events"}, False),
        ],
    )
    def test_other_timings_are_told_where_there_is_an_accelerator(self, before, after, is_told):
        runs = [run_of([small(50)], **description) for description in (before, after)]
        shown = draw(text.comparison_sheet(*runs, compare(*map(summarize, runs))), Stream())
        words = "timing: synchronize before, events after: times of phases mean different things in the two"
        assert (words in shown) == is_told

    def test_json(self):
        runs = [RUN, run_of([record(50, {"data": 1}, wall=2)])]
        found = json.loads(export.comparison_json(*runs, compare(*map(summarize, runs))))
        assert found["before"]["blocks"] == 2
        assert found["wall"] == {
            "before_sec_per_step": 0.0525,
            "after_sec_per_step": 0.04,
            "ratio": pytest.approx(0.04 / 0.0525),
            "p": None,
            "verdict": "too few snapshots",
        }
        assert [(phase["path"], phase["verdict"]) for phase in found["phases"]] == [
            (["data"], "too few snapshots"), (["forward"], "gone"), (["forward", "blocks"], "gone"),
            (["backward"], "gone"),
        ]  # fmt: skip

    def test_csv(self):
        runs = [RUN, RUN]
        rows = list(csv.DictReader(io.StringIO(export.comparison_csv(compare(*map(summarize, runs))))))
        assert [row["kind"] for row in rows] == ["phase"] * 4 + ["other", "wall"]
        assert rows[-1]["verdict"] == "too few snapshots"


class TestShow:
    @pytest.fixture
    def directory(self, tmp_path):
        directory = tmp_path / "a run's"
        describe_run(directory, {"command": ["train.py"], "device": "cpu"})
        file = RunFile(directory, "0")
        for step in (50, 100):
            file.append(small(step))
        file.close()
        return directory

    def test_the_last_line_shows_it_again(self, directory):
        stream = Stream()
        report.show(directory, stream)
        lines = stream.getvalue().splitlines()
        assert lines[0] == f"{directory}  train.py"
        assert lines[-1] == "mlvbench report '" + str(directory).replace("'", "'\"'\"'") + "'"

    def test_it_goes_to_the_standard_error(self, directory, capsys):
        report.show(directory / "0.jsonl")
        out, err = capsys.readouterr()
        assert (out, err.splitlines()[0]) == ("", str(directory / "0.jsonl"))

    def test_without_rich_it_is_markdown_and_says_what_to_install(self, directory, monkeypatch):
        for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, "rich", None)
        stream = Stream(terminal=True)
        report.show(directory, stream)
        assert "| wall time | 100.0 | 100.0% | 100.0 |  |" in stream.getvalue()
        assert stream.getvalue().splitlines()[-2] == "for a table, install rich: pip install rich"
