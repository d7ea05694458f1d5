"""The ranks of a run side by side: how far apart they are, which is slower than the others, which stopped early. Pure.

Ranks that train one model wait for each other, so that the wall time of a step is the same on all, however slow one of
them is. What differs is where they spend it: the slow one in its own work, the others waiting for it. With
`DistributedDataParallel` they wait in `backward`, where gradients are exchanged. A rank that is slow in `backward`
itself is therefore not seen, since the others' `backward` lasts as long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlvbench.report.intervals import median
from mlvbench.report.summary import NOISE, account

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlvbench.records.run import Run
    from mlvbench.report.intervals import Column, Intervals, Path
    from mlvbench.report.summary import Summary

# A rank is slower than the others if noise would call any rank so, in any phase, less often than this.
LEVEL = 0.05
# Processors of one kind differ by a few percent, which nobody can change. As a part of the step.
STRAGGLES = 0.05
# A straggler is an exception. Of the ranks, as many may be.
EXCEPTIONS = 1 / 4
# Consecutive snapshots are joined to so many blocks, lest a spell of some of them count as often as it has snapshots.
BLOCKS = 40
# Where ranks wait for each other, and where none does.
WAITING, WORK = "backward", "data"


@dataclass(frozen=True)
class Share:
    """Where the time of one rank goes, in seconds a step.

    Attributes:
        seconds: By phase, inclusive of the phases nested in it; each phase of the run is there.
        own: By phase, exclusive of them.
        other: What no phase covers.
        wall: The whole step.
    """

    seconds: Mapping[Path, float]
    own: Mapping[Path, float]
    other: float
    wall: float


@dataclass(frozen=True)
class Spread:
    """How far apart the ranks are.

    Attributes:
        minimum: Seconds a step of the fastest rank.
        maximum: Seconds a step of the slowest one.
        slowest: That rank, the first of several; None where all are equal.
    """

    minimum: float
    maximum: float
    slowest: int | None


@dataclass(frozen=True)
class Straggler:
    """A rank that is slower than the others in a phase.

    Attributes:
        rank: Which.
        path: The phase in which it is slower by most; empty for what no phase covers.
        seconds: Seconds a step that it spends there, without nested phases, in the middle one of its blocks of
            snapshots: a spell in which it is slow does not count.
        others: The same of the other ranks, and of those the middle one.
        p: How likely it is that noise makes any rank look so in any phase, at most.
    """

    rank: int
    path: Path
    seconds: float
    others: float
    p: float

    @property
    def excess(self) -> float:
        """By how many seconds a step it is slower."""
        return self.seconds - self.others


def shares(summary: Summary) -> dict[int, Share]:
    """Returns where the time of each rank goes that has steps."""
    found = {}
    for rank, intervals in summary.ranks.items():
        if (steps := sum(intervals.steps)) <= 0:
            continue
        totals = {path: sum(column) / steps for path, column in intervals.seconds.items()}
        wall = sum(intervals.wall) / steps
        own = account(totals, wall, sum(intervals.accounted) / steps)
        found[rank] = Share(
            {phase.path: own.seconds.get(phase.path, 0.0) for phase in summary.phases},
            {phase.path: own.own.get(phase.path, 0.0) for phase in summary.phases},
            own.other,
            wall,
        )
    return found


def spreads(summary: Summary) -> Sequence[Spread | None]:
    """Returns how far apart the ranks are in each phase, in what no phase covers, and in the whole.

    All are None where there are no two ranks with steps.
    """
    ranks = shares(summary)
    phases = [{rank: share.seconds[phase.path] for rank, share in ranks.items()} for phase in summary.phases]
    other = {rank: share.other for rank, share in ranks.items()}
    wall = {rank: share.wall for rank, share in ranks.items()}
    return [_spread(seconds) if len(ranks) > 1 else None for seconds in [*phases, other, wall]]


def _spread(seconds: Mapping[int, float]) -> Spread:
    slowest = max(seconds, key=seconds.__getitem__)
    least, most = min(seconds.values()), seconds[slowest]
    return Spread(least, most, slowest if most - least > NOISE * abs(most) else None)


# Who stopped early ----------------------------------------------------------------------------------------


def stopped_early(run: Run, summary: Summary) -> tuple[dict[int, float], float]:
    """Returns the ranks that stopped before the others, each with its last step, and the others' last step.

    One that is behind by no more than an interval did not: the processes of a run that is ended do not end at once.
    Where most ranks were started again, as they are after an error, one that was not stopped when it last ran. A rank
    with a process more than most is no measure for the others.
    """
    processes = sorted((len(files) for files in run.ranks.values()), reverse=True)
    usual = processes[len(processes) // 2]
    last = {rank: files[-1][-1]["step"] for rank, files in run.ranks.items()}
    end = max(step for rank, step in last.items() if len(run.ranks[rank]) == usual)
    behind = end - _interval(run, summary)
    early = {
        rank: step
        for rank, step in last.items()
        if len(run.ranks[rank]) < usual or (len(run.ranks[rank]) == usual and step < behind)
    }
    return early, end


def _interval(run: Run, summary: Summary) -> float:
    """The usual steps between two snapshots."""
    every = run.description.get("record_every_n_steps")
    if isinstance(every, int) and every > 0:
        return every
    return median(max((intervals.steps for intervals in summary.ranks.values()), key=len))


# Who is slower --------------------------------------------------------------------------------------------


def stragglers(summary: Summary) -> list[Straggler]:
    """Returns the ranks that are slower than the others, the slowest first, each with the phase that makes it so.

    The snapshots of the ranks are paired by their number, and joined to blocks. In each block a rank is among the
    slowest quarter or not; were the ranks alike, it would be as often as any other, so that the count has a binomial
    distribution: a sign test, at a higher quantile than the median, since stragglers are few. It asks for no
    distribution of the times, and a single long snapshot is a single one. The p-values are corrected for the number
    of ranks and phases (Bonferroni). See Conover, *Practical Nonparametric Statistics* (1999), §3.2, the quantile
    test.

    That a rank is longer in a phase than the others is not enough, since it may be waiting for them there, and then
    be the faster one. What it waits it has saved elsewhere, hence the other conditions on the seconds it takes more:

    - they are at least `STRAGGLES` of the step, in the middle one of the blocks;
    - half of them at least are left when all its phases but `backward` are added up. In `data` a rank waits for none,
      so that there it need not be asked;
    - in `backward`, half of them are left in the whole step: then it does not wait, or no rank does.
    """
    ranks = _comparable(summary.ranks)
    if len(ranks) < 2:
        return []
    blocks = _blocks(min(len(intervals.steps) for intervals in ranks.values()))
    own = {rank: _Own(summary, intervals, blocks) for rank, intervals in ranks.items()}
    places: list[Path] = [*(phase.path for phase in summary.phases), ()]
    found: dict[int, Straggler] = {}
    for path in places:
        p = exceptional({rank: mine.by_block[path] for rank, mine in own.items()}, tests=len(places))
        for rank in [rank for rank in own if p[rank] < LEVEL]:
            candidate = Straggler(rank, path, own[rank].usual[path], _median_of_others(own, rank, path), p[rank])
            if _is_slower(own, candidate) and (rank not in found or candidate.excess > found[rank].excess):
                found[rank] = candidate
    return sorted(found.values(), key=lambda straggler: -straggler.excess)


def exceptional(values: Mapping[int, Sequence[float]], tests: int) -> dict[int, float]:
    """Tests of each rank whether its values are among the highest too often.

    Args:
        values: By rank, as many of each: the first of all ranks are of one time, and so on.
        tests: For how many such tests the p-values are corrected, beside the number of ranks.

    Returns:
        For each rank how likely it is at most that any rank is there as often in any of the tests.
    """
    few = _exceptions(len(values))
    limits = [sorted(block, reverse=True)[few] for block in zip(*values.values(), strict=True)]
    number, chance = len(limits), few / len(values)
    tails = [min(_tail(number, chance, count) * tests * len(values), 1.0) for count in range(number + 1)]
    return {rank: tails[sum(map(float.__gt__, mine, limits))] for rank, mine in values.items()}


def can_tell(summary: Summary) -> bool:
    """Tells whether there are snapshots enough that a rank which is always slower than the others could be named."""
    ranks = _comparable(summary.ranks)
    if len(ranks) < 2:
        return True
    blocks = len(_blocks(min(len(intervals.steps) for intervals in ranks.values())))
    chance = _exceptions(len(ranks)) / len(ranks)
    return chance**blocks * (len(summary.phases) + 1) * len(ranks) < LEVEL


def _exceptions(ranks: int) -> int:
    return max(int(ranks * EXCEPTIONS), 1)


def _tail(number: int, chance: float, count: int) -> float:
    """How likely of so many trials at least so many succeed, each with that chance."""
    return sum(
        math.comb(number, some) * chance**some * (1 - chance) ** (number - some) for some in range(count, number + 1)
    )


def _is_slower(own: Mapping[int, _Own], candidate: Straggler) -> bool:
    """Tells whether a rank that is longer in a phase is slower by enough, and not waiting there."""
    if candidate.excess < STRAGGLES * median([mine.wall for mine in own.values()]):
        return False
    if candidate.path[-1:] == (WORK,):
        return True
    waiting = WAITING in candidate.path
    whole = {rank: mine.wall if waiting else mine.wall - mine.waiting for rank, mine in own.items()}
    rest = median([seconds for rank, seconds in whole.items() if rank != candidate.rank])
    return whole[candidate.rank] - rest >= candidate.excess / 2


def _median_of_others(own: Mapping[int, _Own], rank: int, path: Path) -> float:
    return median([mine.usual[path] for other, mine in own.items() if other != rank])


class _Own:
    """What a rank spends in each phase itself, in seconds a step.

    Attributes:
        by_block: By phase, in each block; the empty path is what no phase covers.
        usual: By phase, in the middle one of the blocks.
        wall: The whole step, likewise.
        waiting: The part of it in which ranks wait for each other, likewise.
    """

    def __init__(self, summary: Summary, intervals: Intervals, blocks: Sequence[range]) -> None:
        # The columns end with the last block, where the shortest of the ranks does.
        joined = intervals.join(blocks)
        own = {phase.path: joined.column(phase.path) for phase in summary.phases}
        for path in own:
            if outer := own.get(path[:-1]):
                own[path[:-1]] = _difference(outer, joined.column(path))
        own[()] = _difference(joined.wall, joined.accounted)
        self.by_block = {path: _a_step(column, joined.steps) for path, column in own.items()}
        self.usual = {path: median(column) for path, column in self.by_block.items()}
        self.wall = median(_a_step(joined.wall, joined.steps))
        self.waiting = sum(seconds for path, seconds in self.usual.items() if WAITING in path)


def _difference(column: Column, other: Column) -> Column:
    return [a - b for a, b in zip(column, other, strict=True)]


def _a_step(column: Column, steps: Column) -> Column:
    return [seconds / max(count, 1.0) for seconds, count in zip(column, steps, strict=True)]


def _comparable(ranks: Mapping[int, Intervals]) -> dict[int, Intervals]:
    """The ranks that have steps, but those with less than half as many snapshots as others, which would hide the rest.

    One that stopped in the second half limits what is compared to the time in which it ran.
    """
    most = max(len(intervals.steps) for intervals in ranks.values())
    return {
        rank: intervals
        for rank, intervals in ranks.items()
        if 2 * len(intervals.steps) >= most and sum(intervals.steps) > 0
    }


def _blocks(number: int) -> list[range]:
    """So many snapshots as `BLOCKS` ranges of almost one length, or as many ranges as there are snapshots."""
    count = min(number, BLOCKS)
    edges = [number * block // count for block in range(count + 1)]
    return [range(edges[block], edges[block + 1]) for block in range(count)]
