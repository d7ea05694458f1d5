"""Both ways to time a device, against what its schedule says each phase must be."""

import asyncio
import gc
import pickle
import threading

import pytest
import torch
from device_oracle import Oracle, Program, device_programs
from fake_clock import FakeClock
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from simulated_device import Event, SimulatedDevice

from mlvbench.counting import timeline
from mlvbench.counting.device import Device
from mlvbench.counting.timeline import Span, Timeline
from mlvbench.monitoring import ThroughputMonitor, recorder_of
from mlvbench.records import schema


@pytest.fixture
def device(clock, monkeypatch):
    simulated = SimulatedDevice(clock)
    simulated.install(monkeypatch)
    return simulated


@pytest.fixture
def monitor(clock, device):
    return ThroughputMonitor("cuda:0", 1, clock, timing="events")


def check(program, timing):
    """Runs a program, and compares it with the oracle's account of it."""
    clock = FakeClock()
    device = SimulatedDevice(clock, index=1)
    device.current_device = 0
    with pytest.MonkeyPatch.context() as patch:
        device.install(patch)
        monitor = ThroughputMonitor("cuda:1", 1, clock, timing=timing)
        oracle, actual = Oracle(timing, clock.now), Program(monitor, device)
        for statement in [*program, ("snapshot",)]:
            for side in (oracle, actual):
                side.attempt([statement])
        assert actual.snapshots == oracle.snapshots
        assert clock.now == oracle.now, "the host waited when it had to, and not else"
        assert device.synchronizations == oracle.waits
        if timing == "events":
            assert device.made <= device.recorded
    return oracle, device


class TestTheOracle:
    @pytest.mark.parametrize("timing", schema.TIMINGS)
    @settings(max_examples=150)
    @given(program=device_programs())
    def test_any_program_gives_what_its_schedule_says(self, timing, program):
        check(program, timing)

    @settings(max_examples=200)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["forward", "backward"]),
                st.lists(st.tuples(st.sampled_from(["host", "launch"]), st.integers(0, 9)), max_size=4),
                st.integers(0, 2),
            ),
            min_size=1,
        )
    )
    def test_phases_and_the_gaps_between_them_partition_the_devices_time(self, row):
        """Phases back to back, each on a stream of its own choice: gaps are phases too, so that nothing is left."""
        program = []
        for name, work, stream in row:
            body = [(kind, length, 0) if kind == "launch" else (kind, length) for kind, length in work]
            program += [("stream", stream, [("phase", name, False, body)])]
            program += [("phase", "data", False, [])]
        oracle, _ = check(program, "events")
        [snapshot] = oracle.snapshots
        covered = sum(snapshot[f"t_{name}"] for name in ("forward", "backward", "data") if f"t_{name}" in snapshot)
        between = [
            after - before for before, after in zip(oracle.boundaries[1::2], oracle.boundaries[2::2], strict=False)
        ]
        assert covered + sum(between) == oracle.boundaries[-1] - oracle.boundaries[0]


class TestTheOracleItself:
    """It is worth something: it finds bugs that are put there."""

    def read_too_early(self, patch):
        patch.setattr(Device, "wait", lambda self: True)

    def used_again_while_pending(self, patch):
        patch.setattr(Timeline, "_take_event", lambda self: self._marked[-1].event if self._marked else None)

    def recorded_in_the_stream_of_the_current_device(self, patch):
        patch.setattr(Device, "record", lambda self, event: record_in(None, event))

    def recorded_in_one_stream_always(self, patch):
        def record(self, event):
            return record_in(torch.accelerator.current_stream(self._index).device.streams[0], event)

        patch.setattr(Device, "record", record)

    def waited_for_at_each_boundary(self, patch):
        mark = Timeline.mark

        def wait_and_mark(self):
            self._device.wait()
            return mark(self)

        patch.setattr(Timeline, "mark", wait_and_mark)

    def run_backwards(self, patch):
        patch.setattr(timeline, "max", lambda *values: values[0], raising=False)

    def recorded_during_a_capture(self, patch):
        patch.setattr(Device, "is_capturing", lambda self: False)

    @pytest.mark.parametrize(
        "bug",
        [
            read_too_early,
            used_again_while_pending,
            recorded_in_the_stream_of_the_current_device,
            recorded_in_one_stream_always,
            waited_for_at_each_boundary,
            run_backwards,
            recorded_during_a_capture,
        ],
        ids=lambda bug: bug.__name__,
    )
    def test_it_finds_events_that_are(self, bug, monkeypatch):
        bug(self, monkeypatch)

        @settings(max_examples=300, database=None, phases=[Phase.generate])
        @given(device_programs())
        def property_of_events(program):
            check(program, "events")

        with pytest.raises((AssertionError, RuntimeError)):
            property_of_events()


