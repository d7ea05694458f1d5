"""Moments on a device's own timeline, which the host knows only once the device has come so far.

The host runs ahead of an accelerator: it asks for work and goes on. So a boundary between two phases is marked on the
device's timeline, and a `Moment` stands for its time until that can be read. The counters calculate with moments as
they do with the numbers of a clock: the difference of two is a `Span`, and spans add up.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlvbench.records.schema import Timing

_LOOK_EVERY = 4096
"""So many marks from one look at what the device has passed to the next, where no snapshot is taken for long."""

_ANCHOR_FOR = 1.0
"""Seconds for which times are measured from the same event. CUDA gives milliseconds in single precision: for a second
its error is below 0.1 µs, for an hour it would be 0.1 ms."""


class TimedDevice(Protocol):
    """A device as this file needs it."""

    def belongs_to_another_process(self) -> bool:
        """Whether this process is to leave the device alone."""

    def is_capturing(self) -> bool:
        """Whether what is asked of the device now is kept for later, and not done."""

    def has_timing_events(self) -> bool:
        """Whether events tell when the device passed them."""

    def wait(self) -> bool:
        """Waits for all work; returns `False` where a capture forbids it."""

    def record(self, event: Any) -> Any:
        """Records an event in the current stream, or a new one for `None`; returns it."""

    def has_passed(self, event: Any) -> bool:
        """Whether the device has come to an event."""

    def elapsed(self, start: Any, end: Any) -> float:
        """Returns the seconds between two events that the device has passed."""


class Moment:
    """A moment on a timeline.

    Attributes:
        seconds: When it was, on the clock; `None` while it is not known, and not a number if it never will be.
        number: How many moments were marked before it.
        event: What the device passes then; another moment's once this is known.
        thread: What the thread that marked it has passed.
    """

    __slots__ = ("event", "number", "seconds", "thread")

    def __init__(self, number: int, thread: _Latest) -> None:
        self.seconds: float | None = None
        self.number = number
        self.event: Any = None
        self.thread = thread

    def __sub__(self, start: Moment | float) -> Span:
        return Span((self, start))

    def __rsub__(self, end: float) -> Span:
        return Span((end, self))

    def __ge__(self, other: Moment | float) -> bool:
        """Whether it was marked later. A number is from the time before there was a timeline."""
        return not isinstance(other, Moment) or self.number >= other.number

    def __le__(self, other: Moment | float) -> bool:
        return isinstance(other, Moment) and self.number <= other.number

    def is_never_known(self) -> bool:
        """Whether the device will not tell when it was."""
        return self.seconds is not None and math.isnan(self.seconds)


class Span:
    """A sum of times between moments, as far as they are known.

    Only the thread whose times they are adds to it, and only one thread at a time settles it.

    Attributes:
        known: Seconds that are known.
        settled: How many times they are the sum of.
        pending: End and start of each that is not known yet.
    """

    __slots__ = ("known", "known_count", "pending")

    def __init__(self, *pending: tuple[Moment | float, Moment | float], known: float = 0, known_count: int = 0) -> None:
        self.known = known
        self.known_count = known_count
        self.pending = deque(pending)

    def __iadd__(self, other: Span | float) -> Span:
        """Adds in place. What is settled stays the settling thread's: what is known joins what is pending."""
        known = other.known if isinstance(other, Span) else other
        if known:
            self.pending.append((known, 0))
        if isinstance(other, Span):
            self.pending.extend(other.pending)
        return self

    def __add__(self, other: Span | float) -> Span:
        total = Span(*self.pending, known=self.known)
        total += other
        return total

    __radd__ = __add__

    def __neg__(self) -> Span:
        return Span(*((start, end) for end, start in self.pending), known=-self.known)

    def add_up_known(self) -> float:
        """Adds up what has become known, without what never will be; returns all that is."""
        for _ in range(len(self.pending)):
            end, start = self.pending.popleft()
            until = end.seconds if isinstance(end, Moment) else end
            since = start.seconds if isinstance(start, Moment) else start
            if until is None or since is None:
                self.pending.append((end, start))
            elif not math.isnan(until - since):
                self.known += until - since
                self.known_count += 1
        return self.known


class _Passed(threading.local):
    """How far the device has come with what the current thread has marked, in seconds on the clock."""

    def __init__(self) -> None:
        self.latest = _Latest()


class _Latest:
    """Outlives the thread: what it has marked may be known only later."""

    seconds = -math.inf


