"""A report or a comparison as one file of HTML that opens in a browser, without a network.

The table, its notes and what follows from the figures are HTML; the charts are drawn by Apache ECharts, which is in the
page, from the data that is in it. The files that a page is made of are in `page_files`.

Names are data and never markup: in HTML they are escaped, in the data is the sign that could end it, `page.js` puts
them only where text is, and a page's policy lets no script run but the two that it was made with.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from html import escape
from itertools import accumulate
from pathlib import Path
from statistics import median
from string import Template
from typing import TYPE_CHECKING, Any

from mlvbench.report.ranks import shares
from mlvbench.report.summary import account, in_order
from mlvbench.report.text import OTHER, Unit, comparison_sheet, printable, report_sheet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mlvbench.records.run import Run
    from mlvbench.report.compare import Comparison
    from mlvbench.report.intervals import Intervals
    from mlvbench.report.intervals import Path as Place
    from mlvbench.report.summary import Summary
    from mlvbench.report.text import Sheet

    # A chart, or all of them, as `page.js` reads it.
    Data = dict[str, Any]

# More points than a screen has tell nothing more, and are slow to draw.
POINTS = 2_000
ECHARTS = "6.1.0"
# Of what is drawn; the table has all digits that it has in the terminal.
DIGITS = 6
BEGINS = "<!DOCTYPE html>"
"""What the file of a page begins with."""
_FILES = Path(__file__).with_name("page_files")
_LICENCES = ("NOTICE", "LICENSE", "LICENSE-d3", "LICENSE-zrender")


def report_page(run: Run, summary: Summary) -> str:
    """Returns the page of a run: its time a step over the run, throughput, memory, the table, and the ranks."""
    unit = Unit(summary.per_step(summary.wall))
    places = [phase.path for phase in summary.phases]
    charts = [_stack(summary, places, unit, "Time per step"), *_lines(summary), *_heat(summary, unit)]
    return _page("Where the time of a step goes", report_sheet(run, summary), _data(places, unit, charts, linked=True))


def comparison_page(runs: tuple[Run, Run], summaries: tuple[Summary, Summary], comparison: Comparison) -> str:
    """Returns the page of two runs: the time a step of each over the run, on one scale, and the table."""
    unit = Unit(max(comparison.wall.before or 0.0, comparison.wall.after or 0.0))
    places = [*in_order([phase.path for summary in summaries[::-1] for phase in summary.phases])]
    charts = [
        {**_stack(summary, places, unit, title), "wide": False}
        for summary, title in zip(summaries, ("Time per step, before", "Time per step, after"), strict=True)
    ]
    sheet = comparison_sheet(*runs, comparison)
    return _page("What became slower or faster", sheet, _data(places, unit, charts, linked=False))


# The data -------------------------------------------------------------------------------------------------


def thin(intervals: Intervals, points: int = POINTS) -> tuple[Intervals, int]:
    """Returns the sums of so many neighbours that no more than `points` intervals are left, and how many those are.

    Nothing is lost, since what intervals have adds up; of the peaks of memory the highest is kept.
    """
    number = len(intervals.steps)
    size = max(math.ceil(number / points), 1)
    if size == 1:
        return intervals, 1
    return intervals.join([range(start, min(start + size, number)) for start in range(0, number, size)]), size


def _data(places: Sequence[Place], unit: Unit, charts: Sequence[Data], *, linked: bool) -> Data:
    return {
        "phases": [*(printable("/".join(place)) for place in places), OTHER],
        "unit": unit.name,
        "digits": unit.digits,
        "linked": linked,
        # Without steps there are none to divide by, and nothing to draw.
        "charts": [chart for chart in charts if chart["steps"]],
    }


def _stack(summary: Summary, places: Sequence[Place], unit: Unit, title: str) -> Data:
    """What each phase itself took a step, and what none covers, so that together they are the wall time."""
    intervals, size = thin(summary.timeline)
    values: list[list[float]] = [[] for _ in range(len(places) + 1)]
    steps = _ends(summary, size)
    for index in range(len(steps)):
        totals = {place: column[index] for place, column in intervals.seconds.items()}
        found = account(totals, intervals.wall[index], intervals.accounted[index])
        scale = unit.scale / intervals.steps[index] if intervals.steps[index] > 0 else 0.0
        for row, place in zip(values, places, strict=False):
            row.append(_short(found.own.get(place, 0.0) * scale))
        values[-1].append(_short(found.other * scale))
    subtitle = f"{unit.name}, of each phase without what is nested in it{_thinned(summary, size)}"
    return {
        "kind": "stack",
        "title": title,
        "subtitle": subtitle,
        "steps": steps,
        "values": values,
        "slider": True,
        "wide": True,
    }


def _lines(summary: Summary) -> list[Data]:
    intervals, size = thin(summary.timeline)
    steps = _ends(summary, size)
    lengths = [len(rank.steps) for rank in summary.ranks.values()]
    charts: list[Data] = []
    if not steps:
        return charts
    if summary.samples > 0:
        # The columns are means over all ranks, of which some may have stopped.
        ranks = [sum(length > index * size for length in lengths) for index in range(len(steps))]
        rates = [
            count * samples / wall if wall > 0 else 0.0
            for count, samples, wall in zip(ranks, intervals.samples, intervals.wall, strict=True)
        ]
        charts.append(_line("Throughput", "samples/s", steps, rates, 0 if max(rates) >= 100 else 2))
    if summary.memory_peak > 0:
        charts.append(_line("Memory, peak", "GB", steps, intervals.peaks, 2))
    return [{**chart, "wide": len(charts) == 1} for chart in charts]


def _line(title: str, unit: str, steps: Sequence[float], values: Iterable[float], digits: int) -> Data:
    return {
        "kind": "line",
        "title": title,
        "subtitle": unit,
        "unit": unit,
        "steps": steps,
        "values": [_short(value) for value in values],
        "digits": digits,
        "slider": False,
    }


def _heat(summary: Summary, unit: Unit) -> list[Data]:
    """What each rank spends in each phase itself, more or less than the median of the ranks.

    In milliseconds and not as a ratio: half as much again in a phase that takes no time is no matter.
    """
    ranks = shares(summary)
    if len(ranks) < 2:
        return []
    rows = [[*(share.own[phase.path] for phase in summary.phases), share.other] for share in ranks.values()]
    usual = [median(column) for column in zip(*rows, strict=True)]
    more = [[_short((own - middle) * unit.scale) for own, middle in zip(row, usual, strict=True)] for row in rows]
    return [
        {
            "kind": "heat",
            "title": "Ranks",
            "subtitle": f"{unit.name} a step that a rank spends more or less in a phase than the median of the ranks",
            "steps": [*ranks],
            "ranks": [*ranks],
            "usual": [_short(middle * unit.scale) for middle in usual],
            "more": more,
            "wide": True,
        }
    ]


def _ends(summary: Summary, size: int) -> list[float]:
    """The steps that the points end with, as the rank counted them that has most snapshots; none without steps."""
    steps = max((intervals.steps for intervals in summary.ranks.values()), key=len)
    if sum(steps) <= 0:
        return []
    ends = [summary.first_step + count for count in accumulate(steps)]
    return [*ends[size - 1 :: size], *(ends[-1:] if len(ends) % size else [])]


def _thinned(summary: Summary, size: int) -> str:
    if size == 1:
        return ""
    return f"; each point is the sum of {size:,} snapshots, of {len(summary.timeline.steps):,}"


def _short(value: float) -> float:
    """A number in as many digits as can be seen; of infinity, which JSON has no word for, nothing."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else 0.0


