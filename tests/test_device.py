"""The CUDA path, on a simulated device: each phase is charged with its own work, whatever was in flight."""

import multiprocessing
import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_device import SimulatedDevice

import mlvbench.counting.device
from mlvbench.monitoring import ThroughputMonitor, recorder_of


@pytest.fixture
def device(clock, monkeypatch):
    simulated = SimulatedDevice(clock)
    simulated.install(monkeypatch)
    return simulated


@pytest.fixture
def monitor(clock, device):
    return ThroughputMonitor("cuda:0", 1, clock)


class TestTimes:
    def test_work_in_flight_is_not_charged_to_a_phase_and_its_own_is(self, monitor, device, clock, timings):
        device.launch(10)
        with monitor.phase("forward"):
            clock.advance(1)
            device.launch(5)
        clock.advance(3)
        assert timings() == {"forward": 6}

    def test_fetching_is_charged_with_fetching_alone(self, monitor, device, clock, timings):
        def load():
            clock.advance(2)
            yield 1
            clock.advance(3)
            yield 2

        for _ in monitor.iterate(load()):
            device.launch(50)
        assert timings() == {"data": 5}

    def test_timed_and_instrumented_functions_are_charged_alike(self, monitor, device, clock, timings):
        class Net:
            def forward(self):
                device.launch(4)

        net = Net()
        monitor.instrument(net, {"forward": "forward"})
        device.launch(10)
        net.forward()
        device.launch(20)
        monitor.timed("head")(lambda: device.launch(7))()
        assert timings() == {"forward": 4, "head": 7}

    @settings(max_examples=100)
    @given(
        st.lists(
            st.one_of(
                st.tuples(st.just("host"), st.integers(0, 9)),
                st.tuples(st.just("launch"), st.integers(0, 9)),
                st.tuples(st.just("phase"), st.integers(0, 9), st.integers(0, 9)),
            ),
            max_size=12,
        )
    )
    def test_a_phase_is_its_hosts_time_or_its_devices_whichever_ends_later(self, program):
        from fake_clock import FakeClock

        clock = FakeClock()
        device = SimulatedDevice(clock)
        with pytest.MonkeyPatch.context() as patch:
            device.install(patch)
            monitor = ThroughputMonitor("cuda", 1, clock)
            expected = 0
            for kind, *rest in program:
                if kind == "host":
                    clock.advance(rest[0])
                elif kind == "launch":
                    device.launch(rest[0])
                else:
                    with monitor.phase("x"):
                        device.launch(rest[0])
                        clock.advance(rest[1])
                    expected += max(rest)
            assert monitor.snapshot(0).get("t_x", 0) == expected

    def test_the_device_is_waited_for_twice_a_phase_and_then_the_clock_is_read(self, monitor, device, clock):
        readings = []
        original = device.synchronize

        def synchronize(asked=None):
            readings.append(clock.readings)
            original(asked)

        torch.cuda.synchronize = synchronize
        before = clock.readings
        with monitor.phase("forward"):
            assert clock.readings == before + 1
        assert readings == [before, before + 1]
        assert clock.readings == before + 2


class TestFailures:
    def test_an_error_of_the_device_passes_and_leaves_nothing_open(self, monitor, device, clock, monkeypatch, timings):
        error = RuntimeError("device-side assert triggered")

        def fail(device=None):
            raise error

        with pytest.raises(RuntimeError) as caught, monitor.phase("forward"):
            monkeypatch.setattr(torch.cuda, "synchronize", fail)
        assert caught.value is error
        device.install(monkeypatch)
        with monitor.phase("after"):
            clock.advance(1)
        assert timings() == {"after": 1}

    def test_an_error_of_the_users_is_not_delayed_by_waiting(self, monitor, device):
        with pytest.raises(KeyError), monitor.phase("forward"):
            device.calls.clear()
            raise KeyError
        assert device.calls == []

    def test_while_a_stream_is_captured_nothing_is_waited_for_or_recorded(self, monitor, device, clock, timings):
        head = monitor.timed("head")(lambda: 3)
        with device.capture(), monitor.phase("forward"):
            clock.advance(5)
            assert head() == 3
            assert list(monitor.iterate([1])) == [1]
        with monitor.phase("replay"):
            clock.advance(2)
        assert timings() == {"replay": 2}

    def test_a_phase_around_a_capture_is_recorded(self, monitor, device, clock, timings):
        with monitor.phase("capture"), device.capture(), monitor.phase("inside"):
            clock.advance(1)
        assert timings() == {"capture": 1}


