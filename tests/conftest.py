import os
import signal
from collections.abc import Callable, Iterator

import pytest
import residue
import torch
from fake_clock import FakeClock
from hypothesis import HealthCheck, settings

from mlvbench import dynamo
from mlvbench.monitoring import ThroughputMonitor

# How long an example takes says more of the machine than of the code.
settings.register_profile(
    "mlvbench", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("mlvbench")

# Threads that wait for each other on tensors this small take most of the time on a busy machine.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# Tables are as wide as this says, and not all who start tests say the same.
os.environ.pop("COLUMNS", None)

# The first optimizer of a class makes torch patch the class.
torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1)

residue.adopt_orphans()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def monitor(clock: FakeClock) -> Iterator[ThroughputMonitor]:
    """Takes a snapshot at every step."""
    monitor = ThroughputMonitor("cpu", 1, clock)
    yield monitor
    assert residue.open_phases(monitor) == ""


@pytest.fixture
def timings(monitor: ThroughputMonitor) -> Callable[[], dict[str, float]]:
    """Ends the interval and gives its `t_` entries, without the prefix."""

    def take() -> dict[str, float]:
        return {key[2:]: value for key, value in monitor.snapshot(0).items() if key.startswith("t_")}

    return take


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard() -> Iterator[None]:
    """In the background of a script Ctrl-C is ignored, by the tests and by all that they start."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def no_residue() -> Iterator[None]:
    """Nothing of ours stays in torch, no process goes on, and each test hears each warning anew."""
    seams, processes = residue.seams(), residue.processes()
    dynamo._said.clear()
    yield
    residue.end_processes(processes)
    assert residue.are_the_same(residue.seams(), seams)
