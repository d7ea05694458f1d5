"""On a real CUDA device, with kernels of known length: what was worked out for the simulated one."""

import time

import pytest
import torch
from device_oracle import Oracle, Program

from mlvbench.autoprofile import autoprofile
from mlvbench.monitoring import ThroughputMonitor
from mlvbench.records.schema import TIMINGS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


@pytest.fixture(scope="module")
def cycles_for():
    """Makes seconds into cycles of the kernel that does nothing but wait."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = 100_000_000
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    torch.cuda.synchronize()
    per_second = cycles / (start.elapsed_time(end) / 1000)
    return lambda seconds: int(seconds * per_second)


@pytest.fixture(params=TIMINGS)
def monitor(request):
    return ThroughputMonitor("cuda", 1, timing=request.param)


class SpinningDevice:
    """The programs' view of a real device: a second of theirs is a spin kernel of `UNIT` seconds."""

    def __init__(self, cycles_for):
        self.cycles_for = cycles_for
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.current = self
        self.graph = None  # none of the programs captures any
        self.clock = self

    def advance(self, seconds):
        until = time.perf_counter() + seconds * UNIT
        while time.perf_counter() < until:
            pass

    def launch(self, seconds, cost=0):
        self.advance(cost)
        if seconds:
            torch.cuda._sleep(self.cycles_for(seconds * UNIT))

    def stream(self, number):
        return torch.cuda.stream(self.streams[number])

    def wait_for(self, number):
        torch.cuda.current_stream().wait_stream(self.streams[number])


UNIT = 0.005
PROGRAMS = {
    "a host ahead of its device": [
        ("launch", 9, 0),
        ("phase", "forward", False, [("launch", 4, 1)]),
        ("phase", "backward", False, [("launch", 8, 0), ("host", 2)]),
        ("snapshot",),
        ("phase", "forward", False, [("launch", 2, 0)]),
    ],
    "a loader that is too slow now and then": [
        ("items", [[("host", 6)], [("host", 1)], [("host", 9)]], [("phase", "forward", False, [("launch", 5, 0)])]),
    ],
    "nested phases": [
        ("phase", "forward", False, [("launch", 3, 0), ("phase", "backward", False, [("launch", 5, 1)]), ("host", 9)]),
        ("phase", "backward", False, [("phase", "backward", False, [("launch", 2, 0)])]),
    ],
    "two streams": [
        ("phase", "forward", False, [("launch", 6, 0), ("stream", 1, [("launch", 9, 0)])]),
        ("stream", 1, [("phase", "data", False, [("launch", 4, 0)])]),
        ("phase", "backward", False, [("wait_for", 1), ("launch", 3, 0)]),
    ],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_phases_are_what_the_schedule_says(monitor, cycles_for, name):
    """To within a unit, since boundaries and launches take a real host time."""
    torch.cuda.synchronize()
    program = [*PROGRAMS[name], ("snapshot",)]
    oracle, actual = Oracle(monitor.timing, 0), Program(monitor, SpinningDevice(cycles_for))
    # Twice, since what runs for the first time is loaded first.
    for _ in range(2):
        actual.snapshots.clear()
        monitor.reset()
        actual.run(program)
    oracle.run(program)
    for snapshot, expected in zip(actual.snapshots, oracle.snapshots, strict=True):
        phases = {key: seconds / UNIT for key, seconds in snapshot.items() if key.startswith("t_")}
        assert phases == pytest.approx({key: expected[key] for key in expected if key.startswith("t_")}, abs=1)


def test_phases_agree_with_the_kernel_times_of_torchs_profiler(cycles_for):
    monitor = ThroughputMonitor("cuda", 1, timing="events")
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    monitor.reset()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as taken:
        for _ in range(3):
            with monitor.phase("forward"):
                torch.cuda._sleep(cycles_for(0.02))
            with monitor.phase("backward"):
                torch.cuda._sleep(cycles_for(0.04))
        snapshot = monitor.snapshot(1)
    kernels = [event.time_range for event in taken.events() if "spin_kernel" in event.name]
    seconds = [kernel.elapsed_us() / 1e6 for kernel in sorted(kernels, key=lambda kernel: kernel.start)]
    assert len(seconds) == 6
    assert snapshot["t_forward"] == pytest.approx(sum(seconds[0::2]), rel=0.02)
    assert snapshot["t_backward"] == pytest.approx(sum(seconds[1::2]), rel=0.02)


def test_a_graph_that_is_replayed_is_timed_as_what_is_in_it(monitor, cycles_for):
    cycles = cycles_for(0.05)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), monitor.phase("captured"):
        torch.cuda._sleep(cycles)
    monitor.reset()
    with monitor.phase("replay"):
        graph.replay()
        graph.replay()
    snapshot = monitor.snapshot(1)
    assert snapshot["t_replay"] == pytest.approx(0.1, rel=0.05)
    assert "t_captured" not in snapshot