class TestMemory:
    def test_memory_is_in_units_of_1e9_bytes_and_the_peak_is_the_intervals(self, monitor, device):
        device.allocate(3_000_000_000)
        device.allocate(-1_000_000_000)
        first = monitor.snapshot(1)
        assert (first["gpu_mem_gb"], first["gpu_mem_peak_gb"]) == (2.0, 3.0)
        second = monitor.snapshot(2)
        assert (second["gpu_mem_gb"], second["gpu_mem_peak_gb"]) == (2.0, 2.0)
        device.allocate(5_000_000_000)
        device.allocate(-5_000_000_000)
        monitor.reset()
        assert monitor.snapshot(3)["gpu_mem_peak_gb"] == 2.0

    def test_where_other_code_starts_the_peak_again_it_is_the_peak_since_then(self, monitor, device):
        monitor.reset()
        device.allocate(5_000_000_000)
        device.allocate(-4_000_000_000)
        device.reset_peak_memory_stats()
        device.allocate(1_000_000_000)
        assert monitor.snapshot(1)["gpu_mem_peak_gb"] == 2.0

    def test_every_call_names_the_device(self, clock, monkeypatch):
        device = SimulatedDevice(clock)
        device.install(monkeypatch)
        monitor = ThroughputMonitor("cuda:1", 1, clock)
        with monitor.phase("forward"):
            device.allocate(1)
        monitor.step(1)
        monitor.reset()
        assert {asked for _, asked in device.calls} == {"cuda:1"}
        assert {name for name, _ in device.calls} == {
            "synchronize", "memory_allocated", "max_memory_allocated", "reset_peak_memory_stats"
        }  # fmt: skip


class TestOtherAccelerators:
    @pytest.fixture(autouse=True)
    def unasked(self):
        """Each test asks the device anew what it can."""
        mlvbench.counting.device._TELLS_TIMES.clear()
        yield
        mlvbench.counting.device._TELLS_TIMES.clear()

    @pytest.mark.parametrize("timing", ["synchronize", "events"])
    def test_with_events_that_tell_times_are_timed_like_cuda(self, clock, monkeypatch, timing):
        device = SimulatedDevice(clock, kind="xpu")
        device.install(monkeypatch)
        monitor = ThroughputMonitor("xpu:0", 1, clock, timing)
        device.launch(5)
        for _ in range(2):
            with monitor.phase("forward"):
                device.launch(3)
        with device.capture(), monitor.phase("captured"):
            device.launch(3)
        device.allocate(2_000_000_000)
        snapshot = monitor.snapshot(1)
        assert monitor.timing == timing
        assert snapshot["t_forward"] == 6
        assert "t_captured" not in snapshot
        assert snapshot["gpu_mem_gb"] == 2.0
        assert {asked for name, asked in device.calls if name != "Event.synchronize"} == {"xpu:0"}

    def test_without_such_events_are_synchronised_which_is_said_once(self, clock, monkeypatch):
        device = SimulatedDevice(clock, kind="mps")
        device.install(monkeypatch)

        def refuse(kind, **options):
            raise NotImplementedError("no such events")

        monkeypatch.setattr(torch, "Event", refuse)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                monitor = ThroughputMonitor("mps", 1, clock, "events")
                device.launch(5)
                with monitor.phase("forward"):
                    device.launch(3)
                assert monitor.snapshot(1)["t_forward"] == 3
                assert monitor.timing == "synchronize"
        [warning] = caught
        assert str(warning.message) == (
            "mps devices have no events that tell times (no such events): they are synchronised at the boundaries of "
            'phases, as with timing="synchronize"'
        )

    def test_whose_memory_nobody_keeps_books_of_have_no_figures(self, clock, monkeypatch):
        device = SimulatedDevice(clock, kind="mps")
        device.install(monkeypatch)

        def refuse(device):
            raise RuntimeError("Allocator for mps is not a DeviceAllocator.")

        monkeypatch.setattr(torch.accelerator, "memory_allocated", refuse, raising=False)
        snapshot = ThroughputMonitor("mps", 1, clock).snapshot(1)
        assert (snapshot["gpu_mem_gb"], snapshot["gpu_mem_peak_gb"]) == (0.0, 0.0)


