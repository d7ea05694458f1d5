"""Two runs side by side, and whether they differ by more than their own noise. Pure: from summaries to numbers."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from mlvbench.report.intervals import median
from mlvbench.report.summary import NOISE, in_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlvbench.report.intervals import Intervals, Path
    from mlvbench.report.summary import Summary

# A difference is more than noise if one as large would come by chance less often than this.
LEVEL = 0.05
# So many ways to split the snapshots are all tried; of more, so many are drawn.
SPLITS = 5_000
# More blocks would tell little more, and take longer.
BLOCKS = 40


@dataclass(frozen=True)
class Difference:
    """A phase, or the whole, in two runs.

    Attributes:
        path: Names from the outermost phase inwards; empty for the whole and for what no phase covers.
        before: Inclusive seconds a step in the first run; None where the phase is not in it.
        after: The same in the second.
        p: How likely a difference at least as large is, in either direction, were the runs alike; None where the
            phase is in one run only, and where no difference could be more than noise.
    """

    path: Path
    before: float | None
    after: float | None
    p: float | None

    @property
    def ratio(self) -> float | None:
        """`after` over `before`; None where that says nothing."""
        return self.after / self.before if self.after is not None and self.before else None

    @property
    def verdict(self) -> str:
        """One of "new", "gone", "too few snapshots", "within noise", "slower", "faster"."""
        if self.before is None:
            return "new"
        if self.after is None:
            return "gone"
        if self.p is None:
            return "too few snapshots"
        if self.p >= LEVEL:
            return "within noise"
        return "slower" if self.after > self.before else "faster"


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    Attributes:
        phases: Those of the second run, each followed by what is nested in it, and those that are gone.
        other: What no phase covers.
        wall: The whole step.
        blocks: How many blocks of consecutive snapshots the test had of each run.
        samples_per_wall: Samples a second of wall time, before and after.
        samples_per_step: Samples a step and rank, before and after.
    """

    phases: Sequence[Difference]
    other: Difference
    wall: Difference
    blocks: tuple[int, int]
    samples_per_wall: tuple[float, float]
    samples_per_step: tuple[float, float]

    def is_slower(self, percent: float) -> bool:
        """Tells whether a step takes longer by more than so many percent, and by more than noise."""
        return self.wall.verdict == "slower" and self.slowdown > percent

    @property
    def slowdown(self) -> float:
        """By how many percent a step takes longer; negative if it is faster."""
        return 100 * ((self.wall.ratio or 1.0) - 1)


def compare(before: Summary, after: Summary) -> Comparison:
    """Compares two runs that both have steps.

    The wall time of a step is one test. The phases are one family: their p-values are corrected for their number, so
    that in one comparison in twenty of equal runs, at most, any phase is called different.

    What varies from run to run and not within one (another machine, its temperature, the seed) is not in the
    snapshots: two runs of the same program may well differ by more than this noise.
    """
    size = _block_size(before.timeline, after.timeline)
    runs = [in_blocks(summary.timeline, size) for summary in (before, after)]
    steps = [step for run in runs for step in run.steps]
    first = len(runs[0].steps)
    rows = _rows(before, after)
    shared = [path for path, times in rows.items() if None not in times]
    tested = [[second for run in runs for second in run.column(path)] for path in shared]
    uncovered = [wall - covered for run in runs for wall, covered in zip(run.wall, run.accounted, strict=True)]
    *values, p_other = permutation_test([*tested, uncovered], steps, first)
    [p_wall] = permutation_test([[wall for run in runs for wall in run.wall]], steps, first)
    p = dict(zip(shared, values, strict=True))
    return Comparison(
        phases=[Difference(path, *times, p.get(path)) for path, times in rows.items()],
        other=Difference((), before.per_step(before.other), after.per_step(after.other), p_other),
        wall=Difference((), before.per_step(before.wall), after.per_step(after.wall), p_wall),
        blocks=(first, len(steps) - first),
        samples_per_wall=(before.samples_per_wall, after.samples_per_wall),
        samples_per_step=(before.per_step(before.samples) or 0.0, after.per_step(after.samples) or 0.0),
    )