def record_in(stream, event):
    event = event or torch.Event("cuda:1", enable_timing=True)
    event.record(stream)
    return event


class TestEvents:
    def test_the_host_is_not_held_up(self, monitor, device, clock):
        for _ in range(3):
            with monitor.phase("forward"):
                device.launch(10, cost=1)
        assert clock.now == 7_003
        assert device.synchronizations == 0
        # The first second the device had nothing to do.
        assert monitor.snapshot(3)["t_forward"] == 31
        assert device.synchronizations == 1

    @pytest.mark.parametrize(("timing", "data"), [("events", 6), ("synchronize", 16)])
    def test_data_is_the_time_for_which_the_device_stands_idle(self, device, clock, timing, data):
        """The README's picture: a loader that takes 4 an item, and steps of 6, 2, 2 and 2."""

        def load():
            for _ in range(4):
                clock.advance(4)
                yield

        monitor = ThroughputMonitor("cuda:0", 1, clock, timing)
        steps = iter([6, 2, 2, 2])
        for _ in monitor.iterate(load()):
            with monitor.phase("step"):
                device.launch(next(steps))
        snapshot = monitor.snapshot(1)
        assert (snapshot["t_data"], snapshot["t_step"]) == (data, 12)

    def test_a_hidden_loader_costs_nothing(self, monitor, device, clock, timings):
        device.launch(100)
        for _ in monitor.iterate(self.slow(clock)):
            pass
        assert timings() == {"data": 0}

    @staticmethod
    def slow(clock):
        for _ in range(3):
            clock.advance(10)
            yield

    def test_wall_time_is_the_hosts_up_to_when_the_device_is_done(self, monitor, device, clock):
        with monitor.phase("forward"):
            device.launch(10)
        snapshot = monitor.snapshot(1)
        assert snapshot["wall_sec"] == 10
        clock.advance(2)
        assert monitor.snapshot(2)["wall_sec"] == 2

    def test_a_phase_on_another_stream_is_what_it_adds_to_those_before_it(self, monitor, device, timings):
        with monitor.phase("forward"):
            device.launch(10)
        with device.stream(1):
            with monitor.phase("hidden"):
                device.launch(8)
            with monitor.phase("exposed"):
                device.launch(5)
        assert timings() == {"forward": 10, "hidden": 0, "exposed": 3}

    def test_what_is_launched_on_another_stream_and_not_waited_for_is_not_seen(self, monitor, device, timings):
        with monitor.phase("forward"):
            device.launch(2)
            with device.stream(1):
                device.launch(50)
        with monitor.phase("joined"):
            device.wait_for(1)
        assert timings() == {"forward": 2, "joined": 48}

    def test_a_phase_that_is_open_at_a_snapshot_belongs_whole_to_the_next(self, monitor, device, timings):
        with monitor.phase("outer"):
            device.launch(3)
            assert timings() == {}
            device.launch(4)
        assert timings() == {"outer": 7}

    def test_a_snapshot_during_a_capture_waits_for_nothing_and_loses_nothing(self, monitor, device, timings):
        with monitor.phase("before"):
            device.launch(3)
        with device.capture():
            assert timings() == {}
        assert device.synchronizations == 0
        assert timings() == {"before": 3}

    def test_a_replayed_graph_is_timed(self, monitor, device, timings):
        with device.capture() as graph, monitor.phase("captured"):
            device.launch(7)
        with monitor.phase("replay"):
            device.replay(graph)
            device.replay(graph)
        assert timings() == {"replay": 14}

    def test_an_error_of_the_users_touches_no_device(self, monitor, device):
        with pytest.raises(KeyError), monitor.phase("forward"):
            recorded = device.recorded
            raise KeyError
        assert device.recorded == recorded

    def test_reset_drops_what_came_before(self, monitor, device, timings):
        with monitor.phase("warm-up"):
            device.launch(5)
        monitor.reset()
        assert device.synchronizations == 1
        with monitor.phase("forward"):
            device.launch(2)
        assert timings() == {"forward": 2}

    def test_nothing_is_waited_for_before_anything_was_marked(self, monitor, device):
        monitor.snapshot(1)
        monitor.reset()
        assert device.synchronizations == 0

    def test_threads_have_phases_of_their_own(self, monitor, device, clock):
        with monitor.phase("loop"):
            device.launch(4)
            with device.stream(1):
                thread = threading.Thread(target=self.work, args=(monitor, device))
                thread.start()
                thread.join()
        monitor.record_samples(8)
        snapshot = monitor.step(1)
        assert (snapshot["t_loop"], snapshot["t_thread"]) == (4, 6)
        assert snapshot["samples_per_sec"] == 2.0

    @staticmethod
    def work(monitor, device):
        with monitor.phase("thread"):
            device.launch(6)

    def test_what_a_thread_that_is_gone_has_launched_is_not_lost(self, monitor, device, timings):
        """It is folded into the totals only once it is known."""
        with device.stream(1):
            thread = threading.Thread(target=self.work, args=(monitor, device))
            thread.start()
            thread.join()
        with device.stream(1), device.capture():
            assert timings() == {}
        del thread
        gc.collect()
        assert timings() == {"thread": 6}


