"""Which time belongs to which phase: nesting, recursion, exceptions, threads, tasks, generators."""

import asyncio
import contextlib
import contextvars
import gc
import threading
import tracemalloc
import weakref

import pytest
from fake_clock import FakeClock, TickingClock
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_device import SimulatedDevice

from mlvbench.monitoring import ThroughputMonitor, recorder_of


@pytest.fixture(params=["cpu", "synchronize", "events"])
def monitor(request, clock, monkeypatch):
    """All that holds on the CPU holds for a device that has nothing to do, however it is timed."""
    if request.param == "cpu":
        return ThroughputMonitor("cpu", 1, clock)
    SimulatedDevice(clock).install(monkeypatch)
    return ThroughputMonitor("cuda:0", 1, clock, request.param)


def test_phases_in_a_row_add_up(monitor, clock, timings):
    for seconds in (2, 3):
        with monitor.phase("forward"):
            clock.advance(seconds)
        clock.advance(100)
    assert timings() == {"forward": 5}


def test_a_nested_phase_is_part_of_the_outer_one(monitor, clock):
    with monitor.phase("train"):
        clock.advance(3)
        with monitor.phase("forward"):
            clock.advance(6)
        clock.advance(1)
    monitor.record_samples(20)
    snapshot = monitor.snapshot(1)
    assert snapshot["t_train"] == 10
    assert snapshot["t_forward"] == snapshot["t_train/forward"] == 6
    assert snapshot["samples_per_sec"] == 2.0


def test_nested_keys_give_the_full_path(monitor, clock, timings):
    with monitor.phase("a"), monitor.phase("b"), monitor.phase("c"):
        clock.advance(1)
    with monitor.phase("c"):
        clock.advance(2)
    assert timings() == {"a": 1, "b": 1, "c": 3, "a/b": 1, "a/b/c": 1}


@pytest.mark.parametrize("depth", [2, 5, 400])
def test_recursion_counts_once(monitor, clock, timings, depth):
    @monitor.timed("walk")
    def walk(left):
        clock.advance(1)
        if left > 1:
            walk(left - 1)
            clock.advance(10)

    for _ in range(2):
        walk(depth)
        assert timings() == {"walk": depth + 10 * (depth - 1)}


def test_recursion_through_another_phase_counts_once_and_keeps_the_tree_finite(monitor, clock, timings):
    def walk(left):
        with monitor.phase("a"):
            clock.advance(1)
            with monitor.phase("b"):
                clock.advance(10)
                if left:
                    walk(left - 1)

    walk(30)
    # The part of "b" that lies inside "a" is all of it but the very first second of the outermost "a".
    assert timings() == {"a": 31 * 11, "b": 31 * 11 - 1, "a/b": 31 * 11 - 1}


def test_what_is_nested_in_a_recursion_is_not_lost(monitor, clock, timings):
    with monitor.phase("a"), monitor.phase("b"), monitor.phase("a"), monitor.phase("c"):
        clock.advance(4)
    assert timings() == {"a": 4, "b": 4, "c": 4, "a/b": 4, "a/b/c": 4}


def test_a_phase_that_raises_is_not_recorded_and_the_error_is_untouched(monitor, clock, timings):
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught, monitor.phase("forward"):
        clock.advance(3)
        raise error
    assert caught.value is error
    assert error.__context__ is None
    assert error.__cause__ is None
    assert timings() == {}
    with monitor.phase("forward"):
        clock.advance(1)
    assert timings() == {"forward": 1}


def test_an_inner_phase_that_raises_leaves_the_outer_one_sound(monitor, clock):
    with monitor.phase("outer"):
        with pytest.raises(KeyError), monitor.phase("inner"):
            clock.advance(4)
            raise KeyError
        clock.advance(5)
    with monitor.phase("next"):
        clock.advance(1)
    monitor.record_samples(10)
    snapshot = monitor.snapshot(1)
    assert (snapshot["t_outer"], snapshot["t_next"]) == (9, 1)
    assert "t_inner" not in snapshot
    assert "t_outer/next" not in snapshot
    assert snapshot["samples_per_sec"] == 1.0


