"""Figures as words: a sheet of rows and notes for the terminal, and the same as Markdown."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlvbench.report.diagnosis import diagnose
from mlvbench.report.ranks import can_tell, spreads, stopped_early, stragglers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mlvbench.records.run import Run
    from mlvbench.report.compare import Comparison
    from mlvbench.report.intervals import Path
    from mlvbench.report.ranks import Straggler
    from mlvbench.report.summary import Summary

OTHER = "other"
WALL = "wall time"
# Of many ranks that have something in common so many are named.
LISTED = 3
_PLAIN_NAME = re.compile(r"[A-Za-z0-9](?:[\w .:+-]*[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True)
class Column:
    """A column of numbers.

    Attributes:
        title: What they are, with the unit.
        cells: A text for each row.
        worth: Where there is no room for all columns, those of lower worth go first.
    """

    title: str
    cells: Sequence[str]
    worth: int


@dataclass(frozen=True)
class Sheet:
    """What a reader sees, whatever it is drawn with. All text is printable.

    Attributes:
        title: Lines above the table.
        names: The first column: how deep a phase is nested, and its name; the last is that of the whole.
        columns: The others.
        bars: For each row a number up to 1, of which nothing is drawn below 0; empty where nothing is drawn at all.
        advice: Sentences on what follows from the figures, below the table.
        notes: Lines at the end.
    """

    title: Sequence[str]
    names: Sequence[tuple[int, str]]
    columns: Sequence[Column]
    bars: Sequence[float] = field(default_factory=list)
    advice: Sequence[str] = field(default_factory=list)
    notes: Sequence[str] = field(default_factory=list)


def printable(text: str) -> str:
    r"""Returns text that does nothing to a terminal: what it would obey is shown as escapes.

    >>> printable("a\x1b[31m")
    'a\\x1b[31m'
    """
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


# The report -----------------------------------------------------------------------------------------------


def report_sheet(run: Run, summary: Summary) -> Sheet:
    """Lays out where the time of a run went."""
    unit = Unit(summary.per_step(summary.wall))
    phases = summary.phases
    inclusive = [*(phase.seconds for phase in phases), summary.other, summary.wall]
    own = [*(phase.self_seconds for phase in phases), summary.other, summary.wall]
    deviations = [*(phase.deviation for phase in phases), None, summary.wall_deviation]
    columns = [
        Column(f"self {unit.name}/step", [unit.show(summary.per_step(seconds)) for seconds in own], 5),
        Column("share", [f"{summary.share(seconds):.1%}" for seconds in own], 6),
        Column(f"mean {unit.name}/step", [unit.show(summary.per_step(seconds)) for seconds in inclusive], 4),
        Column("sd", [unit.show(deviation) for deviation in deviations], 0),
        *_columns_of_ranks(summary, unit),
    ]
    largest = max((summary.share(seconds) for seconds in own[:-1]), default=0.0)
    return Sheet(
        title=[_title(run)],
        names=[*_names(phase.path for phase in phases), (0, OTHER), (0, WALL)],
        columns=columns if summary.per_step(1.0) is not None else columns[1:2],
        bars=[*(summary.share(seconds) / largest if largest > 0 else 0.0 for seconds in own[:-1]), 0.0],
        advice=[*([said] if (said := diagnosis_of(run, summary)) else []), *_advice_on_ranks(run, summary)],
        notes=_notes(run, summary),
    )


def diagnosis_of(run: Run, summary: Summary) -> str | None:
    """Returns the sentence of diagnosis, if there is one; none of shares in which other threads have a part."""
    if summary.overlap > 0:
        return None
    return diagnose(summary, accelerator=_accelerator(run, summary) is not None)


def _notes(run: Run, summary: Summary) -> list[str]:
    notes = []
    if summary.samples_per_wall > 0:
        notes.append(f"{_rate(summary.samples_per_wall)} samples/s over the wall time")
    if summary.samples_per_accounted > 0:
        notes.append(f"{_rate(summary.samples_per_accounted)} samples/s over the accounted time (outermost phases)")
    if summary.memory_peak > 0:
        notes.append(f"{summary.memory_peak:.2f} GB of device memory at the peak")
    notes.append(f"{_steps(summary)} in {_snapshots(summary)}")
    if summary.wall_deviation is not None:
        notes.append("self, share: without nested phases; mean: with them; sd: its standard deviation over snapshots")
    if sum(steps > 0 for steps in summary.steps.values()) > 1:
        notes.append("min, max: the least and the most of the ranks' means; slowest: the rank that has the most")
        if not can_tell(summary):
            notes.append(
                "too few snapshots to tell whether a rank is slower than the others: run with a smaller --every"
            )
    if summary.overlap > 0:
        notes.append(
            f"phases add up to {summary.share(summary.wall + summary.overlap):.1%} of the wall time with other: "
            "those of other threads overlap the loop, or one began before the first snapshot"
        )
    if run.torn:
        notes.append(f"{_count(run.torn, 'torn line')} skipped")
    if accelerator := _accelerator(run, summary):
        notes.append(f"timing: {_word(run.description.get('timing')) or 'not known'} ({accelerator})")
    return notes


def _steps(summary: Summary) -> str:
    least, most = min(summary.steps.values()), max(summary.steps.values())
    if len(summary.steps) == 1:
        return _count(most, "step")
    steps = _count(most, "step") if least == most else f"{least:,.0f} to {_count(most, 'step')}"
    return f"{steps} on each of {len(summary.steps):,} ranks"


def _snapshots(summary: Summary) -> str:
    snapshots = _count(summary.snapshots, "snapshot")
    if not summary.warm_up:
        return f"{snapshots}, warm-up included"
    if summary.warm_up_counted:
        return f"{snapshots}, {summary.warm_up:,} of them warm-up"
    left_out = f"{snapshots}; {summary.warm_up:,} more of warm-up left out"
    if summary.snapshots >= 2 * summary.warm_up:
        return left_out
    return f"{left_out} (--include-warmup counts it; with a smaller --every there are more)"


def _accelerator(run: Run, summary: Summary) -> str | None:
    """The name of the device if it is something else than the CPU."""
    if device := _word(run.description.get("device")):
        return None if device.partition(":")[0] == "cpu" else device
    return "an accelerator" if summary.memory_peak > 0 else None


def _word(value: object) -> str | None:
    """A setting as it is if it is a word, such as cuda:0."""
    return value if isinstance(value, str) and re.fullmatch(r"[a-z0-9:_-]{1,40}", value) else None


# The ranks ------------------------------------------------------------------------------------------------


def _columns_of_ranks(summary: Summary, unit: Unit) -> list[Column]:
    rows = [row for row in spreads(summary) if row is not None]
    if not rows:
        return []
    return [
        Column("min", [unit.show(row.minimum) for row in rows], 1),
        Column("max", [unit.show(row.maximum) for row in rows], 3),
        Column("slowest", ["" if row.slowest is None else f"rank {row.slowest}" for row in rows], 2),
    ]


def _advice_on_ranks(run: Run, summary: Summary) -> list[str]:
    slow, (early, end) = stragglers(summary), stopped_early(run, summary)
    return [*([_slower(slow)] if slow else []), *([_early(early, end)] if early else [])]


def _slower(ranks: Sequence[Straggler]) -> str:
    unit = Unit(max(straggler.seconds for straggler in ranks))
    spend = [
        f"{unit.show(straggler.seconds)} {unit.name} a step in {_place(straggler.path)}, "
        f"where the median of the others is {unit.show(straggler.others)} ({_p_is(straggler.p)})"
        for straggler in ranks
    ]
    if len(ranks) == 1:
        return f"rank {ranks[0].rank} is slower than the others: {spend[0]}"
    named = [f"rank {straggler.rank}: {words}" for straggler, words in zip(ranks, spend, strict=True)]
    return f"{len(ranks):,} ranks are slower than the others: {_few(named, '; ')}"


def _early(ranks: Mapping[int, float], end: float) -> str:
    if len(ranks) == 1:
        [(rank, step)] = ranks.items()
        return f"rank {rank} stopped early, at step {step:,.0f}, and the last at step {end:,.0f}"
    named = [f"rank {rank} at step {step:,.0f}" for rank, step in sorted(ranks.items(), key=lambda item: item[1])]
    return f"{len(ranks):,} ranks stopped early: {_few(named, ', ')}; the last at step {end:,.0f}"


def _place(path: Path) -> str:
    # As in Markdown, where a name must not be markup in a sentence either.
    return _marked(printable("/".join(path))) if path else "code that no phase covers"


def _few(words: Sequence[str], separator: str) -> str:
    """The first few, and how many there are more."""
    more = len(words) - LISTED
    return separator.join([*words[:LISTED], *([f"and {more:,} more"] if more > 0 else [])])


# The comparison -------------------------------------------------------------------------------------------


def comparison_sheet(before: Run, after: Run, comparison: Comparison) -> Sheet:
    """Lays out two runs side by side."""
    rows = [*comparison.phases, comparison.other, comparison.wall]
    unit = Unit(max(comparison.wall.before or 0.0, comparison.wall.after or 0.0))
    return Sheet(
        title=[f"before  {_title(before)}", f"after   {_title(after)}"],
        names=[*_names(phase.path for phase in comparison.phases), (0, OTHER), (0, WALL)],
        columns=[
            Column(f"before {unit.name}/step", [unit.show(row.before) for row in rows], 1),
            Column(f"after {unit.name}/step", [unit.show(row.after) for row in rows], 2),
            Column("ratio", [_ratio(row.ratio) for row in rows], 3),
            Column("p", [_p(row.p) for row in rows], 0),
            Column("", [row.verdict for row in rows], 4),
        ],
        notes=[*_comparison_notes(comparison), *_timings(before, after)],
    )


def _comparison_notes(comparison: Comparison) -> list[str]:
    before, after = comparison.samples_per_wall
    notes = []
    if before > 0 and after > 0:
        notes.append(
            f"{_rate(before)} samples/s over the wall time before, {_rate(after)} after: {after / before:.2f}x"
        )
    per_step = comparison.samples_per_step
    if min(per_step) > 0 and abs(per_step[1] / per_step[0] - 1) > 0.01:
        notes.append(
            f"{_rate(per_step[0])} samples a step before, {_rate(per_step[1])} after: compare samples/s, not steps"
        )
    notes.append(
        f"phases with what is nested in them; permutation test on {comparison.blocks[0]:,} blocks of snapshots "
        f"before and {comparison.blocks[1]:,} after"
    )
    return notes


def _timings(before: Run, after: Run) -> list[str]:
    """Says so where the two were not timed alike: the same run gives other figures then."""
    timings = [_word(run.description.get("timing")) for run in (before, after)]
    on_accelerator = any(_word(run.description.get("device")) not in (None, "cpu") for run in (before, after))
    if timings[0] == timings[1] or None in timings or not on_accelerator:
        return []
    return [f"timing: {timings[0]} before, {timings[1]} after: times of phases mean different things in the two"]


def verdict(comparison: Comparison, percent: float) -> str:
    """Returns in a line whether the second run is slower by more than so many percent and by more than noise."""
    wall = comparison.wall
    if wall.p is None:
        blocks = f"{comparison.blocks[0]:,} and {comparison.blocks[1]:,}"
        return f"too few snapshots to tell whether it is slower: {blocks}, 4 and 4 would do; run with a smaller --every"
    change = f"{abs(comparison.slowdown):.1f} % {'slower' if comparison.slowdown > 0 else 'faster'} a step"
    if comparison.is_slower(percent):
        return f"{change}: more than {percent:g} %, and more than noise ({_p_is(wall.p)})"
    if comparison.slowdown > percent:
        return f"{change}: more than {percent:g} %, but within noise ({_p_is(wall.p)})"
    return f"{change}: not slower by more than {percent:g} %"


# Markdown -------------------------------------------------------------------------------------------------


def markdown(sheet: Sheet) -> str:
    """Returns a sheet as a table to paste into a pull request."""
    rows = [["phase", *(column.title for column in sheet.columns)]]
    rows.append(["---", *("---:" if column.title else "---" for column in sheet.columns)])
    for index, (depth, name) in enumerate(sheet.names):
        rows.append(["&nbsp;&nbsp;" * depth + _marked(name), *(column.cells[index] for column in sheet.columns)])
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    notes = "\n".join(f"- {note}" for note in sheet.notes)
    paragraphs = ["  \n".join(map(_code, sheet.title)), table, *sheet.advice, notes]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def _marked(name: str) -> str:
    """A name that Markdown, HTML and whoever looks for @mentions leave alone."""
    return name if _PLAIN_NAME.fullmatch(name) and "__" not in name else _code(name)


def _code(text: str) -> str:
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    # A table ends its cell at a bar, also within code, unless an odd number of backslashes is before it.
    text = re.sub(r"(\\*)\|", r"\1\1\\|", text)
    space = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) else ""
    return f"{fence}{space}{text}{space}{fence}"


# Words and numbers ----------------------------------------------------------------------------------------


class Unit:
    """One unit and one number of digits for all seconds a step of a table, by the largest of them.

    Attributes:
        name: Such as ms.
        scale: How many of it a second has.
        digits: How many are shown after the point.
    """

    def __init__(self, largest: float | None) -> None:
        seconds = largest or 0.0
        self.name, self.scale = ("s", 1.0) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)
        shown = seconds * self.scale
        self.digits = 1 if shown >= 100 else 2 if shown >= 10 else 3

    def show(self, seconds: float | None) -> str:
        """Returns seconds in it; nothing where there are none."""
        # The sum takes the sign from a zero.
        return "" if seconds is None else f"{round(seconds * self.scale, self.digits) + 0.0:,.{self.digits}f}"


def _title(run: Run) -> str:
    command = run.description.get("command")
    title = printable(os.fspath(run.path))
    if isinstance(command, list) and command:
        title += f"  {printable(shlex.join(map(str, command)))}"
    return title


def _names(paths: Iterable[Path]) -> list[tuple[int, str]]:
    return [(len(path) - 1, printable(path[-1])) for path in paths]


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def _p(p: float | None) -> str:
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _p_is(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _count(number: float, noun: str) -> str:
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"