class TestInTheMiddle:
    """Something else comes in between."""

    def test_a_signal_handler_that_takes_a_snapshot_while_one_is_taken(self, monitor, device, monkeypatch):
        elapsed_time = Event.elapsed_time
        handled = []

        def handler():
            handled.append(monitor.snapshot(99))
            with monitor.phase("checkpoint"):
                device.launch(50)

        def elapsed(start, end):
            if not handled:
                handler()
            return elapsed_time(start, end)

        monkeypatch.setattr(Event, "elapsed_time", elapsed)
        for _ in range(3):
            with monitor.phase("x"):
                device.launch(10)
        monitor.snapshot(1)
        monitor.snapshot(2)
        assert sum(record.get("t_x", 0) for record in monitor.records) == 30
        assert min(record.get("t_x", 0) for record in monitor.records) == 0
        assert sum(record.get("t_checkpoint", 0) for record in monitor.records) == 50

    @pytest.mark.parametrize("place", ["has_passed", "elapsed"])
    @pytest.mark.parametrize("comes_after", [False, True])
    def test_ctrl_c_while_the_device_is_asked(self, monitor, device, monkeypatch, timings, place, comes_after):
        for _ in range(3):
            with monitor.phase("x"):
                device.launch(10)
        original = getattr(Device, place)

        def interrupted(*args):
            if comes_after:
                original(*args)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Device, place, interrupted)
            monitor.snapshot(1)
        assert timings() == {"x": 30}

    def test_ctrl_c_after_an_event_was_taken_back(self, monitor, device, timings):
        class Pool(list):
            def append(self, event):
                super().append(event)
                recorder_of(monitor).counters.timeline._pool = list(self)
                raise KeyboardInterrupt

        for _ in range(2):
            with monitor.phase("x"):
                device.launch(10)
        recorder_of(monitor).counters.timeline._pool = Pool()
        with pytest.raises(KeyboardInterrupt):
            monitor.snapshot(1)
        with monitor.phase("x"):
            device.launch(5)
        assert timings() == {"x": 25}

    def test_threads_that_mark_as_fast_as_one_learns_hold_nothing_up(self, monitor, device, clock, monkeypatch):
        """Each moment that is learned is followed by another that has been passed too."""
        learn = Timeline._learn

        def learn_and_mark(self, moment):
            learn(self, moment)
            self.mark()
            clock.advance(1)

        with monitor.phase("x"):
            device.launch(10)
        monkeypatch.setattr(Timeline, "_learn", learn_and_mark)
        assert monitor.snapshot(1)["t_x"] == 10

    def test_nothing_is_locked_while_the_device_is_waited_for(self, monitor, device, monkeypatch):
        """So that other threads' snapshots, and forked processes, do not wait with it."""
        seen = []

        def synchronize(device_asked):
            def try_to_lock():
                for lock in (
                    recorder_of(monitor)._lock,
                    recorder_of(monitor).counters._lock,
                    recorder_of(monitor).counters.timeline._lock,
                ):
                    seen.append(lock.acquire(blocking=False))
                    lock.release()

            thread = threading.Thread(target=try_to_lock)
            thread.start()
            thread.join()
            device.synchronize(device_asked)

        with monitor.phase("x"):
            device.launch(10)
        monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
        monitor.snapshot(1)
        assert seen == [True] * 3