class Timeline:
    """Marks moments on a device's timeline.

    With "synchronize" the device is waited for and the clock is read, so that a moment is known at once. With
    "events" the device is given an event and nothing is waited for; `catch_up` finds out when it passed them.
    The moments that a thread marks never run backwards, whatever the streams that they are marked on: one that the
    device passes before another that was marked earlier counts as passed together with that one. So what lies
    between a thread's marks is a partition of the device's time.

    Args:
        device: The device.
        clock: The host's, in seconds.
        timing: "synchronize" or "events".
        on_backlog: Called where so many moments were marked that what has become known is to be added up.

    Attributes:
        timing: The way in use: "synchronize" also where events were asked for and the device has none that tell times.
    """

    def __init__(
        self, device: TimedDevice, clock: Callable[[], float], timing: Timing, on_backlog: Callable[[], object]
    ) -> None:
        self.timing = timing
        self._device = device
        self._clock = clock
        self._on_backlog = on_backlog
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._this_thread = _Passed()
        self._marked: deque[Moment] = deque()
        self._last: Moment | None = None
        self._pool: list[Any] = []
        self._anchor: tuple[Any, float] | None = None
        self._is_learning = False

    def mark(self) -> Moment:
        """Marks the moment when the device has done what the host has asked for so far, and no more.

        Returns:
            The moment. During a capture it is one that is never known, since the device does nothing then.
        """
        number = next(self._numbers)
        if number % _LOOK_EVERY == 0:
            self._on_backlog()
        self._last = moment = Moment(number, self._this_thread.latest)
        if self.timing == "events" and self._can_record():
            moment.event = self._device.record(self._take_event())
            self._marked.append(moment)
        else:
            moment.seconds = self._clock() if self._device.wait() else math.nan
        return moment

    def _can_record(self) -> bool:
        device = self._device
        return (
            not device.belongs_to_another_process()
            and not device.is_capturing()
            and (self._anchor is not None or self._begin())
        )

    def _take_event(self) -> Any:
        try:
            return self._pool.pop()
        except IndexError:
            return None

    def _begin(self) -> bool:
        """Records the event that times are measured from, if there are any that tell times."""
        with self._lock:
            if self._anchor is None and self._device.has_timing_events():
                event = self._device.record(None)
                self._anchor = event, self._clock()
            if self._anchor is None:
                self.timing = "synchronize"
        return self._anchor is not None

    def begin_idle(self) -> None:
        """Begins with a device that has nothing to do, so that its moments are also those of the clock."""
        if self.timing == "events" and not self._device.belongs_to_another_process() and self._device.wait():
            self._begin()

    def catch_up(self, *, wait: bool) -> None:
        """Finds out when the device passed the moments that were marked.

        Args:
            wait: Whether to wait until it has passed all, or to take those that it has passed so far.
        """
        if self._device.belongs_to_another_process():
            self._leave_to_its_process()
        elif self._anchor is not None and not self._device.is_capturing():
            # Before waiting, so that most of it is done while the device is still at work.
            self._learn_what_was_passed()
            if wait:
                self._device.wait()
                self._learn_what_was_passed()

    def _learn_what_was_passed(self) -> None:
        with self._lock:
            if self._is_learning:  # A signal handler is asking, in the middle of it.
                return
            try:
                self._is_learning = True
                # Other threads may be marking as fast as this goes.
                for _ in range(len(self._marked)):
                    moment = self._marked[0]
                    if moment.seconds is None:
                        if not self._device.has_passed(moment.event):
                            break
                        self._learn(moment)
                    self._marked.popleft()
            finally:
                self._is_learning = False

    def _learn(self, moment: Moment) -> None:
        """Finds out when the device passed a moment, and takes its event back."""
        assert self._anchor is not None
        event, (anchor, anchored_at), latest = moment.event, self._anchor, moment.thread
        elapsed = self._device.elapsed(anchor, event)
        latest.seconds = max(anchored_at + elapsed, latest.seconds)
        moment.seconds = latest.seconds
        if elapsed > _ANCHOR_FOR:
            self._anchor, event = (event, anchored_at + elapsed), anchor
        self._pool.append(event)

    def _leave_to_its_process(self) -> None:
        """Gives up, in a forked process, what was marked before: it is the other's to know."""
        while self._marked:
            moment = self._marked.popleft()
            moment.seconds = math.nan
            # Kept, since freeing it would touch the device.
            self._pool.append(moment.event)

    def idle_since(self) -> float:
        """Waits for the device, and returns the clock's reading when it had passed what was marked last."""
        last, now = self._last, self.mark()
        self._device.wait()
        reading = self._clock()
        self.catch_up(wait=True)
        if last is None or last.seconds is None or now.seconds is None or math.isnan(now.seconds - last.seconds):
            return reading
        return reading - (now.seconds - last.seconds)