def report(monitor, queue):
    """What a phase in another process does with the device."""

    def forbidden(*args):
        raise AssertionError("the device was touched")

    for name in ("synchronize", "memory_allocated", "is_current_stream_capturing", "reset_peak_memory_stats"):
        setattr(torch.cuda, name, forbidden)
    torch.cuda.is_initialized = lambda: False
    torch.Event = torch.accelerator.current_stream = forbidden
    with monitor.phase("work"):
        pass
    snapshot = monitor.snapshot(1)
    queue.put((snapshot["t_work"] > 0, snapshot["gpu_mem_gb"]))


class TestOtherProcesses:
    @pytest.mark.parametrize(("method", "timing"), [("fork", "synchronize"), ("fork", "events"), ("spawn", "events")])
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_worker_leaves_the_device_alone(self, method, timing):
        monitor = ThroughputMonitor("cuda:0", 1, timing=timing)
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=report, args=(monitor, queue))
        process.start()
        assert queue.get(timeout=60) == (True, 0.0)
        process.join(60)
        assert process.exitcode == 0

    def test_a_forked_one_leaves_what_is_pending_to_its_parent(self, device, clock, monkeypatch):
        """Here by another process id, since the events of a real device cannot be asked for in a forked process."""
        monitor = ThroughputMonitor("cuda:0", 1, clock, "events")
        with monitor.phase("parents"):
            device.launch(5)
        outer = monitor.phase("outer")
        outer.__enter__()
        monkeypatch.setattr("os.getpid", lambda: -1)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
        monkeypatch.setattr(torch.accelerator, "current_stream", None)
        with monitor.phase("childs"):
            clock.advance(3)
        outer.__exit__(None, None, None)
        made, calls = device.made, list(device.calls)
        snapshot = monitor.snapshot(1)
        assert {key: value for key, value in snapshot.items() if key.startswith("t_")} == {
            "t_childs": 3,
            "t_outer/childs": 3,
        }
        assert (device.made, device.calls) == (made, calls)
        assert not recorder_of(monitor).counters.timeline._marked
        [[_, thread]] = recorder_of(monitor).counters.threads
        assert not any(node.seconds.pending for node in thread.places() if node.entries)

    def test_a_copy_in_this_process_uses_it(self, monitor, device, clock):
        clone = pickle.loads(pickle.dumps(ThroughputMonitor("cuda:0", 1)))
        device.calls.clear()
        with clone.phase("work"):
            pass
        assert device.calls == [("synchronize", "cuda:0")] * 2


class TestCpu:
    def test_no_cuda_call_is_made(self, clock, monkeypatch):
        """On a CPU monitor, enabled or not, and on a disabled one whatever its device."""
        for name, value in list(vars(torch.cuda).items()):
            if callable(value) and not isinstance(value, type):
                monkeypatch.setattr(torch.cuda, name, self.forbidden)
        for monitor in (ThroughputMonitor("cpu", 1, clock), ThroughputMonitor("cuda", None, clock)):
            for step, _ in enumerate(monitor.iterate([1, 2]), start=1):
                with monitor.phase("forward"):
                    monitor.timed("head")(lambda: None)()
                monitor.record_samples(1)
                snapshot = monitor.step(step)
            monitor.reset()
            if monitor.enabled:
                assert (snapshot["gpu_mem_gb"], snapshot["gpu_mem_peak_gb"]) == (0.0, 0.0)

    @staticmethod
    def forbidden(*args, **kwargs):
        raise AssertionError("a torch.cuda function was called")


def test_an_unknown_device_is_an_error_of_torch():
    with pytest.raises(RuntimeError) as theirs:
        torch.device("warp")
    with pytest.raises(RuntimeError) as ours:
        ThroughputMonitor("warp")
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), "cuda:1", torch.device("cuda", 0)])
def test_the_device_is_what_was_asked_for(device):
    assert ThroughputMonitor(device, None).device == torch.device(device)