def test_events_hold_nothing_up(cycles_for):
    monitor = ThroughputMonitor("cuda", 1, timing="events")
    with monitor.phase("begin"):
        pass
    torch.cuda.synchronize()
    start = torch.cuda.Event()
    with monitor.phase("forward"):
        torch.cuda._sleep(cycles_for(0.5))
        start.record()
    assert not start.query(), "the host is past the phase, and the device is not"
    assert monitor.snapshot(1)["t_forward"] == pytest.approx(0.5, rel=0.05)


def test_a_phase_is_charged_with_its_own_kernels_alone(monitor, cycles_for):
    torch.cuda._sleep(cycles_for(0.2))
    with monitor.phase("forward"):
        torch.cuda._sleep(cycles_for(0.05))
    seconds = monitor.snapshot(1)["t_forward"]
    # What is compared is the share that is right with the share that would be wrong, not the machine's speed.
    assert abs(seconds - 0.05) < abs(seconds - 0.25)


def test_fetching_is_not_charged_with_the_step_before(monitor, cycles_for):
    for _ in monitor.iterate([1, 2, 3]):
        torch.cuda._sleep(cycles_for(0.1))
    snapshot = monitor.snapshot(1)
    assert snapshot["t_data"] < snapshot["wall_sec"] / 2


def test_a_script_that_nobody_edits_is_measured_on_its_device(cycles_for):
    class Sleeps(torch.nn.Linear):
        def forward(self, x):
            torch.cuda._sleep(cycles_for(0.05))
            return super().forward(x)

    model = Sleeps(2, 2, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with autoprofile() as monitor:
        for image in torch.utils.data.DataLoader(torch.ones(8, 2), 4):
            torch.cuda._sleep(cycles_for(0.2))
            model(image.cuda()).sum().backward()
            optimizer.step()
    [record] = monitor.records
    assert monitor.device.type == "cuda"
    assert abs(record["t_forward"] - 0.1) < abs(record["t_forward"] - 0.5)
    assert record["gpu_mem_peak_gb"] > 0


def test_memory_and_its_peak(monitor):
    kept = torch.empty(250_000_000, dtype=torch.float32, device="cuda")
    monitor.reset()
    before = monitor.snapshot(1)
    passing = torch.empty(250_000_000, dtype=torch.float32, device="cuda")
    del passing
    snapshot = monitor.snapshot(2)
    assert snapshot["gpu_mem_gb"] == pytest.approx(before["gpu_mem_gb"])
    assert snapshot["gpu_mem_peak_gb"] == pytest.approx(snapshot["gpu_mem_gb"] + 1.0, rel=0.01)
    del kept


def test_phases_while_a_graph_is_captured_break_nothing(monitor):
    x = torch.zeros(8, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        x + 1
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), monitor.phase("inside"):
        y = x + 1
    x.fill_(2)
    with monitor.phase("replay"):
        graph.replay()
    snapshot = monitor.snapshot(1)
    assert y.tolist() == [3.0] * 8
    assert "t_inside" not in snapshot
    assert snapshot["t_replay"] > 0
