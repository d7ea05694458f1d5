"""From the records of a process to columns, and from several processes and ranks to one timeline. Pure."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mlvbench.records.schema import Record

    Path = tuple[str, ...]
    Column = Sequence[float]


@dataclass(frozen=True)
class Intervals:
    """Snapshots of a rank as columns, one entry a snapshot in each.

    Attributes:
        steps: Steps of the interval. Zero only where a process has no other.
        wall: Seconds of the clock.
        samples: Samples counted.
        accounted: Seconds that outermost phases on the loop's thread cover.
        seconds: For each place in the tree of phases, inclusive seconds; 0.0 where the phase did not end.
        peaks: The most device memory, in units of 1e9 bytes; 0.0 without an accelerator.
    """

    steps: Column
    wall: Column
    samples: Column
    accounted: Column
    seconds: dict[Path, Column]
    peaks: Column

    def column(self, path: Path) -> Column:
        """Returns a phase's seconds: zeros where it is not here."""
        return self.seconds.get(path) or [0.0] * len(self.steps)

    def join(self, groups: Sequence[range]) -> Intervals:
        """Returns one interval for each group of consecutive ones."""
        return self.apply(
            lambda column: [sum(column[group.start : group.stop]) for group in groups],
            lambda peaks: [max(peaks[group.start : group.stop], default=0.0) for group in groups],
        )

    def apply(self, change: Callable[[Column], Column], change_peaks: Callable[[Column], Column]) -> Intervals:
        """Returns intervals whose every column is changed alike, but that of the peaks, which do not add up."""
        seconds = {path: change(column) for path, column in self.seconds.items()}
        steps, wall, samples, accounted = map(change, (self.steps, self.wall, self.samples, self.accounted))
        return Intervals(steps, wall, samples, accounted, seconds, change_peaks(self.peaks))


def intervals_of(records: Sequence[Record], every: int | None = None) -> Intervals:
    """Turns the records of one process into columns.

    A snapshot in whose interval no step ended (the tail of a run, the same step twice) is joined to the one before,
    or to the one after if it is the first, so that its seconds count.

    Args:
        records: Oldest first.
        every: The steps between two snapshots where they are known.
    """
    steps = steps_of([record["step"] for record in records], every)
    columns = _columns(records)
    seconds = _by_place(columns)
    samples = columns["samples"]
    accounted = _accounted(samples, columns.get("samples_per_sec"), seconds)
    peaks = columns.get("gpu_mem_peak_gb") or [0.0] * len(steps)
    intervals = Intervals(steps, columns["wall_sec"], samples, accounted, seconds, peaks)
    return intervals.join(_groups(steps)) if min(steps) == 0 else intervals


def _columns(records: Sequence[Record]) -> dict[str, Column]:
    """The values by key, 0.0 where a record lacks it."""
    keys: dict[str, None] = {}
    for record in records:
        if not record.keys() <= keys.keys():
            keys.update(dict.fromkeys(record))
    if all(len(record) == len(keys) for record in records):  # as nearly always, and several times as fast
        rows = map(itemgetter(*keys), records)
        # Side by side in memory they are read several times as fast.
        return {key: array("d", column) for key, column in zip(keys, zip(*rows, strict=True), strict=True)}
    return {key: [record.get(key, 0.0) for record in records] for key in keys}


def _by_place(columns: Mapping[str, Column]) -> dict[Path, Column]:
    """The columns of seconds by place in the tree: a name alone is the phase outside of any other phase.

    `t_features` has all the seconds of "features", and `t_train/features` those of them inside "train".
    """
    seconds = {tuple(key[2:].split("/")): column for key, column in columns.items() if key.startswith("t_")}
    for path in [path for path in seconds if len(path) > 1]:
        if (top := path[-1:]) in seconds:
            seconds[top] = [a - b for a, b in zip(seconds[top], seconds[path], strict=True)]
    return seconds