def test_what_completed_inside_a_phase_that_raises_is_kept(monitor, clock, timings):
    with pytest.raises(KeyError), monitor.phase("outer"):
        with monitor.phase("inner"):
            clock.advance(4)
        raise KeyError
    assert timings() == {"inner": 4, "outer/inner": 4}


def test_a_recursive_phase_that_raises_and_is_caught_counts_in_the_outermost(monitor, clock, timings):
    with monitor.phase("walk"):
        clock.advance(1)
        with pytest.raises(KeyError), monitor.phase("walk"):
            clock.advance(2)
            raise KeyError
        clock.advance(4)
    assert timings() == {"walk": 7}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_errors_that_end_a_program_pass_too(monitor, timings, error):
    with pytest.raises(error), monitor.phase("forward"):
        raise error
    assert timings() == {}


def test_one_phase_object_may_be_entered_inside_itself_and_again(monitor, clock, timings):
    phase = monitor.phase("forward")
    with phase, phase:
        clock.advance(2)
    with phase:
        clock.advance(3)
    assert timings() == {"forward": 5}


def test_a_phase_that_took_no_time_is_there_and_one_that_did_not_end_is_not(monitor, clock, timings):
    with monitor.phase("outer"):
        with monitor.phase("inner"):
            pass
        assert timings() == {"inner": 0, "outer/inner": 0}
        clock.advance(2)
    assert timings() == {"outer": 2}
    assert timings() == {}


@pytest.mark.parametrize("count", [1, 2, 17])
def test_the_clock_is_read_twice_a_phase(count):
    clock = TickingClock()
    monitor = ThroughputMonitor("cpu", 1, clock)
    before = clock.readings
    for _ in range(count):
        with monitor.phase("forward"):
            pass
    assert clock.readings - before == 2 * count
    assert monitor.snapshot(1)["t_forward"] == count


def test_the_clock_is_read_twice_a_phase_also_where_it_nests_or_recurs_and_once_where_it_raises():
    clock = TickingClock()
    monitor = ThroughputMonitor("cpu", 1, clock)
    before = clock.readings
    with monitor.phase("a"), monitor.phase("b"), monitor.phase("a"), pytest.raises(KeyError), monitor.phase("c"):
        raise KeyError
    assert clock.readings - before == 7


