"""On a real CUDA device: a phase is charged with its own kernels, and not with those in flight."""

import pytest
import torch

from mlvbench.autoprofile import autoprofile
from mlvbench.monitoring import ThroughputMonitor

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


@pytest.fixture
def monitor():
    return ThroughputMonitor("cuda", 1)


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