def steps_of(numbers: Sequence[float], every: int | None = None) -> list[float]:
    """Returns how many steps each interval of a process has, from the numbers of the steps they end with.

    What came before the first snapshot is not known: a run that is resumed at step 10,000 did not do 10,000 steps.
    The first interval has therefore as many as are usual, and no more than its number says; so has one after which
    the numbers start again.
    """
    differences = [after - before for before, after in pairwise(numbers)]
    usual = every or median([difference for difference in differences if difference > 0])
    first = [max(min(number, usual if len(numbers) > 1 else number), 0) for number in numbers]
    return [first[0], *(d if d >= 0 else again for d, again in zip(differences, first[1:], strict=True))]


def _accounted(samples: Column, rates: Column | None, seconds: Mapping[Path, Column]) -> Column:
    """Seconds that outermost phases of the loop's thread cover: the rate tells where there were samples."""
    if rates is not None and min(samples) > 0:
        return [count / rate if rate > 0 else 0.0 for count, rate in zip(samples, rates, strict=True)]
    outermost = [column for path, column in seconds.items() if len(path) == 1]
    covered = [sum(row) for row in zip(*outermost, strict=True)] or [0.0] * len(samples)
    if rates is None:
        return covered
    return [
        covering if count <= 0 else count / rate if rate > 0 else 0.0
        for count, rate, covering in zip(samples, rates, covered, strict=True)
    ]


def _groups(steps: Sequence[float]) -> list[range]:
    """Ranges of intervals, each with one that has steps, if any has."""
    starts = [index for index, count in enumerate(steps) if count > 0] or [0]
    return [range(start, end) for start, end in zip([0, *starts[1:]], [*starts[1:], len(steps)], strict=True)]


def without_warm_up(intervals: Intervals) -> Intervals:
    """Returns the intervals of a process but its first one, where there are others."""
    if len(intervals.steps) < 2:
        return intervals
    later = intervals.apply(lambda column: column[1:], lambda peaks: peaks[1:])
    # What there was in the warm-up alone, such as compiling, is left out with it.
    gone = [path for path, column in later.seconds.items() if intervals.seconds[path][0] and not any(column)]
    for path in gone:
        del later.seconds[path]
    return later


# Several processes, several ranks -------------------------------------------------------------------------


def one_after_another(processes: Sequence[Intervals]) -> Intervals:
    """Returns the intervals of all processes of a rank."""
    if len(processes) == 1:
        return processes[0]
    return Intervals(
        [steps for process in processes for steps in process.steps],
        [wall for process in processes for wall in process.wall],
        [samples for process in processes for samples in process.samples],
        [accounted for process in processes for accounted in process.accounted],
        {
            path: [seconds for process in processes for seconds in process.column(path)]
            for path in dict.fromkeys(path for process in processes for path in process.seconds)
        },
        [peak for process in processes for peak in process.peaks],
    )


def side_by_side(ranks: Sequence[Intervals]) -> Intervals:
    """Returns the mean of the ranks' first intervals, of their second ones, and so on; of the peaks the highest.

    Ranks wait for each other at every step: their snapshots of the same time are not independent of each other.
    """

    def mean(columns: Iterable[Column]) -> Column:
        return [sum(row) / len(ranks) for row in zip_longest(*columns, fillvalue=0.0)]

    return Intervals(
        mean(intervals.steps for intervals in ranks),
        mean(intervals.wall for intervals in ranks),
        mean(intervals.samples for intervals in ranks),
        mean(intervals.accounted for intervals in ranks),
        {
            path: mean(intervals.column(path) for intervals in ranks)
            for path in dict.fromkeys(path for intervals in ranks for path in intervals.seconds)
        },
        [max(row) for row in zip_longest(*(intervals.peaks for intervals in ranks), fillvalue=0.0)],
    )


def median(values: Sequence[float]) -> float:
    """Returns the middle value, the higher one of two; infinity where there is none."""
    return sorted(values)[len(values) // 2] if values else math.inf
