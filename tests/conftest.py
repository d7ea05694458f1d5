import os
from collections.abc import Callable, Iterator

import pytest
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

# The first optimizer of a class makes torch patch the class.
torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def monitor(clock: FakeClock) -> ThroughputMonitor:
    """Takes a snapshot at every step."""
    return ThroughputMonitor("cpu", 1, clock)


@pytest.fixture
def timings(monitor: ThroughputMonitor) -> Callable[[], dict[str, float]]:
    """Ends the interval and gives its `t_` entries, without the prefix."""

    def take() -> dict[str, float]:
        return {key[2:]: value for key, value in monitor.snapshot(0).items() if key.startswith("t_")}

    return take


@pytest.fixture(autouse=True)
def no_residue() -> Iterator[None]:
    """Nothing of ours stays in torch's classes, and each test hears each warning anew."""
    classes = (torch.nn.Module, torch.nn.Linear, torch.nn.CrossEntropyLoss, torch.optim.SGD, torch.optim.Optimizer)
    places = [(cls, name) for cls in classes for name in ("forward", "__call__", "step")]
    before = [vars(cls).get(name) for cls, name in places]
    dynamo._said.clear()
    yield
    assert [vars(cls).get(name) for cls, name in places] == before
