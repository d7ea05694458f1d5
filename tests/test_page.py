"""The page of a report: whole, alone, of the same figures, and of names nothing but text."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_ranks import run_of_ranks, training
from test_records import lists_of_records
from test_report import NAMES, RUN, small, with_name
from test_summary import ranks_of, record, run_of, runs

from mlvbench.records.run import Run
from mlvbench.report import page, text
from mlvbench.report.compare import compare
from mlvbench.report.intervals import Intervals
from mlvbench.report.page import POINTS, comparison_page, report_page, thin
from mlvbench.report.summary import summarize
from mlvbench.report.text import printable

FILES = Path(page.__file__).with_name("page_files")
HOSTILE = [
    *NAMES, "<script>alert(1)</script>", "</script><script>alert(1)</script>", "<!--<script>", "-->", "]]>",
    '"><img src=x onerror=alert(1)>', "' onload='alert(1)", "\u2028\u2029", "{a|b}", "{value}", "{b}: {c}", "$data",
    "${script}", "$$", "__proto__", "constructor", "toString", "hasOwnProperty", "\\u003cscript>", "&lt;b&gt;", "\0",
]  # fmt: skip


class Reader(HTMLParser):
    """What a browser would make of a page: its elements, and the text in each kind of them."""

    def __init__(self, shown):
        super().__init__()
        self.elements, self.texts, self._open = [], {}, []
        self.feed(shown)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._open.append(tag)
        self.texts.setdefault(tag, []).append("")
        if tag in ("meta", "link", "img", "br"):
            self._open.pop()

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open:
            self.texts[self._open[-1]][-1] += data

    @property
    def data(self):
        return json.loads(self.texts["script"][0], parse_constant=pytest.fail)


def read(run, **options):
    return Reader(report_page(run, summarize(run, **options)))


def charts(run, **options):
    return {chart["title"]: chart for chart in read(run, **options).data["charts"]}


def compared(before, after):
    summaries = summarize(before), summarize(after)
    return comparison_page((before, after), summaries, compare(*summaries))


class TestAlone:
    PAGES = (report_page(RUN, summarize(RUN)), compared(RUN, RUN))

    @pytest.mark.parametrize("shown", PAGES)
    def test_nothing_is_loaded_and_nothing_sent(self, shown):
        for tag, attributes in Reader(shown).elements:
            assert tag not in ("link", "img", "iframe", "form", "base", "object")
            assert not {"src", "href", "action", "srcset", "style"} & attributes.keys()
            assert not [name for name in attributes if name.startswith("on")]
        assert "url(" not in (FILES / "page.css").read_text()
        assert "@import" not in (FILES / "page.css").read_text()

    @pytest.mark.parametrize("shown", PAGES)
    def test_its_policy_lets_run_only_what_it_was_made_with(self, shown):
        found = Reader(shown)
        [policy] = [a["content"] for _, a in found.elements if a.get("http-equiv") == "Content-Security-Policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))

        def hashes(texts):
            return [f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in texts]

        assert rules["default-src"] == "'none'"
        assert rules["script-src"].split() == hashes(found.texts["script"][1:])
        assert rules["style-src"].split() == hashes(found.texts["style"])

    def test_nothing_ends_a_script_before_its_end(self):
        for name in ("page.js", "echarts/echarts.min.js"):
            assert not re.search(r"</script|<!--", (FILES / name).read_text(encoding="utf-8"), re.IGNORECASE)

    def test_page_js_puts_names_only_where_text_is(self):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", (FILES / "page.js").read_text()
        )

    def test_the_licences_of_what_it_is_drawn_by_are_in_it(self):
        [licences] = read(RUN).texts["pre"]
        for words in ("Copyright 2017-2026 The Apache Software Foundation", "Apache License", "Baidu Inc.", "Bostock"):
            assert words in licences
        assert f'version="{page.ECHARTS}"' in (FILES / "echarts/echarts.min.js").read_text(encoding="utf-8")


class TestFigures:
    def test_the_table_is_that_of_the_terminal(self):
        found, sheet = read(RUN), text.report_sheet(RUN, summarize(RUN))
        assert found.texts["title"] == ["mlvbench: run  train.py --lr 0.1"]
        assert [head.strip("\u2003") for head in found.texts["th"]] == [
            "phase", *(column.title for column in sheet.columns), *(name for _, name in sheet.names),
        ]  # fmt: skip
        assert found.texts["td"] == [column.cells[row] for row in range(len(sheet.names)) for column in sheet.columns]
        assert found.texts["li"] == sheet.notes

    def test_so_is_that_of_a_comparison(self):
        before, after = (run_of([small(50 * i, f) for i in range(1, 8)]) for f in (1, 2))
        found = Reader(compared(before, after))
        sheet = text.comparison_sheet(before, after, compare(summarize(before), summarize(after)))
        assert found.texts["td"] == [column.cells[row] for row in range(len(sheet.names)) for column in sheet.columns]
        assert found.texts["p"][:2] == sheet.title
        assert [a["class"] for tag, a in found.elements if tag == "td" and "class" in a] == ["word slower"] * 6

    def test_what_follows_from_the_figures_is_said(self):
        run = training(4, extra={2: {"forward": 8}}, noise=0)
        assert [words for words in read(run).texts["p"] if words.startswith("rank 2 is slower than the others: 28.00")]

    def test_the_stack_has_what_each_phase_itself_takes(self):
        found = read(RUN, include_warmup=True).data
        [stack] = [chart for chart in found["charts"] if chart["kind"] == "stack"]
        assert found["phases"] == ["data", "forward", "forward/blocks", "backward", "other"]
        assert (found["unit"], found["digits"], stack["steps"]) == ("ms", 2, [100, 200, 300])
        assert stack["values"] == [[15, 5, 5.5], [15, 5, 5.5], [45, 15, 16.5], [60, 20, 22], [15, 5, 5.5]]

    @given(ranks=runs, include=st.booleans())
    def test_the_stack_is_the_wall_time(self, ranks, include):
        run = Run(Path("run"), ranks, {}, 0)
        found = summarize(run, include_warmup=include)
        for chart in read(run, include_warmup=include).data["charts"]:
            if chart["kind"] == "stack":
                unit = text.Unit(found.per_step(found.wall))
                for index, column in enumerate(zip(*chart["values"], strict=True)):
                    wall, steps = found.timeline.wall[index], found.timeline.steps[index]
                    assert sum(column) == pytest.approx(wall / steps * unit.scale if steps else 0, rel=1e-4)

    def test_throughput_is_that_of_all_ranks(self):
        records = [record(10 * i, {"a": 1}, wall=2, samples=80) for i in range(1, 5)]
        run = ranks_of(r0=records, r1=records, r2=records[:3])
        assert charts(run)["Throughput"]["values"] == [120, 120, 80]

    def test_memory_is_the_highest_peak_of_any_rank(self):
        run = ranks_of(
            r0=[record(10 * i, {}, wall=2, peak=i) for i in range(1, 5)],
            r1=[record(10 * i, {}, wall=2, peak=6 - i) for i in range(1, 5)],
        )
        assert charts(run)["Memory, peak"]["values"] == [4, 3, 4]

    def test_what_there_is_none_of_is_not_drawn(self):
        assert list(charts(run_of([record(10, {"a": 1}, wall=2)]))) == ["Time per step"]
        assert charts(run_of([record(0, {"a": 1}, wall=2, samples=8, peak=1)])) == {}

    def test_ranks_against_their_median(self):
        run = training(8, extra={5: {"forward": 8}}, noise=0)
        heat = charts(run)["Ranks"]
        assert heat["ranks"] == list(range(8))
        assert heat["usual"] == [2, 20, 3, 38, 2]
        assert [[round(more, 4) for more in column] for column in heat["more"]] == [
            [0, 8, 0, -8, 0] if rank == 5 else [0] * 5 for rank in range(8)
        ]

    def test_of_two_ranks_the_median_is_in_between(self):
        heat = charts(training(2, extra={1: {"forward": 8}}, noise=0))["Ranks"]
        assert [[round(more, 4) for more in column] for column in heat["more"]] == [[0, -4, 0, 4, 0], [0, 4, 0, -4, 0]]

    def test_the_steps_are_those_that_were_counted(self):
        def steps(*numbers, again=(), every=None):
            processes = [[record(step, {"a": 1}, wall=1) for step in series] for series in (numbers, again) if series]
            return charts(run_of(*processes, record_every_n_steps=every))["Time per step"]["steps"]

        assert steps(50, 100, 150, 163) == [100, 150, 163]
        assert steps(10_050, 10_100, 10_150) == [10_100, 10_150]
        # A process that goes on counting, and one that counts anew.
        assert steps(50, 100, 150, again=(200, 250, 300)) == [150, 200, 250, 300]
        assert steps(50, 100, 150, again=(50, 100, 150)) == [50, 100, 150, 200]

    def test_two_runs_have_one_list_of_phases(self):
        before, after = (
            run_of([record(10, {"old": 1, "a": 1}, wall=3)]),
            run_of([record(10, {"a": 1, "new": 1}, wall=3)]),
        )
        found = Reader(compared(before, after)).data
        assert found["phases"] == ["a", "new", "old", "other"]
        assert [chart["values"] for chart in found["charts"]] == [
            [[100], [0], [100], [100]],
            [[100], [100], [0], [100]],
        ]

    @given(processes=st.lists(lists_of_records().filter(bool), min_size=1, max_size=3))
    def test_whatever_the_records_say_there_is_a_page(self, processes):
        for run in (run_of(*processes), run_of_ranks(dict(enumerate(processes)))):
            found = read(run)
            assert "wall time" in found.texts["th"]
            assert found.data["phases"][-1] == "other"

    def test_sums_without_bound_are_no_numbers_and_not_drawn(self):
        run = run_of([record(i, {"a": 1e308}, wall=1e308) for i in range(1, 2 * POINTS)])
        assert set(charts(run)["Time per step"]["values"][0]) == {0.0}


class TestThinning:
    columns = st.integers(1, 60).flatmap(
        lambda number: st.lists(st.lists(st.integers(0, 99), min_size=number, max_size=number), min_size=6, max_size=6)
    )

    @given(columns=columns, points=st.integers(1, 20))
    def test_nothing_is_lost(self, columns, points):
        steps, wall, samples, accounted, seconds, peaks = columns
        found, size = thin(Intervals(steps, wall, samples, accounted, {("a",): seconds}, peaks), points)
        assert len(found.steps) <= points
        assert len(found.steps) == -(-len(steps) // size)
        for thinned, column in [
            (found.steps, steps), (found.wall, wall), (found.samples, samples), (found.accounted, accounted),
            (found.seconds["a",], seconds),
        ]:  # fmt: skip
            assert list(thinned) == [sum(column[i : i + size]) for i in range(0, len(column), size)]
        assert list(found.peaks) == [max(peaks[i : i + size]) for i in range(0, len(peaks), size)]

    def test_no_more_than_is_needed(self):
        def intervals(number):
            return Intervals([1.0] * number, [1.0] * number, [], [], {}, [])

        assert thin(intervals(POINTS))[1] == 1
        assert thin(intervals(POINTS + 1))[1] == 2

    def test_a_page_of_20_000_snapshots_has_2_000_points_and_says_so(self):
        run = run_of([record(50 * i, {"a": 1 + i % 7}, wall=9, samples=i, peak=i % 5) for i in range(1, 20_002)])
        found = charts(run)
        for chart in found.values():
            assert len(chart["steps"]) == 2000
            assert (chart["steps"][0], chart["steps"][-1]) == (550, 1_000_050)
        assert len(found["Memory, peak"]["values"]) == 2000
        assert found["Time per step"]["subtitle"].endswith("; each point is the sum of 10 snapshots, of 20,000")
        assert "each point" not in charts(RUN)["Time per step"]["subtitle"]
        a, other = found["Time per step"]["values"]
        assert sum(a) / 2000 == pytest.approx(1000 * sum(1 + i % 7 for i in range(2, 20_002)) / 20_000 / 50, rel=1e-5)
        assert sum(a) + sum(other) == pytest.approx(2000 * 9 * 1000 / 50)

    def test_the_last_point_may_be_of_fewer(self):
        found = charts(run_of([record(50 * i, {"a": i % 2}, wall=1, samples=8) for i in range(1, 2 * POINTS)]))
        for chart in found.values():
            assert (len(chart["steps"]), chart["steps"][-2:]) == (
                POINTS - 1,
                [50 * 2 * POINTS - 150, 50 * 2 * POINTS - 50],
            )
        found = charts(run_of([record(50 * i, {"a": i % 2}, wall=1, samples=8) for i in range(1, 2 * POINTS + 1)]))
        for chart in found.values():
            assert (len(chart["steps"]), chart["steps"][-2:]) == (POINTS, [50 * 2 * POINTS - 50, 50 * 2 * POINTS])
        assert len(found["Throughput"]["values"]) == len(found["Time per step"]["values"][0]) == POINTS


class TestNames:
    @staticmethod
    def check(name):
        plain = [tag for tag, _ in read(with_name("plain")).elements]
        run = with_name(name)
        for shown in (report_page(run, summarize(run)), compared(run, run)):
            found = Reader(shown)
            assert {printable(name), f"outer/{printable(name)}"} <= set(found.data["phases"])
            assert not set("<>&") & set(found.texts["script"][0])
            # In a file of records a slash separates nested phases, whatever is beside it.
            *outer, last = name.split("/")
            for depth in (len(outer), len(outer) + 1):
                assert "\u2003" * depth + printable(last) in found.texts["th"]
            assert found.texts["script"][1:] == [
                (FILES / file).read_text(encoding="utf-8") for file in ("echarts/echarts.min.js", "page.js")
            ]
            shown.encode("utf-8")
        if not outer:
            assert [tag for tag, _ in read(run).elements] == plain
        assert {tag for tag, _ in read(run).elements} == set(plain)

    @pytest.mark.parametrize("name", HOSTILE, ids=ascii)
    def test_are_text(self, name):
        self.check(name)

    @given(st.text(min_size=1, max_size=20).filter(lambda name: "/" not in name and name != "outer"))
    @example("< script>")
    def test_whatever_they_are(self, name):
        self.check(name)

    @given(st.lists(st.text(max_size=20), max_size=3), st.text(max_size=20))
    def test_so_is_the_command(self, command, path):
        run = Run(Path(path), RUN.ranks, {"command": ["train.py", *command]}, 0)
        found = read(run)
        [title] = text.report_sheet(run, summarize(run)).title
        assert found.texts["p"][0] == title
        assert found.texts["title"] == [f"mlvbench: {title}"]
        assert [tag for tag, _ in found.elements] == [tag for tag, _ in read(RUN).elements]
