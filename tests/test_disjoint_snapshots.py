"""For any program, the snapshots say exactly what a naive account of it says: nothing twice, nothing lost."""

import contextlib

import pytest
from fake_clock import FakeClock
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from strategies import NaiveAccount, NaiveSteps, names, programs, sample_counts, seconds, step_numbers

from mlvbench.counting.recorder import Recorder
from mlvbench.counting.tracks import Node
from mlvbench.monitoring import ThroughputMonitor


def same(snapshot: dict, expected: dict) -> None:
    without_step = {key: value for key, value in snapshot.items() if key != "step"}
    assert without_step == expected


class Training(RuleBasedStateMachine):
    """A loop that may do anything at any time."""

    @initialize(every=st.integers(1, 12))
    def start(self, every):
        self.clock = FakeClock()
        self.monitor = ThroughputMonitor("cpu", every, self.clock)
        self.account = NaiveAccount(self.clock.now)
        self.steps = NaiveSteps(every)
        self.origin = self.clock.now
        self.entered = []
        self.views = {}
        self.dropped_by_reset = 0

    def advance(self, by):
        self.clock.advance(by)
        self.account.now += by

    @rule(by=seconds)
    def work(self, by):
        self.advance(by)

    @rule(name=names)
    def enter(self, name):
        phase = self.monitor.phase(name)
        phase.__enter__()
        self.entered.append(phase)
        self.account.enter(name)

    @precondition(lambda self: self.entered)
    @rule(completed=st.booleans())
    def leave(self, completed):
        error = () if completed else (ValueError, ValueError(), None)
        self.entered.pop().__exit__(*(error or (None, None, None)))
        self.account.leave(completed=completed)

    @rule(costs=st.lists(seconds, max_size=3), reuse=st.booleans())
    def fetch_items(self, costs, reuse):
        def load():
            for cost in costs:
                self.advance(cost)
                yield cost

        got = []
        for item in self.monitor.iterate(load() if not reuse else FreshPasses(load)):
            self.account.enter("data")
            self.account.open[-1] = ("data", self.account.now - item)
            self.account.leave(completed=True)
            got.append(item)
            self.advance(1)
        assert got == costs

    @rule(count=sample_counts)
    def record_samples(self, count):
        self.monitor.record_samples(count)
        self.account.samples += count

    @rule(number=step_numbers)
    def step(self, number):
        snapshot = self.monitor.step(number)
        assert (snapshot is not None) == self.steps.is_due(number)
        if snapshot is not None:
            assert snapshot["step"] == number
            same(snapshot, self.account.close_interval())

    @rule(number=step_numbers)
    def snapshot(self, number):
        same(self.monitor.snapshot(number), self.account.close_interval())

    @rule()
    def reset(self):
        self.monitor.reset()
        self.dropped_by_reset += self.account.close_interval()["wall_sec"]

    def teardown(self):
        if not hasattr(self, "monitor"):
            return
        while self.entered:
            self.leave(completed=True)
        same(self.monitor.snapshot(0), self.account.close_interval())
        covered = sum(record["wall_sec"] for record in self.monitor.records)
        assert covered + self.dropped_by_reset == self.clock.now - self.origin, "the intervals leave no gap"


class FreshPasses:
    def __init__(self, begin):
        self.begin = begin

    def __iter__(self):
        yield from self.begin()


TestTraining = Training.TestCase
TestTraining.settings = settings(max_examples=150, stateful_step_count=40)


class TestTheTestItself:
    """The machine above is worth something: it finds bugs that are put there."""

    class Unfinished(Training):
        def teardown(self):
            """The rules alone must find it."""

    def must_fail(self):
        thorough = settings(max_examples=300, stateful_step_count=20, database=None)
        with pytest.raises(AssertionError):
            run_state_machine_as_test(self.Unfinished, settings=thorough)

    def test_finds_a_phase_that_is_counted_in_two_snapshots(self, monkeypatch):
        take = Recorder._take

        def keeps_the_baseline(self, step, end):
            baseline = self._baseline
            record = take(self, step, end)
            self._baseline = baseline
            return record

        monkeypatch.setattr(Recorder, "_take", keeps_the_baseline)
        self.must_fail()

    def test_finds_a_recursion_that_is_counted_twice(self, monkeypatch):
        def always_deeper(self, phase):
            self[phase] = node = Node(self.track, self, phase)
            self.track.thread.counters.seen.setdefault(node.path)
            return node

        monkeypatch.setattr(Node, "__missing__", always_deeper)
        self.must_fail()


class Target:
    """Its method runs a block of a program; instrumented, the method is a phase."""

    def run(self, block):
        block()


BARE_RUN = Target.run


class Interpreter:
    """Runs a program with a monitor and keeps the naive account beside it."""

    def __init__(self):
        self.clock = FakeClock()
        self.monitor = ThroughputMonitor("cpu", 1, self.clock)
        self.account = NaiveAccount(self.clock.now)
        self.snapshots = []
        self.inside = 0

    def run(self, program):
        for kind, *rest in program:
            getattr(self, f"do_{kind}", lambda *rest, kind=kind: self.block(kind, *rest))(*rest)

    def do_work(self, by):
        self.clock.advance(by)
        self.account.now += by

    def do_samples(self, count):
        self.monitor.record_samples(count)
        self.account.samples += count

    def do_items(self, costs):
        def load():
            for cost in costs:
                self.do_work(cost)
                yield cost

        for item in self.monitor.iterate(load()):
            self.account.enter("data")
            self.account.open[-1] = ("data", self.account.now - item)
            self.account.leave(completed=True)

    def do_snapshot(self):
        snapshot = self.monitor.snapshot(0)
        same(snapshot, self.account.close_interval())
        self.snapshots.append((snapshot, self.inside))

    def block(self, way, name, raises, body):
        def run_body():
            self.account.enter(name)
            self.inside += 1
            completed = False
            try:
                self.run(body)
                if raises:
                    raise LookupError
                completed = True
            finally:
                self.inside -= 1
                self.account.leave(completed=completed)

        with contextlib.suppress(LookupError):
            getattr(self, f"through_{way}")(name, run_body)

    def through_phase(self, name, body):
        with self.monitor.phase(name):
            body()

    def through_timed(self, name, body):
        self.monitor.timed(name)(body)()

    def through_method(self, name, body):
        target = Target()
        with self.monitor.instrument(target, {name: "run"}):
            target.run(body)

    def through_generator(self, name, body):
        @self.monitor.timed(name)
        def produce():
            body()
            yield

        next(produce())


@settings(max_examples=200)
@given(programs())
def test_all_ways_in_give_one_account(program):
    interpreter = Interpreter()
    interpreter.run(program)
    interpreter.do_snapshot()
    assert vars(Target)["run"] is BARE_RUN


@settings(max_examples=200)
@given(programs())
def test_nested_keys_never_exceed_their_parents(program):
    def without_errors_and_snapshots(statements):
        for kind, *rest in statements:
            if kind in ("work", "samples", "items"):
                yield (kind, *rest)
            elif kind != "snapshot":
                name, _, body = rest
                yield (kind, name, False, list(without_errors_and_snapshots(body)))

    interpreter = Interpreter()
    interpreter.run(list(without_errors_and_snapshots(program)))
    snapshot = interpreter.monitor.snapshot(0)
    for key, value in snapshot.items():
        if key.startswith("t_") and "/" in key:
            outer, _, inner = key.rpartition("/")
            assert value <= snapshot[outer]
            assert value <= snapshot[f"t_{inner}"]