class TestOverlap:
    """Outermost phases that overlap count once in the rate, whenever their times become known."""

    @pytest.mark.parametrize("timing", schema.TIMINGS)
    def test_one_that_ends_in_a_capture_takes_nothing_from_the_others(self, device, clock, timing):
        monitor = ThroughputMonitor("cuda:0", 1, clock, timing)
        first, second = monitor.phase("first"), monitor.phase("second")
        first.__enter__()
        second.__enter__()
        clock.advance(10)
        first.__exit__(None, None, None)
        with device.capture():
            second.__exit__(None, None, None)
        monitor.record_samples(100)
        snapshot = monitor.snapshot(1)
        assert "t_second" not in snapshot
        assert (snapshot["t_first"], snapshot["samples_per_sec"]) == (10, 10.0)

    def test_a_long_one_beside_many_short_ones_keeps_little(self, monitor, device, clock):
        async def short():
            for _ in range(6_000):
                with monitor.phase("short"):
                    device.launch(1)
                clock.advance(1)
                await asyncio.sleep(0)

        async def long():
            with monitor.phase("long"):
                await asyncio.gather(asyncio.ensure_future(short()))

        sizes = []

        async def watch(task):
            while not task.done():
                for _, thread in recorder_of(monitor).counters.threads:
                    sizes.extend(
                        len(node.covered.pending) for node in thread.places() if isinstance(node.covered, Span)
                    )
                await asyncio.sleep(0)

        async def main():
            task = asyncio.ensure_future(long())
            await watch(task)

        asyncio.run(main())
        monitor.record_samples(6_000)
        snapshot = monitor.snapshot(1)
        assert (snapshot["t_short"], snapshot["t_long"]) == (6_000, 6_000)
        assert snapshot["samples_per_sec"] == 1.0
        assert max(sizes) < 10_000

    def test_moments_follow_each_other_as_they_were_marked_and_the_clocks_numbers_before_them(self, monitor):
        mark = recorder_of(monitor).counters.now()
        first, second = mark(), mark()
        assert second >= first
        assert not first >= second
        assert first >= 8_000.0
        assert not first <= 8_000.0


class TestFromTheClockToTheDevice:
    """The device is found while the program runs."""

    def test_what_a_phase_took_before_and_after_adds_up(self, device, clock):
        monitor = ThroughputMonitor("cpu", 1, clock, timing="events")
        with monitor.phase("x"):
            clock.advance(3)
        recorder_of(monitor).measure_on(torch.device("cuda:0"))
        with monitor.phase("x"):
            device.launch(4)
        assert monitor.snapshot(1)["t_x"] == 7

    def test_a_phase_that_then_ends_in_no_time_is_there(self, device, clock):
        monitor = ThroughputMonitor("cpu", 1, clock, timing="events")
        with monitor.phase("x"):
            clock.advance(3)
        monitor.snapshot(1)
        recorder_of(monitor).measure_on(torch.device("cuda:0"))
        with monitor.phase("x"):
            pass
        assert monitor.snapshot(2)["t_x"] == 0