def permutation_test(quantities: Sequence[Sequence[float]], steps: Sequence[float], first: int) -> list[float | None]:
    """Tests of several quantities whether the first observations differ from the others.

    Were the two runs alike, any split of their snapshots into two groups of these sizes would be as likely as the one
    that was seen; p is the share of the splits whose difference in seconds a step is at least as large. See Fisher,
    *The Design of Experiments* (1935), §21, and Ernst, "Permutation methods: a basis for exact inference", Statistical
    Science 19 (2004). Where the splits are too many they are drawn, and the one that was seen is one of them, so that
    p is never zero: Phipson and Smyth, "Permutation p-values should never be zero" (2010). The split is the same for
    all quantities, and each is compared with the largest of their standardised differences, which corrects for
    looking at many without assuming that they are independent: Westfall and Young, *Resampling-Based Multiple Testing*
    (1993), single-step maxT. Unlike Holm's correction it leaves the smallest possible p as it is, so that four
    snapshots of each run suffice for any number of phases.

    Args:
        quantities: Seconds of each, by observation.
        steps: Steps by observation; observations with more weigh more.
        first: How many of the observations are of the first run.

    Returns:
        For each quantity p in either direction; None for all where no split could give a p below `LEVEL`.
    """
    number = len(steps)
    chosen = min(first, number - first)
    splits = math.comb(number, chosen)
    # Where the groups are of one size, each split has a mirror image with the same difference.
    if chosen == 0 or (2 if 2 * chosen == number else 1) / splits >= LEVEL:
        return [None] * len(quantities)
    columns = [_standardised(column, steps) for column in quantities]
    weight = sum(steps)

    def differences(split: Sequence[int]) -> list[float]:
        inside = sum([steps[i] for i in split])
        scale = weight / (inside * (weight - inside))
        return [abs(sum([column[i] for i in split])) * scale for column in columns]

    observed = differences(range(first) if chosen == first else range(first, number))
    exact = splits <= SPLITS
    tried = combinations(range(number), chosen) if exact else _draw(number, chosen)
    largest = [max(differences(split)) for split in tried]
    seen = 0 if exact else 1
    return [(seen + _at_least(difference, largest)) / (seen + len(largest)) for difference in observed]


def _standardised(column: Sequence[float], steps: Sequence[float]) -> list[float]:
    """What each observation has more than the mean of its steps, in units of the spread; zeros where all are equal."""
    mean = sum(column) / sum(steps)
    more = [seconds - mean * step for seconds, step in zip(column, steps, strict=True)]
    spread = math.sqrt(sum(m * m / step for m, step in zip(more, steps, strict=True)) / sum(steps))
    return [m / spread for m in more] if spread > NOISE * abs(mean) else [0.0] * len(more)


def _draw(number: int, chosen: int) -> Iterator[list[int]]:
    generator = random.Random(0)  # the same runs always compare alike
    return (generator.sample(range(number), chosen) for _ in range(SPLITS - 1))


def _at_least(difference: float, among: Sequence[float]) -> int:
    # Sums in another order differ in their last digits, which must not make of a tie a smaller difference.
    return sum(1 for other in among if other >= difference - NOISE)


def _rows(before: Summary, after: Summary) -> dict[Path, tuple[float | None, float | None]]:
    """Seconds a step of every phase of either run."""
    times = [{phase.path: run.per_step(phase.seconds) for phase in run.phases} for run in (before, after)]
    return {path: (times[0].get(path), times[1].get(path)) for path in in_order([*times[1], *times[0]])}


def _block_size(before: Intervals, after: Intervals) -> float:
    """The least steps of a block, in both runs alike, since short snapshots spread more than long ones."""
    runs = (before, after)
    return max(*(median(run.steps) for run in runs), min(sum(run.steps) for run in runs) / BLOCKS)


def in_blocks(intervals: Intervals, size: float) -> Intervals:
    """Joins consecutive snapshots to blocks of at least so many steps.

    What remains at the end is a block of its own from half that size on, and otherwise part of the last one.
    """
    groups, start, count = [], 0, 0.0
    for index, step in enumerate(intervals.steps):
        count += step
        if count >= size * (1 - NOISE):
            groups.append(range(start, index + 1))
            start, count = index + 1, 0.0
    if groups and count < size / 2:
        groups[-1] = range(groups[-1].start, len(intervals.steps))
    else:
        groups.append(range(start, len(intervals.steps)))
    return intervals.join(groups)
