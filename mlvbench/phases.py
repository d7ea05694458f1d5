"""Seconds per phase, as counters that only grow.

Each thread, and each asyncio task with a phase open, has a *lane*: the tree of the phases entered there, and the
place in it where the lane is now. Entering a phase goes one place down, leaving it adds the seconds to that place
and goes one up. Nobody ever sets a counter back: an interval is the difference between two readings, so that no
instant is in two intervals and none is lost between them. A lane is written by its own thread alone, which is why
no lock is needed.
"""

from __future__ import annotations

import threading
import weakref
from asyncio import _get_running_loop as running_loop
from asyncio import current_task
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlvbench.ranges import asked, open_range
from mlvbench.timeline import Moment, Span, Timeline

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from mlvbench.timeline import TimedDevice, Timing

    Clock = Callable[[], float]

SEPARATOR = "/"


class Node(dict["Phase", "Node"]):
    """A place in a lane's tree: what was accounted there, and the places below it.

    Looking up a phase gives the place to go to. For a phase that is open already, here or further up, that is the
    place where it was opened, so that a recursion never makes the tree deeper.

    Attributes:
        parent: The place above; `None` at the root.
        phase: The phase that leads here; `None` at the root.
        key: The names from the root down to here, joined by `/`.
        start: When the phase was entered, while it is open: the clock's reading, or a moment of the device's.
        reentries: How often the open phase was entered again inside itself; those entries account nothing.
        covered: While the phase is open, the part of its time that outermost phases of this thread that have ended
            account.
        seconds: All that was accounted here.
        entries: How often the phase ended here.
    """

    __slots__ = ("covered", "entries", "key", "lane", "parent", "phase", "reentries", "seconds", "start")

    def __init__(self, lane: Lane, parent: Node | None = None, phase: Phase | None = None) -> None:
        self.lane = lane
        self.parent = parent
        self.phase = phase
        self.key = ""
        if parent is not None and phase is not None:
            self.key = f"{parent.key}{SEPARATOR}{phase.name}" if parent.key else phase.name
        self.start: float | Moment = 0
        self.reentries = 0
        self.covered: float | Span = 0
        self.seconds: float | Span = 0
        self.entries = 0

    # Two places are the same only if they are one: a dict would compare what is in them.
    __hash__ = object.__hash__  # type: ignore[assignment]  # a dict has none
    __eq__ = object.__eq__
    __ne__ = object.__ne__

    def __missing__(self, phase: Phase) -> Node:
        for place in self.line():
            if place.phase is phase:
                self[phase] = place
                return place
        self[phase] = node = Node(self.lane, self, phase)
        self.lane.strand.counters.seen.setdefault(node.key)
        return node

    def total(self) -> tuple[float, int]:
        """The seconds that are known by now, and of how many entries they are."""
        if isinstance(self.seconds, Span):
            return self.seconds.settle(), self.seconds.settled
        return self.seconds, self.entries

    def line(self) -> Iterator[Node]:
        """This place and those above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def below(self) -> Iterator[Node]:
        """All places of the tree under this one."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            # A copy, made in one go: the lane's own thread may be adding places.
            children = [child for child in list(node.values()) if child.parent is node]
            yield from children
            waiting += children


class Lane:
    """The phases open in one thread or task, and all that was ever accounted there.

    Attributes:
        here: The place of the innermost open phase, or the floor.
        floor: The place below which this lane's own phases begin: the root, or for a task the place of the phases
            that were open in its thread when the event loop started.
        task: For a task's lane, a reference to the task.
        irregular: Whether leaving a phase needs more than the plain case: one is entered inside itself, others
            account a part of one, tasks of this thread have phases open, or a profiler shows one as a range.
    """

    __slots__ = ("floor", "here", "irregular", "root", "strand", "task")

    def __init__(self, strand: Strand) -> None:
        self.strand = strand
        self.root = Node(self)
        self.here = self.floor = self.root
        self.task: weakref.ref[Task[object]] | None = None
        self.irregular = False

    def settle(self) -> None:
        """Finds out anew whether the lane is irregular."""
        strand = self.strand
        others = bool(strand.tasks or strand.ranges)
        self.irregular = others or any(node.reentries or node.covered for node in self.here.line())

    def stand_on(self, base: Node) -> None:
        """Starts the lane, with no phase open, inside the phases open at `base`."""
        self.floor = self.root
        for place in reversed(list(base.line())):
            assert place.phase is not None
            self.floor = self.floor[place.phase]
        self.here = self.floor

    def is_at_rest(self) -> bool:
        """Whether none of its own phases is open."""
        return self.here is self.floor and not any(node.reentries for node in self.floor.line())

    def close(self, node: Node, completed: bool) -> None:
        """Takes `node` out of the open phases, wherever among them it is.

        What was entered inside it and is still open outlives it, so it is not nested in it after all; unless an
        error ends it, which has ended what is inside it too (Ctrl-C may prevent that a phase is told so).
        """
        outliving = []
        for place in self.here.line():
            if place is node:
                break
            outliving.append(place)
        assert node.parent is not None
        self.here = node.parent
        if not completed:
            for place in outliving:
                place.reentries, place.covered = 0, 0
            return
        for place in reversed(outliving):
            assert place.phase is not None
            moved = self.here[place.phase]
            moved.start, moved.reentries, moved.covered = place.start, place.reentries, place.covered
            place.reentries, place.covered = 0, 0
            self.here = moved