class TestTheEventsThemselves:
    def test_their_number_does_not_grow_with_the_run(self, monitor, device):
        for step in range(1, 200):
            for _ in range(5):
                with monitor.phase("forward"):
                    device.launch(1)
            monitor.step(step)
        assert device.made <= 5 * 2 + 2

    def test_nor_where_no_snapshot_is_taken_for_long(self, monitor, device, clock, timings):
        for _ in range(50_000):
            with monitor.phase("forward"):
                device.launch(1)
            clock.advance(1)
        assert device.made <= 5_000
        assert device.synchronizations == 0
        seconds = recorder_of(monitor).counters.phases["forward"]
        [node] = recorder_of(monitor).counters.threads[0][1].track.root.values()
        assert node.phase is seconds
        assert len(node.seconds.pending) <= 5_000
        assert timings() == {"forward": 50_000}

    def test_one_is_not_used_again_before_it_is_passed(self, monitor, device, clock, timings):
        """The device is behind by more than what is looked at now and then."""
        for _ in range(5_000):
            with monitor.phase("forward"):
                device.launch(2)
            clock.advance(1)
        assert timings() == {"forward": 10_000}

    def test_short_times_are_as_exact_after_an_hour_as_at_the_start(self, monitor, device, clock):
        device.single_precision = True
        for _ in range(4):
            with monitor.phase("validation"):
                device.launch(3_600.1)
            with monitor.phase("forward"):
                device.launch(0.000_123)
        snapshot = monitor.snapshot(1)
        assert snapshot["t_forward"] == pytest.approx(4 * 0.000_123, rel=1e-3)
        assert snapshot["t_validation"] == pytest.approx(4 * 3_600.1, rel=1e-6)

    def test_they_are_recorded_in_the_stream_of_the_monitors_device(self, clock, monkeypatch):
        device = SimulatedDevice(clock, index=1)
        device.current_device = 0
        device.install(monkeypatch)
        monitor = ThroughputMonitor("cuda:1", 1, clock, timing="events")
        with monitor.phase("forward"):
            device.launch(5)
        assert monitor.snapshot(1)["t_forward"] == 5

    def test_without_an_index_they_are_those_of_the_device_that_is_current_when_they_begin(self, clock, monkeypatch):
        device = SimulatedDevice(clock, index=1)
        device.install(monkeypatch)
        monitor = ThroughputMonitor("cuda", 1, clock, timing="events")
        with monitor.phase("forward"):
            device.launch(5)
            device.current_device = 0
        device.calls.clear()
        assert monitor.snapshot(1)["t_forward"] == 5
        assert {asked for _, asked in device.calls} == {"cuda:1"}

    def test_an_error_of_the_device_passes_and_loses_nothing(self, monitor, device, monkeypatch, timings):
        with monitor.phase("forward"):
            device.launch(5)
        error = RuntimeError("device-side assert triggered")

        def fail(*args):
            raise error

        for owner, name in ((torch.cuda, "synchronize"), (Event, "elapsed_time")):
            with monkeypatch.context() as patch, pytest.raises(RuntimeError) as caught:
                patch.setattr(owner, name, fail)
                monitor.snapshot(1)
            assert caught.value is error
        assert timings() == {"forward": 5}


class TestModes:
    def test_another_one_is_an_error_that_names_the_two(self):
        for timing in ("event", None, 3, "SYNCHRONIZE"):
            with pytest.raises(ValueError, match=r"timing must be 'synchronize' or 'events', got "):
                ThroughputMonitor("cpu", timing=timing)

    @pytest.mark.parametrize("timing", schema.TIMINGS)
    def test_on_the_cpu_both_are_the_clock(self, clock, timing, monkeypatch):
        monkeypatch.setattr(torch, "Event", None)
        monitor = ThroughputMonitor("cpu", 1, clock, timing=timing)
        before = clock.readings
        with monitor.phase("forward"):
            clock.advance(3)
        assert clock.readings == before + 2
        assert monitor.snapshot(1)["t_forward"] == 3
        assert monitor.timing == timing

    def test_it_is_read_only(self, monitor):
        assert monitor.timing == "events"
        with pytest.raises(AttributeError):
            monitor.timing = "synchronize"

    def test_copies_and_pickles_keep_it(self, monitor, device, clock):
        clone = pickle.loads(pickle.dumps(ThroughputMonitor("cuda:0", 1, timing="events")))
        assert clone.timing == "events"
        with clone.phase("forward"):
            device.launch(5)
        assert device.synchronizations == 0
        assert clone.snapshot(1)["t_forward"] == 5

    @pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this PyTorch was built with CUDA, and says it its way")
    def test_first_phase_on_cuda_says_that_pytorch_was_built_without_cuda(self):
        monitor = ThroughputMonitor("cuda", 1, timing="events")
        with pytest.raises(RuntimeError, match="'cuda', but this PyTorch was built without CUDA"), monitor.phase("x"):
            pass
