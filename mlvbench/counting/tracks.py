"""What is open where: a track for each thread, and for each asyncio task that has a phase open.

A track is the tree of the phases that were entered there, and the place in that tree where the thread or task is now.
Entering a phase goes one place down. Leaving it adds its seconds to that place, and goes one place up.
"""

from __future__ import annotations

import weakref
from asyncio import _get_running_loop as running_loop
from asyncio import current_task
from typing import TYPE_CHECKING

from mlvbench.counting.ranges import open_range
from mlvbench.counting.timeline import Moment, Span

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable, Iterator

    from mlvbench.counting.counters import Counters, Phase


class Node(dict["Phase", "Node"]):
    """A place in a track's tree: what was accounted there, and the places below it.

    Looking up a phase gives the place to go to. For a phase that is open already, here or further up, that is the
    place where it was opened, so that a recursion never makes the tree deeper.

    Attributes:
        track: The track whose tree it is in.
        parent: The place above; `None` at the root.
        phase: The phase that leads here; `None` at the root.
        path: The names of the phases from the root down to here.
        start: When the phase was entered, while it is open: a reading of the clock, or a moment of the device.
        reentries: How often the open phase was entered again inside itself; those entries account nothing.
        covered: While the phase is open: the part of its time that ended outermost phases of this thread account.
        seconds: All that was accounted here.
        entries: How often the phase ended here.
    """

    __slots__ = ("covered", "entries", "parent", "path", "phase", "reentries", "seconds", "start", "track")

    def __init__(self, track: Track, parent: Node | None = None, phase: Phase | None = None) -> None:
        self.track = track
        self.parent = parent
        self.phase = phase
        self.path: tuple[str, ...] = () if parent is None or phase is None else (*parent.path, phase.name)
        self.start: float | Moment = 0
        self.reentries = 0
        self.covered: float | Span = 0
        self.seconds: float | Span = 0
        self.entries = 0

    # A place equals itself alone. The methods of dict would compare what is below it.
    __hash__ = object.__hash__  # type: ignore[assignment]  # a dict has none
    __eq__ = object.__eq__
    __ne__ = object.__ne__

    def __missing__(self, phase: Phase) -> Node:
        for place in self.line():
            if place.phase is phase:
                self[phase] = place
                return place
        self[phase] = node = Node(self.track, self, phase)
        self.track.thread.counters.seen.setdefault(node.path)
        return node

    def total(self) -> tuple[float, int]:
        """The seconds that are known by now, and how many entries they are the sum of."""
        if isinstance(self.seconds, Span):
            return self.seconds.add_up_known(), self.seconds.known_count
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
            # A copy, made in one go: the thread of the track may be adding places.
            children = [child for child in list(node.values()) if child.parent is node]
            yield from children
            waiting += children

    def close(self) -> None:
        """Is not open any more, whatever of it is not accounted."""
        self.reentries, self.covered = 0, 0


class Track:
    """The phases open in one thread or task, and all that was ever accounted there.

    Attributes:
        thread: The tracks of the thread that it belongs to.
        root: The top of the tree.
        here: The place of the innermost open phase, or the floor.
        floor: The place below which this track's own phases begin: the root, or for a task the place of the phases
            that were open in its thread when the event loop started.
        task: For the track of a task, a reference to the task.
        irregular: Whether leaving a phase needs more than the plain case: a phase is open inside itself, ended phases
            account a part of an open one, tasks of this thread have phases open, or a profiler shows a phase as a
            range.
    """

    __slots__ = ("floor", "here", "irregular", "root", "task", "thread")

    def __init__(self, thread: ThreadTracks) -> None:
        self.thread = thread
        self.root = Node(self)
        self.here = self.floor = self.root
        self.task: weakref.ref[Task[object]] | None = None
        self.irregular = False

    def update_irregular(self) -> None:
        """Works out again whether the track is irregular."""
        thread = self.thread
        is_shared = bool(thread.tasks or thread.ranges)
        self.irregular = is_shared or any(node.reentries or node.covered for node in self.here.line())

    def start_inside(self, base: Node) -> None:
        """Starts the track, with no phase open, inside the phases that are open at `base`."""
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

        A phase that was entered inside `node` and is still open outlives it, so it is not nested in it after all. An
        error is the exception: what ends `node` by an error has ended the phases inside it too, even where Ctrl-C kept
        them from being told.
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
                place.close()
            return
        for place in reversed(outliving):
            assert place.phase is not None
            moved = self.here[place.phase]
            moved.start, moved.reentries, moved.covered = place.start, place.reentries, place.covered
            place.close()
            self.here = moved


