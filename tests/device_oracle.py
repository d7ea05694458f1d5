"""Programs for a device that works apart from the host, and what their phases must be by the schedule alone."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from hypothesis import strategies as st
from strategies import NaiveAccount

STREAMS = 3
NAMES = ("forward", "backward", "data")

lengths = st.integers(0, 9)


@st.composite
def device_programs(draw: st.DrawFn, depth: int = 2) -> list[tuple]:
    """A list of statements: what host and device do, where phases are, and where an interval ends."""
    simple = st.one_of(
        st.tuples(st.just("launch"), st.integers(0, 20), st.integers(0, 2)),
        st.tuples(st.just("host"), lengths),
        st.tuples(st.just("wait_for"), st.integers(0, STREAMS - 1)),
        st.tuples(st.just("samples"), lengths),
        st.tuples(st.just("snapshot")),
        st.tuples(st.just("reset")),
    )
    if depth == 0:
        return draw(st.lists(simple, min_size=1, max_size=4))
    inner = device_programs(depth - 1)
    phase = st.tuples(st.just("phase"), st.sampled_from(NAMES), st.sampled_from([False, False, True]), inner)
    block = st.one_of(
        phase,
        st.tuples(st.just("stream"), st.integers(0, STREAMS - 1), st.lists(phase, min_size=1, max_size=2)),
        st.tuples(st.just("items"), st.lists(inner, max_size=3), inner),
        st.tuples(st.just("stream"), st.integers(0, STREAMS - 1), inner),
        st.tuples(st.just("capture"), inner),
        st.tuples(st.just("attempt"), inner),
    )
    return draw(st.lists(st.one_of(block, simple), min_size=depth, max_size=3 * depth))


class Failure(Exception):
    """What a phase of a program raises."""


@dataclass
class Oracle:
    """Works out a program with pencil and paper: when each stream is done, and when each boundary is passed.

    Attributes:
        timing: "synchronize" or "events".
        now: The host's time.
        account: The books, whose time is that of the last boundary.
        done: When each stream has done what it was given.
        snapshots: What each snapshot must say.
        waits: How often the device must be waited for.
        boundaries: The time of each boundary that is recorded.
    """

    timing: str
    now: float
    account: NaiveAccount = field(init=False)
    done: list[float] = field(init=False)
    snapshots: list[dict[str, float]] = field(default_factory=list)
    waits: int = 0
    boundaries: list[float] = field(default_factory=list)
    current: int = 0
    captured: list[float] | None = None
    interval_began: float = field(init=False)

    def __post_init__(self) -> None:
        self.account = NaiveAccount(self.now)
        self.done = [self.now] * STREAMS
        self.interval_began = self.now

    def run(self, program: list[tuple]) -> None:
        for kind, *rest in program:
            getattr(self, kind)(*rest)

    def host(self, seconds: float) -> None:
        self.now += seconds

    def launch(self, seconds: float, cost: float) -> None:
        self.now += cost
        if self.captured is not None:
            self.captured.append(seconds)
        else:
            self.done[self.current] = max(self.done[self.current], self.now) + seconds

    def wait_for(self, other: int) -> None:
        if self.captured is None:
            self.done[self.current] = max(self.done[self.current], self.done[other])

    def samples(self, count: int) -> None:
        self.account.samples += count

    def boundary(self) -> float | None:
        if self.captured is not None:
            return None
        if self.timing == "synchronize":
            self.waits += 1
            self.now = max(self.now, *self.done)
            passed = self.now
        else:
            passed = max([self.now, self.done[self.current], *self.boundaries[-1:]])
        self.boundaries.append(passed)
        return passed

    def enter(self, name: str) -> None:
        self.account.open.append((name, self.boundary()))

    def leave(self, *, completed: bool) -> None:
        passed = self.boundary() if completed else None
        begun = self.account.open[-1][1]
        if passed is None or begun is None:
            self.account.leave(completed=False)
        else:
            self.account.now = passed
            self.account.leave(completed=True)

    def phase(self, name: str, raises: bool, body: list[tuple]) -> None:
        self.enter(name)
        try:
            self.run(body)
        except Failure:
            self.leave(completed=False)
            raise
        self.leave(completed=not raises)
        if raises:
            raise Failure

    def items(self, costs: list[list[tuple]], body: list[tuple]) -> None:
        for cost in costs:
            self.enter("data")
            try:
                self.run(cost)
            except Failure:
                self.leave(completed=False)
                raise
            self.leave(completed=True)
            self.run(body)
        self.enter("data")
        self.leave(completed=False)

    def stream(self, number: int, body: list[tuple]) -> None:
        if self.captured is not None:
            return
        before, self.current = self.current, number
        try:
            self.run(body)
        finally:
            self.current = before

    def capture(self, body: list[tuple]) -> None:
        if self.captured is not None:
            return
        self.captured = []
        try:
            self.run(body)
        finally:
            graph, self.captured = self.captured, None
        self.launch(sum(graph), 0)

    def attempt(self, body: list[tuple]) -> None:
        with contextlib.suppress(Failure):
            self.run(body)

    def _catch_up(self) -> None:
        if self.timing == "events" and self.boundaries:
            self.waits += 1
            self.now = max(self.now, *self.done)

    def snapshot(self) -> None:
        # During a capture no snapshot is asked for: what it must say is said elsewhere.
        if self.captured is not None:
            return
        self._catch_up()
        expected = self.account.close_interval()
        expected["wall_sec"], self.interval_began = self.now - self.interval_began, self.now
        self.snapshots.append(expected)

    def reset(self) -> None:
        if self.captured is not None:
            return
        self._catch_up()
        self.account.close_interval()
        self.interval_began = self.now


class Program:
    """Runs a program with a monitor on a simulated device."""

    def __init__(self, monitor, device) -> None:
        self.monitor = monitor
        self.device = device
        self.snapshots: list[dict[str, float]] = []

    def run(self, program: list[tuple]) -> None:
        for kind, *rest in program:
            getattr(self, kind)(*rest)

    @property
    def is_capturing(self) -> bool:
        return self.device.current.graph is not None

    def host(self, seconds: float) -> None:
        self.device.clock.advance(seconds)

    def launch(self, seconds: float, cost: float) -> None:
        self.device.launch(seconds, cost)

    def wait_for(self, other: int) -> None:
        with self.device.stream(other):
            pass
        self.device.wait_for(other)

    def samples(self, count: int) -> None:
        self.monitor.record_samples(count)

    def phase(self, name: str, raises: bool, body: list[tuple]) -> None:
        with self.monitor.phase(name):
            self.run(body)
            if raises:
                raise Failure

    def items(self, costs: list[list[tuple]], body: list[tuple]) -> None:
        def load():
            for cost in costs:
                self.run(cost)
                yield

        for _ in self.monitor.iterate(load()):
            self.run(body)

    def stream(self, number: int, body: list[tuple]) -> None:
        if not self.is_capturing:
            with self.device.stream(number):
                self.run(body)

    def capture(self, body: list[tuple]) -> None:
        if self.is_capturing:
            return
        with self.device.capture() as graph:
            self.run(body)
        self.device.replay(graph)

    def attempt(self, body: list[tuple]) -> None:
        with contextlib.suppress(Failure):
            self.run(body)

    def snapshot(self) -> None:
        if not self.is_capturing:
            snapshot = self.monitor.snapshot(0)
            del snapshot["step"]
            self.snapshots.append(snapshot)

    def reset(self) -> None:
        if not self.is_capturing:
            self.monitor.reset()