class TestOutOfOrder:
    """A generator that holds a phase open lets phases end in another order than they began in reverse."""

    def test_what_outlives_a_phase_is_not_nested_in_it(self, monitor, clock):
        first, second = monitor.phase("first"), monitor.phase("second")
        first.__enter__()
        clock.advance(3)
        second.__enter__()
        clock.advance(2)
        first.__exit__(None, None, None)
        clock.advance(4)
        second.__exit__(None, None, None)
        monitor.record_samples(18)
        snapshot = monitor.snapshot(1)
        assert (snapshot["t_first"], snapshot["t_second"]) == (5, 6)
        assert "t_first/second" not in snapshot
        assert snapshot["samples_per_sec"] == 2.0, "together they cover 9 seconds, and not 11"

    @settings(max_examples=300)
    @given(st.data())
    def test_the_accounted_time_is_what_phases_cover_in_any_order(self, data):
        clock = FakeClock()
        monitor = ThroughputMonitor("cpu", 1, clock)
        names = [f"phase {index}" for index in range(data.draw(st.integers(1, 5)))]
        waiting, entered, covered = list(names), {}, set()
        while waiting or entered:
            choices = ([("enter", waiting[0])] if waiting else []) + [("leave", name) for name in entered]
            what, name = data.draw(st.sampled_from(choices))
            phase = monitor.phase(name)
            if what == "enter":
                phase.__enter__()
                entered[name] = clock.now
                waiting.remove(name)
            else:
                phase.__exit__(None, None, None)
                covered |= set(range(entered.pop(name), clock.now))
            clock.advance(data.draw(st.integers(0, 2)))
        monitor.record_samples(60)
        assert monitor.snapshot(1)["samples_per_sec"] == (60 / len(covered) if covered else 0.0)

    def test_phases_that_began_at_once_are_covered_once(self, monitor, clock):
        x, a, b = (monitor.phase(name) for name in "xab")
        x.__enter__()
        clock.advance(1)
        a.__enter__()
        b.__enter__()
        for phase in (x, a, b):
            clock.advance(1)
            phase.__exit__(None, None, None)
        monitor.record_samples(8)
        assert monitor.snapshot(1)["samples_per_sec"] == 8 / 4

    def test_one_that_raises_among_others_is_not_covered(self, monitor, clock):
        a, b, c = (monitor.phase(name) for name in "abc")
        generators = []

        def hold(phase, raises):
            with contextlib.suppress(KeyError), phase:
                yield
                if raises:
                    raise KeyError
            yield

        for phase, raises in ((b, False), (a, True), (c, False)):
            generators.append(hold(phase, raises))
            next(generators[-1])
            clock.advance(2)
        for generator in (generators[2], generators[1], generators[0]):
            next(generator)
            clock.advance(1)
        monitor.record_samples(16)
        assert monitor.snapshot(1)["samples_per_sec"] == 16 / 8

    def test_an_error_ends_what_is_still_open_inside(self, monitor, clock, timings):
        with pytest.raises(KeyboardInterrupt), monitor.phase("outer"):
            monitor.phase("inner").__enter__()  # as if Ctrl-C had kept its end from being told
            raise KeyboardInterrupt
        with monitor.phase("inner"):
            clock.advance(2)
        assert timings() == {"inner": 2}

    def test_ctrl_c_in_reading_the_clock_leaves_nothing_open(self, monitor, clock, timings, monkeypatch):
        phase = monitor.phase("forward")

        def interrupted():
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), phase:
            patch.setattr(type(phase), "_clock", property(lambda self: interrupted), raising=False)
        with phase:
            clock.advance(2)
        assert timings() == {"forward": 2}

    def test_nothing_stays_open(self, monitor, clock, timings):
        def load():
            while True:
                with monitor.phase("load"):
                    clock.advance(1)
                    yield

        loader = load()
        for _ in range(3):
            with monitor.phase("train"):
                next(loader)
                clock.advance(10)
        loader.close()
        # With its yield inside, each "load" goes on until the next item is asked for; the last one never ends.
        assert timings() == {"train": 33, "load": 22}
        with monitor.phase("after"):
            clock.advance(1)
        assert timings() == {"after": 1}

    def test_leaving_a_phase_that_is_not_open_does_nothing(self, monitor, timings):
        monitor.phase("forward").__exit__(None, None, None)
        with monitor.phase("outer"):
            monitor.phase("forward").__exit__(None, None, None)
        assert timings() == {"outer": 0}