class Strand:
    """What one thread accounts: its own lane, and one for each of its tasks that has a phase open.

    Attributes:
        tasks: The lane of each task that has a phase open, by the task's `id`.
        ranges: The phases that a profiler shows as open: of which task, and what closes each.
        shared: Seconds that the outermost phases of several tasks account more than once.
        samples: The samples counted on this thread.
    """

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.lane = Lane(self)
        self.lanes = [self.lane]
        self.idle: list[Lane] = []
        self.tasks: dict[int, Lane] = {}
        self.ranges: list[tuple[Phase, weakref.ref[Task[object]] | None, Callable[[], object]]] = []
        self.shared: float | Span = 0
        self.samples = 0

    def lane_to_enter(self) -> Lane:
        """The lane of the running task, made if it has none; the thread's own where no task runs."""
        task = current_task()
        if task is None:
            return self.lane
        lane = self.tasks.get(id(task))
        if lane is None:
            key = id(task)
            self.tasks[key] = lane = self._new_lane()
            lane.stand_on(self.lane.here)
            lane.task = weakref.ref(task, lambda _: self.release(key))
            self.lane.irregular = True
        return lane

    def find_open(self, phase: Phase) -> Node | None:
        """Where `phase` is open: in the running task's lane, or in any if it is closed from outside its task."""
        task = current_task() if running_loop() is not None else None
        own = self.lane if task is None else self.tasks.get(id(task), self.lane)
        for lane in (own, *self.tasks.values(), self.lane):
            for node in lane.here.line():
                if node.phase is phase and (node.reentries or node not in lane.floor.line()):
                    return node
        return None

    def _new_lane(self) -> Lane:
        if self.idle:
            return self.idle.pop()
        lane = Lane(self)
        self.lanes.append(lane)
        return lane

    def release(self, key: int) -> None:
        """Takes a lane back from its task, by the task's `id`: it has no phase open any more, or is gone."""
        lane = self.tasks.pop(key)
        lane.task = None
        for place in lane.here.line():
            place.reentries, place.covered = 0, 0
        lane.here = lane.floor
        self.idle.append(lane)
        self.lane.settle()

    def open_range(self, phase: Phase) -> None:
        """Lets the profiler that is running show that a phase is entered."""
        self.lane.irregular = True
        task = current_task() if running_loop() is not None else None
        self.ranges.append((phase, None if task is None else weakref.ref(task), open_range(phase.name)))

    def close_range(self, phase: Phase) -> None:
        """Lets it show that it is left."""
        task = current_task() if running_loop() is not None else None
        for index in reversed(range(len(self.ranges))):
            shown, its_task, close = self.ranges[index]
            if shown is phase and (its_task and its_task()) is task:
                del self.ranges[index]
                close()
                break

    def leave(self, phase: Phase, end: float | Moment, completed: bool) -> None:
        """Leaves a phase in every case but the plain one: errors, recursion, tasks, phases that end out of order."""
        if self.ranges:
            self.close_range(phase)
        node = self.find_open(phase)
        if node is None:
            return
        lane = node.lane
        if node.reentries:
            node.reentries -= 1
        else:
            lane.close(node, completed)
            if completed and not _is_never_known(end) and not _is_never_known(node.start):
                if node.parent is lane.root:
                    self._share(node, end)
                node.seconds += end - node.start
                node.entries += 1
            node.covered = 0
        if lane is not self.lane and lane.is_at_rest():
            self.release(next(key for key, its in self.tasks.items() if its is lane))
        self.lane.settle()

    def _share(self, node: Node, end: float | Moment) -> None:
        """Notes which part of an outermost phase's time others account, and which part of theirs it accounts.

        Tasks interleave, so their outermost phases overlap; the accounted time is what they cover together.
        """
        fresh = (end - node.start) + -node.covered
        self.shared += node.covered
        for lane in (self.lane, *self.tasks.values()):
            # The inner phases too: one of them may outlive those around it.
            for other in lane.here.line() if lane.floor is lane.root else ():
                if other.start >= node.start:
                    other.covered = end - other.start
                else:
                    other.covered += fresh

    def accounted(self) -> float:
        """Seconds that this thread's outermost phases cover."""
        shared = self.shared.settle() if isinstance(self.shared, Span) else self.shared
        return sum(node.total()[0] for lane in self.lanes for node in list(lane.root.values())) - shared

    def at_rest(self) -> bool:
        """Whether no phase is open."""
        return not self.tasks and self.lane.is_at_rest()

    def settle_shared(self) -> None:
        """Adds up what is known of the time that open phases share."""
        for node in self.places():
            if isinstance(node.covered, Span):
                node.covered.settle()

    def places(self) -> Iterator[Node]:
        """All places of all its lanes."""
        for lane in list(self.lanes):
            yield from lane.root.below()


