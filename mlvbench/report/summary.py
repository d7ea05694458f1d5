"""What a run's records say: the tree of phases, what no phase covers, and rates. Pure: from records to numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlvbench.report.intervals import intervals_of, one_after_another, side_by_side, without_warm_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mlvbench.records.run import Run
    from mlvbench.report.intervals import Column, Intervals, Path

# What differences of sums leave of nothing, relative to the sums.
NOISE = 1e-9


@dataclass(frozen=True)
class Phase:
    """A place in the tree of phases, and the time spent there.

    Attributes:
        path: Names from the outermost phase inwards.
        seconds: Inclusive of the phases nested in it, summed over ranks.
        self_seconds: Exclusive of them.
        deviation: Standard deviation, over the snapshots, of the inclusive seconds a step, each snapshot weighed by
            its steps; None where fewer than two snapshots have steps.
    """

    path: Path
    seconds: float
    self_seconds: float
    deviation: float | None


@dataclass(frozen=True)
class Account:
    """Where the seconds of a rank, or of all, went. Own seconds of all phases, and `other`, are `wall + overlap`.

    Attributes:
        seconds: By phase, inclusive of the phases nested in it.
        own: By phase, exclusive of them.
        other: Seconds of the wall time that no phase covers.
        overlap: Seconds by which phases exceed what they cover of the wall time.
    """

    seconds: Mapping[Path, float]
    own: Mapping[Path, float]
    other: float
    overlap: float


@dataclass(frozen=True)
class Summary:
    """A run in figures. Seconds, samples and steps are sums over ranks, so that seconds a step are means over them.

    Self seconds of all phases, and `other`, add up to `wall + overlap`.

    Attributes:
        phases: Each phase followed by what is nested in it, in the order first seen.
        other: Seconds of the wall time that no phase covers.
        wall: Seconds of the clock.
        overlap: Seconds by which phases exceed what they cover of the wall time: those of other threads, and those of
            a phase that began before what is counted here.
        accounted: Seconds that outermost phases on the loop's thread cover.
        wall_deviation: Standard deviation of the wall seconds a step; as for a phase.
        steps: Steps of each rank.
        samples: Samples of all ranks.
        samples_per_wall: Samples a second of wall time: the sum of the ranks' rates.
        samples_per_accounted: Samples a second of accounted time: the sum of the ranks' rates.
        memory_peak: The highest `gpu_mem_peak_gb` of any snapshot, in units of 1e9 bytes; 0.0 without an accelerator.
        snapshots: How many snapshots are in these figures.
        warm_up: How many first ones of a process are among them or, if they are left out, were left out.
        warm_up_counted: Whether they are among them.
        timeline: The snapshots, the ranks' joined: what differs over time.
        ranks: The snapshots of each rank.
        first_step: The step before the first one that counts, as the rank with most snapshots counted; 0 where its
            processes began to count anew.
    """

    phases: Sequence[Phase]
    other: float
    wall: float
    overlap: float
    accounted: float
    wall_deviation: float | None
    steps: Mapping[int, float]
    samples: float
    samples_per_wall: float
    samples_per_accounted: float
    memory_peak: float
    snapshots: int
    warm_up: int
    warm_up_counted: bool
    timeline: Intervals
    ranks: Mapping[int, Intervals]
    first_step: float

    def share(self, seconds: float) -> float:
        """Returns seconds as a share of the wall time; 0.0 where there is none."""
        return seconds / self.wall if self.wall > 0 else 0.0

    def per_step(self, seconds: float) -> float | None:
        """Returns seconds a step; None where no step is counted."""
        steps = sum(self.steps.values())
        return seconds / steps if steps > 0 else None


def summarize(run: Run, *, include_warmup: bool = False) -> Summary:
    """Adds up a run.

    Args:
        run: Records, as `read_run` gives them.
        include_warmup: Whether the first snapshot of each process counts where the process has others.
    """
    every = run.description.get("record_every_n_steps")
    every = every if isinstance(every, int) and every > 0 else None
    ranks: dict[int, Intervals] = {}
    warm_up, memory_peak = 0, 0.0
    for rank, processes in run.ranks.items():
        found = [intervals_of(records, every) for records in processes]
        warm_up += sum(len(intervals.steps) > 1 for intervals in found)
        memory_peak = max([memory_peak, *(max(intervals.peaks) for intervals in found)])
        ranks[rank] = one_after_another(
            found if include_warmup else [without_warm_up(intervals) for intervals in found]
        )
    longest = max(ranks, key=lambda rank: len(ranks[rank].steps))
    return _summary(
        ranks,
        memory_peak=memory_peak,
        warm_up=warm_up,
        warm_up_counted=include_warmup,
        first_step=max(run.ranks[longest][-1][-1]["step"] - sum(ranks[longest].steps), 0.0),
    )


def _summary(
    ranks: Mapping[int, Intervals], *, memory_peak: float, warm_up: int, warm_up_counted: bool, first_step: float
) -> Summary:
    totals: dict[Path, float] = {}
    for intervals in ranks.values():
        for path, column in intervals.seconds.items():
            totals[path] = totals.get(path, 0.0) + sum(column)
    wall = sum(sum(intervals.wall) for intervals in ranks.values())
    accounted = sum(sum(intervals.accounted) for intervals in ranks.values())
    found = account(totals, wall, accounted)
    steps = [intervals.steps for intervals in ranks.values()]
    phases = [
        Phase(
            path,
            seconds,
            found.own[path],
            _deviation([intervals.column(path) for intervals in ranks.values()], steps),
        )
        for path, seconds in found.seconds.items()
    ]
    return Summary(
        phases=phases,
        other=found.other,
        wall=wall,
        overlap=found.overlap,
        accounted=accounted,
        wall_deviation=_deviation([intervals.wall for intervals in ranks.values()], steps),
        steps={rank: sum(intervals.steps) for rank, intervals in ranks.items()},
        samples=sum(sum(intervals.samples) for intervals in ranks.values()),
        samples_per_wall=sum(_rate(intervals.samples, intervals.wall) for intervals in ranks.values()),
        samples_per_accounted=sum(_rate(intervals.samples, intervals.accounted) for intervals in ranks.values()),
        memory_peak=memory_peak,
        snapshots=sum(len(intervals.steps) for intervals in ranks.values()),
        warm_up=warm_up,
        warm_up_counted=warm_up_counted,
        timeline=side_by_side(list(ranks.values())),
        ranks=ranks,
        first_step=first_step,
    )


# From totals to the tree ----------------------------------------------------------------------------------


def account(totals: Mapping[Path, float], wall: float, accounted: float) -> Account:
    """Tells where so many seconds of the clock went.

    Args:
        totals: Seconds by place in the tree of phases, inclusive.
        wall: Seconds of the clock.
        accounted: Those of them that outermost phases on the loop's thread cover.
    """
    tree = _complete(totals)
    inside = _inside(tree)
    outermost = sum(seconds for path, seconds in totals.items() if len(path) == 1)
    covered = sum(seconds for path, seconds in tree.items() if len(path) == 1)
    overlap = max(outermost - accounted, covered - wall, 0.0)
    overlap = overlap if overlap > NOISE * wall else 0.0
    return Account(
        seconds={path: tree[path] for path in in_order(tree)},
        own={path: _self_seconds(path, tree, inside) for path in tree},
        other=max(wall + overlap - covered, 0.0),
        overlap=overlap,
    )


def _complete(totals: Mapping[Path, float]) -> dict[Path, float]:
    """Inclusive seconds by place, without what is only noise, and with every outer phase.

    A phase that has not ended (the run was killed in it) lacks the time of the phases inside it that have.
    """
    nested: dict[str, float] = {}
    for path, seconds in totals.items():
        if len(path) > 1:
            nested[path[-1]] = nested.get(path[-1], 0.0) + seconds
    tree = {
        path: seconds
        for path, seconds in totals.items()
        if len(path) > 1 or path[0] not in nested or abs(seconds) > NOISE * abs(nested[path[0]])
    }
    for path in [*tree]:
        for length in range(1, len(path)):
            tree.setdefault(path[:length], 0.0)
    inside = _inside(tree)
    for path in sorted(inside, key=len, reverse=True):
        if path:
            tree[path] = max(tree[path], sum(tree[child] for child in inside[path]))
    return tree


def _inside(tree: Iterable[Path]) -> dict[Path, list[Path]]:
    """For each phase that has any, the phases directly inside it; for the empty path the outermost ones."""
    inside: dict[Path, list[Path]] = {}
    for path in tree:
        inside.setdefault(path[:-1], []).append(path)
    return inside


def in_order(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields each place once, followed by those inside it; those side by side in the order given."""
    inside = _inside(dict.fromkeys(paths))
    waiting = inside.get((), [])[::-1]
    while waiting:
        path = waiting.pop()
        yield path
        waiting.extend(inside.get(path, [])[::-1])


def _self_seconds(path: Path, tree: Mapping[Path, float], inside: Mapping[Path, Sequence[Path]]) -> float:
    own = tree[path] - sum(tree[child] for child in inside.get(path, []))
    return own if abs(own) > NOISE * abs(tree[path]) else 0.0


def _deviation(seconds: Sequence[Column], steps: Sequence[Column]) -> float | None:
    """The standard deviation of seconds a step over the snapshots of all ranks, each weighed by its steps."""
    count = sum(len(column) - column.count(0) for column in steps)
    if count < 2:
        return None
    weight = sum(map(sum, steps))
    mean = sum(map(sum, seconds)) / weight
    # (s - mean n)² / n is n (s / n - mean)²: as many squared differences as there are steps.
    squares = sum(
        sum([(s - mean * n) * (s - mean * n) / n for s, n in zip(*columns, strict=True) if n])
        for columns in zip(seconds, steps, strict=True)
    )
    return math.sqrt(squares / weight * count / (count - 1))


def _rate(samples: Column, seconds: Column) -> float:
    total = sum(seconds)
    return sum(samples) / total if total > 0 else 0.0