class ThreadTracks:
    """What one thread accounts: its own track, and one for each of its tasks that has a phase open.

    Attributes:
        counters: The counters that it is a part of.
        track: The thread's own track.
        tracks: All tracks that the thread ever needed, those of ended tasks included.
        idle: Those of `tracks` that no task uses now.
        tasks: The track of each task that has a phase open, by the task's `id`.
        ranges: The phases that a profiler shows as open, each with its task and with what closes the range.
        shared: Seconds that the outermost phases of several tasks account more than once.
        samples: The samples counted on this thread.
    """

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.track = Track(self)
        self.tracks = [self.track]
        self.idle: list[Track] = []
        self.tasks: dict[int, Track] = {}
        self.ranges: list[tuple[Phase, weakref.ref[Task[object]] | None, Callable[[], object]]] = []
        self.shared: float | Span = 0
        self.samples = 0

    def track_to_enter(self) -> Track:
        """The track of the running task, made if it has none; the thread's own where no task runs."""
        task = current_task()
        if task is None:
            return self.track
        track = self.tasks.get(id(task))
        if track is None:
            key = id(task)
            self.tasks[key] = track = self._new_track()
            track.start_inside(self.track.here)
            track.task = weakref.ref(task, lambda _: self.release(key))
            self.track.irregular = True
        return track

    def find_open(self, phase: Phase) -> Node | None:
        """Where `phase` is open: on the track of the running task, or on any if another task closes it."""
        task = current_task() if running_loop() is not None else None
        first = self.track if task is None else self.tasks.get(id(task), self.track)
        for track in (first, *self.tasks.values(), self.track):
            for node in track.here.line():
                if node.phase is phase and (node.reentries or node not in track.floor.line()):
                    return node
        return None

    def _new_track(self) -> Track:
        if self.idle:
            return self.idle.pop()
        track = Track(self)
        self.tracks.append(track)
        return track

    def release(self, key: int) -> None:
        """Takes the track back from a task, by the `id` of the task, which has ended or has no phase open."""
        track = self.tasks.pop(key)
        track.task = None
        for place in track.here.line():
            place.close()
        track.here = track.floor
        self.idle.append(track)
        self.track.update_irregular()

    def open_range(self, phase: Phase) -> None:
        """Lets the profiler that is running show that a phase is entered."""
        self.track.irregular = True
        task = current_task() if running_loop() is not None else None
        self.ranges.append((phase, None if task is None else weakref.ref(task), open_range(phase.name)))

    def close_range(self, phase: Phase) -> None:
        """Lets that profiler show that the phase is left."""
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
        track = node.track
        if node.reentries:
            node.reentries -= 1
        else:
            track.close(node, completed)
            if completed and not _is_never_known(end) and not _is_never_known(node.start):
                if node.parent is track.root:
                    self._share(node, end)
                node.seconds += end - node.start
                node.entries += 1
            node.covered = 0
        if track is not self.track and track.is_at_rest():
            self.release(next(key for key, used in self.tasks.items() if used is track))
        self.track.update_irregular()

    def _share(self, node: Node, end: float | Moment) -> None:
        """Keeps the time that an outermost phase shares with open ones from being accounted twice.

        Tasks interleave, so that their outermost phases overlap. The accounted time is what they cover together: the
        part of `node` that ended phases account already goes to `shared`, and each phase that is still open learns
        which part of its own time `node` accounts.
        """
        fresh = (end - node.start) + -node.covered
        self.shared += node.covered
        for track in (self.track, *self.tasks.values()):
            # The inner phases too: one of them may outlive those around it.
            for other in track.here.line() if track.floor is track.root else ():
                if other.start >= node.start:
                    other.covered = end - other.start
                else:
                    other.covered += fresh

    def accounted(self) -> float:
        """Seconds that the outermost phases of this thread cover."""
        shared = self.shared.add_up_known() if isinstance(self.shared, Span) else self.shared
        return sum(node.total()[0] for track in self.tracks for node in list(track.root.values())) - shared

    def is_at_rest(self) -> bool:
        """Whether no phase is open."""
        return not self.tasks and self.track.is_at_rest()

    def add_up_shared(self) -> None:
        """Adds up what is known of the time that open phases share."""
        for node in self.places():
            if isinstance(node.covered, Span):
                node.covered.add_up_known()

    def places(self) -> Iterator[Node]:
        """All places of all its tracks."""
        for track in list(self.tracks):
            yield from track.root.below()


def _is_never_known(moment: float | Moment) -> bool:
    return isinstance(moment, Moment) and moment.is_never_known()