class _ThisThread(threading.local):
    """The strand of the current thread; the token dies with the thread."""

    def __init__(self, counters: Counters) -> None:
        self.token = _Token()
        self.strand = Strand(counters)
        self.lane = self.strand.lane
        counters.strands.append((weakref.ref(self.token), self.strand))


class _Token:
    pass


@dataclass(frozen=True)
class Reading:
    """All counters at one moment; the difference of two is what was accounted between them.

    Attributes:
        phases: For each place, by its key, the seconds and how many phases ended there, in the order first seen.
        accounted: Seconds that outermost phases cover, for each thread.
        samples: The number of samples.
    """

    phases: dict[str, tuple[float, int]] = field(default_factory=dict)
    accounted: dict[Strand, float] = field(default_factory=dict)
    samples: int = 0


class Counters:
    """The counters of one monitor.

    Args:
        clock: Gives seconds; on the host's timeline it is read once when a phase is entered and once when it is left.
        device: A device that works apart from the host, so that it has a timeline of its own; `None` where none does.
        timing: How moments on that are told: "synchronize" or "events".
    """

    def __init__(self, clock: Clock, device: TimedDevice | None = None, timing: Timing = "synchronize") -> None:
        self.clock = clock
        self.device = device
        self.timing = timing
        self.timeline = self._timeline()
        self.seen: dict[str, None] = {}
        self.strands: list[tuple[weakref.ref[_Token], Strand]] = []
        self.loop: Strand | None = None
        self.phases: dict[str, Phase] = {}
        self._ended = Reading()
        self._lock = threading.RLock()
        self._this_thread = _ThisThread(self)

    def __reduce__(self) -> tuple[type[Counters], tuple[Clock, TimedDevice | None, Timing]]:
        """Copies and pickles begin at zero: what a worker process measures stays there."""
        return Counters, (self.clock, self.device, self.timing)

    def _timeline(self) -> Timeline | None:
        return Timeline(self.device, self.clock, self.timing, self._settle) if self.device else None

    def phase(self, name: str) -> Phase:
        """The phase called `name`: one object for all of its entries."""
        return self.phases.setdefault(name, Phase(name, self))

    def now(self) -> Callable[[], float | Moment]:
        """What gives the boundary between two phases: the device's timeline, or the clock where there is none."""
        return self.clock if self.timeline is None else self.timeline.mark

    def measure_on(self, device: TimedDevice) -> None:
        """Goes over to the timeline of a device; phases that are open end on that."""
        if self.timeline is not None:
            self.timeline.catch_up(wait=False)
        self.device = device
        self.timeline = self._timeline()
        assert self.timeline is not None
        self.timeline.begin_idle()
        for _, strand in self.strands:
            for node in strand.places():
                seconds, entries = node.total()
                # With the entries so far, by which a snapshot tells that a phase ended, in no time, as it may.
                node.seconds = Span(known=seconds, settled=entries)
        for phase in list(self.phases.values()):
            phase._clock = self.timeline.mark

    def catch_up(self) -> None:
        """Waits until the device has passed every boundary that was marked, so that all of them can be read."""
        if self.timeline is not None:
            self.timeline.catch_up(wait=True)

    def _settle(self) -> None:
        """Adds up what the device has passed so far, so that what is pending stays bounded without snapshots."""
        assert self.timeline is not None
        self.timeline.catch_up(wait=False)
        with self._lock:
            for _, strand in list(self.strands):
                strand.accounted()
                for node in strand.places():
                    node.total()
        # What another thread's open phases share is for that thread to add up.
        self._this_thread.strand.settle_shared()

    def add_samples(self, count: int) -> None:
        """Adds to the samples."""
        self._this_thread.strand.samples += count

    def mark_loop(self) -> None:
        """Makes the current thread the one whose phases the accounted time is taken from."""
        self.loop = self._this_thread.strand

    def loop_strand(self) -> Strand:
        """The thread that the accounted time is taken from; until one is marked, the current one."""
        return self.loop or self._this_thread.strand

    def read(self) -> Reading:
        """Reads all counters, as far as they are known."""
        with self._lock:
            self._fold_ended_threads()
            strands = [strand for _, strand in self.strands]
            totals = dict(self._ended.phases)
            for strand in strands:
                _add_phases(totals, strand)
            return Reading(
                phases={key: totals[key] for key in list(self.seen) if key in totals},
                accounted={strand: strand.accounted() for strand in strands},
                samples=self._ended.samples + sum(strand.samples for strand in strands),
            )

    def _fold_ended_threads(self) -> None:
        """Keeps what threads that are gone have accounted, and not the threads: their number is not bounded."""
        for entry in list(self.strands):
            token, strand = entry
            if token() is None and strand is not self.loop and strand.at_rest():
                phases = dict(self._ended.phases)
                _add_phases(phases, strand)
                if any(isinstance(node.seconds, Span) and node.seconds.pending for node in strand.places()):
                    continue
                self.strands.remove(entry)
                self._ended = Reading(phases, samples=self._ended.samples + strand.samples)


