"""Seconds per phase, as counters that only grow.

Nobody ever sets a counter back: an interval is the difference between two readings, so that no instant is in two
intervals and none is lost between them. A track is written by its own thread alone, which is why no lock is needed.
"""

from __future__ import annotations

import threading
import weakref
from asyncio import _get_running_loop as running_loop
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlvbench.counting.ranges import profiler_flag
from mlvbench.counting.timeline import Moment, Span, Timeline
from mlvbench.counting.tracks import ThreadTracks

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from mlvbench.counting.timeline import TimedDevice
    from mlvbench.records.schema import Timing

    Clock = Callable[[], float]

SEPARATOR = "/"


class _ThisThread(threading.local):
    """The tracks of the current thread; the token dies with the thread."""

    def __init__(self, counters: Counters) -> None:
        self.token = _Token()
        self.tracks = ThreadTracks(counters)
        self.track = self.tracks.track
        counters.threads.append((weakref.ref(self.token), self.tracks))


class _Token:
    pass


@dataclass(frozen=True)
class Reading:
    """All counters at one moment; the difference of two is what was accounted between them.

    Attributes:
        phases: For each place, by its path, the seconds and how many phases ended there, in the order first seen.
        accounted: Seconds that outermost phases cover, for each thread.
        samples: The number of samples.
    """

    phases: dict[tuple[str, ...], tuple[float, int]] = field(default_factory=dict)
    accounted: dict[ThreadTracks, float] = field(default_factory=dict)
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
        self.seen: dict[tuple[str, ...], None] = {}
        self.threads: list[tuple[weakref.ref[_Token], ThreadTracks]] = []
        self.loop: ThreadTracks | None = None
        self.phases: dict[str, Phase] = {}
        self._ended = Reading()
        self._lock = threading.RLock()
        self._this_thread = _ThisThread(self)

    def __reduce__(self) -> tuple[type[Counters], tuple[Clock, TimedDevice | None, Timing]]:
        """Copies and pickles begin at zero: what a worker process measures stays there."""
        return Counters, (self.clock, self.device, self.timing)

    def _timeline(self) -> Timeline | None:
        return Timeline(self.device, self.clock, self.timing, self._add_up_what_is_known) if self.device else None

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
        for _, thread in self.threads:
            for node in thread.places():
                seconds, entries = node.total()
                # With the entries so far, by which a snapshot tells that a phase ended, in no time, as it may.
                node.seconds = Span(known=seconds, known_count=entries)
        for phase in list(self.phases.values()):
            phase._clock = self.timeline.mark

    def catch_up(self) -> None:
        """Waits until the device has passed every boundary that was marked, so that all of them can be read."""
        if self.timeline is not None:
            self.timeline.catch_up(wait=True)

    def _add_up_what_is_known(self) -> None:
        """Adds up what the device has passed so far, so that what is pending stays bounded without snapshots."""
        assert self.timeline is not None
        self.timeline.catch_up(wait=False)
        with self._lock:
            for _, thread in list(self.threads):
                thread.accounted()
                for node in thread.places():
                    node.total()
        # What another thread's open phases share is for that thread to add up.
        self._this_thread.tracks.add_up_shared()

    def add_samples(self, count: int) -> None:
        """Adds to the samples."""
        self._this_thread.tracks.samples += count

    def mark_loop(self) -> None:
        """Makes the current thread the one whose phases the accounted time is taken from."""
        self.loop = self._this_thread.tracks

    def loop_thread(self) -> ThreadTracks:
        """The thread that the accounted time is taken from; until one is marked, the current one."""
        return self.loop or self._this_thread.tracks

    def read(self) -> Reading:
        """Reads all counters, as far as they are known."""
        with self._lock:
            self._fold_ended_threads()
            threads = [thread for _, thread in self.threads]
            totals = dict(self._ended.phases)
            for thread in threads:
                _add_phases(totals, thread)
            return Reading(
                phases={path: totals[path] for path in list(self.seen) if path in totals},
                accounted={thread: thread.accounted() for thread in threads},
                samples=self._ended.samples + sum(thread.samples for thread in threads),
            )

    def _fold_ended_threads(self) -> None:
        """Keeps what threads that are gone have accounted, and not the threads: their number is not bounded."""
        for entry in list(self.threads):
            token, thread = entry
            if token() is None and thread is not self.loop and thread.is_at_rest():
                phases = dict(self._ended.phases)
                _add_phases(phases, thread)
                if any(isinstance(node.seconds, Span) and node.seconds.pending for node in thread.places()):
                    continue
                self.threads.remove(entry)
                self._ended = Reading(phases, samples=self._ended.samples + thread.samples)


def _add_phases(totals: dict[tuple[str, ...], tuple[float, int]], thread: ThreadTracks) -> None:
    for node in thread.places():
        seconds, entries = totals.get(node.path, (0, 0))
        more, times = node.total()
        totals[node.path] = (seconds + more, entries + times)


class Phase:
    """A named part of the program, as a context manager that may be entered again, inside itself and anywhere.

    It keeps nothing of an entry: that is in the track. What is below is the plain case, written out for speed:
    `ThreadTracks.leave` has the others.
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
        track = self._this_thread.track
        if running_loop() is not None:
            track = track.thread.track_to_enter()
        if profiler_flag._is_profiler_enabled:
            track.thread.open_range(self)
        clock = self._clock
        here = track.here
        node = here[self]
        try:
            start = clock()
        except BaseException:
            track.thread.close_range(self)
            raise
        # From here on nothing is called, so that Ctrl-C cannot come between opening the phase and returning.
        if node.parent is here:
            node.start = start
            track.here = node
        else:
            node.reentries += 1
            track.irregular = True

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._this_thread.tracks.leave(self, 0, completed=False)
            return
        clock = self._clock
        try:
            end = clock()
        except BaseException:
            self._this_thread.tracks.leave(self, 0, completed=False)
            raise
        track = self._this_thread.track
        node = track.here
        if node.phase is not self or track.irregular:
            track.thread.leave(self, end, completed=True)
            return
        track.here = node.parent  # type: ignore[assignment]  # only the root has none
        node.seconds += end - node.start
        node.entries += 1