class TestThreads:
    def test_each_entry_has_its_own_start(self, monitor, clock, timings):
        phase = monitor.phase("work")
        inside, leave = threading.Event(), threading.Event()

        def work():
            with phase:
                inside.set()
                leave.wait(10)

        thread = threading.Thread(target=work)
        thread.start()
        inside.wait(10)
        clock.advance(3)
        with phase:
            clock.advance(1)
        leave.set()
        thread.join(10)
        assert timings() == {"work": 4 + 1}

    def test_another_thread_is_not_nested_and_not_in_the_rate(self, monitor, clock):
        def helper():
            with monitor.phase("features"):
                clock.advance(6)

        with monitor.phase("backward"):
            thread = threading.Thread(target=helper)
            thread.start()
            thread.join(10)
            clock.advance(4)
        monitor.record_samples(20)
        snapshot = monitor.step(1)
        assert (snapshot["t_backward"], snapshot["t_features"]) == (10, 6)
        assert "t_backward/features" not in snapshot
        assert snapshot["samples_per_sec"] == 2.0

    def test_the_loop_is_the_thread_that_steps_wherever_the_monitor_was_made(self, monitor, clock):
        snapshots = []

        def train():
            for step in (1, 2):
                with monitor.phase("train"):
                    clock.advance(5)
                monitor.record_samples(10)
                snapshots.append(monitor.step(step))

        thread = threading.Thread(target=train)
        thread.start()
        thread.join(10)
        assert [snapshot["samples_per_sec"] for snapshot in snapshots] == [2.0, 2.0]
        monitor.record_samples(3)
        assert monitor.snapshot(3)["samples_per_sec"] == 0.0, "the tail is still the loop's, which is idle"

    def test_eight_threads_lose_nothing(self):
        monitor = ThroughputMonitor("cpu", 1, FakeClock())
        rounds = 3_000

        def hammer(index):
            ticking = TickingClock()
            for _ in range(rounds):
                with monitor.phase("shared"), monitor.phase(f"own {index}"):
                    ticking()
                monitor.record_samples(1)

        snapshots = []
        threads = [threading.Thread(target=hammer, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            snapshots.append(monitor.snapshot(0))
        for thread in threads:
            thread.join(10)
        snapshots.append(monitor.snapshot(0))
        assert sum(snapshot["samples"] for snapshot in snapshots) == 8 * rounds
        entries = {key: ended for key, (_, ended) in recorder_of(monitor).counters.read().phases.items()}
        assert entries["shared",] == 8 * rounds
        assert all(entries["shared", f"own {index}"] == rounds for index in range(8))

    def test_threads_that_are_gone_leave_their_counts_and_nothing_else(self, monitor, clock, timings):
        def helper():
            with monitor.phase("work"):
                pass

        for _ in range(50):
            thread = threading.Thread(target=helper)
            thread.start()
            thread.join(10)
        gc.collect()
        recorder_of(monitor).counters.catch_up()
        recorder_of(monitor).counters.read()
        assert len(recorder_of(monitor).counters.threads) == 1
        assert timings() == {"work": 0}
        assert recorder_of(monitor).counters.read().phases["work",] == (0, 50)


class TestTasks:
    def test_interleaved_tasks_nest_each_for_itself(self, monitor, clock, timings):
        async def work(name, order):
            with monitor.phase(f"outer {name}"):
                await order(1)
                with monitor.phase(f"inner {name}"):
                    await order(10)

        async def tick(seconds):
            clock.advance(seconds)
            await asyncio.sleep(0)

        async def main():
            await asyncio.gather(work("a", tick), work("b", tick))

        asyncio.run(main())
        # a: 1 (then b's 1), a: 10 (then b's 10), and the end of each after that.
        assert timings() == {
            "outer a": 22,
            "inner a": 20,
            "outer b": 21,
            "inner b": 10,
            "outer a/inner a": 20,
            "outer b/inner b": 10,
        }

    def test_two_tasks_in_one_phase_have_a_start_each(self, monitor, clock, timings):
        phase = monitor.phase("work")

        async def work(before, during):
            for _ in range(before):
                await asyncio.sleep(0)
            with phase:
                for _ in range(during):
                    await asyncio.sleep(0)

        async def ticker():
            for _ in range(20):
                clock.advance(1)
                await asyncio.sleep(0)

        async def main():
            await asyncio.gather(ticker(), work(0, 5), work(3, 9))

        asyncio.run(main())
        assert timings() == {"work": 5 + 9}

    @settings(max_examples=80)
    @given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8), st.booleans()), max_size=6))
    def test_overlapping_tasks_are_accounted_once(self, spans):
        clock = FakeClock()
        monitor = ThroughputMonitor("cpu", 1, clock)
        origin = clock.now

        async def work(index, start, length, raises):
            while clock.now < origin + start:
                await asyncio.sleep(0)
            with contextlib.suppress(KeyError), monitor.phase(f"task {index}"), monitor.phase("inside"):
                while clock.now < origin + start + length:
                    await asyncio.sleep(0)
                if raises:
                    raise KeyError

        async def main():
            tasks = [asyncio.create_task(work(index, *span)) for index, span in enumerate(spans)]
            for _ in range(22):
                for _ in range(4):
                    await asyncio.sleep(0)
                clock.advance(1)
            await asyncio.gather(*tasks)

        asyncio.run(main())
        monitor.record_samples(60)
        snapshot = monitor.snapshot(1)
        completed = {index: span for index, span in enumerate(spans) if not span[2]}
        for index, (_, length, _) in completed.items():
            assert snapshot[f"t_task {index}"] == snapshot[f"t_task {index}/inside"] == length
        assert snapshot.get("t_inside", 0) == sum(length for _, length, _ in completed.values())
        covered = {second for start, length, _ in completed.values() for second in range(start, start + length)}
        assert snapshot["samples_per_sec"] == (60 / len(covered) if covered else 0.0)

    def test_a_phase_around_the_event_loop_encloses_its_tasks(self, monitor, clock):
        async def collect():
            with monitor.phase("environment"):
                clock.advance(2)
                await asyncio.sleep(0)
            with monitor.phase("rollout"):
                clock.advance(1)

        with monitor.phase("rollout"):
            asyncio.run(collect())
        monitor.record_samples(6)
        snapshot = monitor.snapshot(1)
        assert snapshot["t_rollout"] == 3, "entered again inside itself, it counts once"
        assert snapshot["t_environment"] == snapshot["t_rollout/environment"] == 2
        assert snapshot["samples_per_sec"] == 2.0

    def test_a_cancelled_task_records_nothing_and_leaves_nothing_open(self, monitor, clock, timings):
        async def work():
            with monitor.phase("work"):
                await asyncio.sleep(100)

        async def main():
            task = asyncio.create_task(work())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with monitor.phase("after"):
                clock.advance(1)

        asyncio.run(main())
        assert timings() == {"after": 1}
        assert recorder_of(monitor).counters._this_thread.tracks.tasks == {}

    def test_a_task_that_is_dropped_with_a_phase_open_is_freed(self, monitor, clock, timings):
        loop = asyncio.new_event_loop()
        never = loop.create_future()

        async def work():
            with monitor.phase("work"):
                await never

        coroutine = work()
        task = loop.create_task(coroutine)
        loop.run_until_complete(asyncio.sleep(0))
        dropped = weakref.ref(task)
        task._log_destroy_pending = False
        del task, coroutine
        never = None
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        gc.collect()
        assert dropped() is None
        with monitor.phase("after"):
            clock.advance(1)
        assert timings() == {"after": 1}

    def test_many_short_tasks_do_not_grow_the_counters(self, monitor, clock):
        async def work():
            with monitor.phase("work"):
                await asyncio.sleep(0)

        async def main():
            for _ in range(100):
                await asyncio.gather(*(work() for _ in range(4)))

        asyncio.run(main())
        assert len(recorder_of(monitor).counters._this_thread.tracks.tracks) <= 1 + 4
        recorder_of(monitor).counters.catch_up()
        assert recorder_of(monitor).counters.read().phases["work",] == (0, 400)

    def test_a_copied_context_in_a_thread_is_that_thread(self, monitor, clock, timings):
        def decode():
            with monitor.phase("decode"):
                clock.advance(2)

        with monitor.phase("data"):
            thread = threading.Thread(target=contextvars.copy_context().run, args=(decode,))
            thread.start()
            thread.join(10)
        assert timings() == {"data": 2, "decode": 2}


def test_memory_does_not_grow_with_the_number_of_phases(clock):
    """On a CPU; what a device has not passed yet is kept, which has a test of its own."""
    monitor = ThroughputMonitor("cpu", 1, clock)

    def run(count):
        for _ in range(count):
            with monitor.phase("outer"), monitor.phase("inner"):
                pass
            monitor.record_samples(1)

    run(100)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run(20_000)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < 10_000