def _is_never_known(moment: float | Moment) -> bool:
    return isinstance(moment, Moment) and moment.is_never_known()


def _add_phases(totals: dict[str, tuple[float, int]], strand: Strand) -> None:
    for node in strand.places():
        seconds, entries = totals.get(node.key, (0, 0))
        more, times = node.total()
        totals[node.key] = (seconds + more, entries + times)


class Phase:
    """A named part of the program, as a context manager that may be entered again, inside itself and anywhere.

    It keeps nothing of an entry: that is in the lane. What is below is the plain case, written out for speed:
    `Strand.leave` has the others.
    """

    __slots__ = ("_clock", "_counters", "_this_thread", "name")

    def __init__(self, name: str, counters: Counters) -> None:
        self.name = name
        self._counters = counters
        self._clock = counters.now()
        self._this_thread = counters._this_thread

    def __reduce__(self) -> tuple[Callable[[str], Phase], tuple[str]]:
        return self._counters.phase, (self.name,)

    def __enter__(self) -> None:
        lane = self._this_thread.lane
        if running_loop() is not None:
            lane = lane.strand.lane_to_enter()
        if asked._is_profiler_enabled:
            lane.strand.open_range(self)
        clock = self._clock
        here = lane.here
        node = here[self]
        try:
            start = clock()
        except BaseException:
            lane.strand.close_range(self)
            raise
        # From here on nothing is called, so that Ctrl-C cannot come between opening the phase and returning.
        if node.parent is here:
            node.start = start
            lane.here = node
        else:
            node.reentries += 1
            lane.irregular = True

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._this_thread.strand.leave(self, 0, completed=False)
            return
        clock = self._clock
        try:
            end = clock()
        except BaseException:
            self._this_thread.strand.leave(self, 0, completed=False)
            raise
        lane = self._this_thread.lane
        node = lane.here
        if node.phase is not self or lane.irregular:
            lane.strand.leave(self, end, completed=True)
            return
        lane.here = node.parent  # type: ignore[assignment]  # only the root has none
        node.seconds += end - node.start
        node.entries += 1