# The page -------------------------------------------------------------------------------------------------


def _page(heading: str, sheet: Sheet, data: Data) -> str:
    style, script = (_file(name) for name in ("page.css", "page.js"))
    echarts = _file("echarts/echarts.min.js")
    policy = (
        f"default-src 'none'; script-src {_hash(echarts)} {_hash(script)}; style-src {_hash(style)}; "
        "style-src-attr 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )
    # One pass: what is put in is not looked through for more to fill in.
    return Template(_file("page.html")).substitute(
        policy=policy,
        title=escape(f"mlvbench: {sheet.title[0]}"),
        heading=escape(heading),
        runs="\n".join(f'<p class="run">{escape(line)}</p>' for line in sheet.title),
        advice="\n".join(f'<p class="advice">{escape(sentence)}</p>' for sentence in sheet.advice),
        table=_table(sheet),
        notes="\n".join(['<ul class="notes">', *(f"<li>{escape(note)}</li>" for note in sheet.notes), "</ul>"]),
        data=_json(data),
        version=ECHARTS,
        licences=escape("\n\n".join(_file(f"echarts/{name}").strip() for name in _LICENCES)),
        style=style,
        script=script,
        echarts=echarts,
    )


def _table(sheet: Sheet) -> str:
    heads = "".join(f'<th scope="col"{_word(column.title)}>{escape(column.title)}</th>' for column in sheet.columns)
    lines = ["<table>", f'<thead><tr><th scope="col">phase</th>{heads}</tr></thead>', "<tbody>"]
    for index, (depth, name) in enumerate(sheet.names):
        cells = "".join(
            f"<td{_word(column.title, column.cells[index])}>{escape(column.cells[index])}</td>"
            for column in sheet.columns
        )
        lines.append(f'<tr><th scope="row">{"&emsp;" * depth}{escape(name)}</th>{cells}</tr>')
    return "\n".join([*lines, "</tbody>", "</table>"])


def _word(title: str, cell: str = "") -> str:
    """Words to the left, figures to the right; a verdict has its own colour."""
    if title:
        return ""
    return f' class="word {cell}"' if cell in ("slower", "faster") else ' class="word"'


def _json(data: Data) -> str:
    """JSON that nothing in it can end: not a script, not a comment."""
    return (
        json.dumps(data, separators=(",", ":")).replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")
