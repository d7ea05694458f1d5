"""Processes beside the training loop: data workers, forked and spawned, and the ranks of a DDP run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader
from worker_datasets import HoldsTheMonitor, Plain, TimedDataset

from mlvbench.monitoring import ThroughputMonitor, recorder_of

EXPECTED = [[0, 10], [20, 30], [40, 50]]

# Python 3.12 and later warn of a fork in a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.mark.parametrize("method", ["fork", "spawn"])
class TestDataWorkers:
    @staticmethod
    def fetch(monitor, dataset, method):
        loader = DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=method)
        return [batch.tolist() for batch in monitor.iterate(loader)]

    def test_dataset_may_use_a_timed_function(self, monitor, timings, method):
        assert self.fetch(monitor, TimedDataset(), method) == EXPECTED
        assert timings().keys() == {"data"}

    def test_dataset_that_holds_the_monitor_leaves_its_measurements_in_the_worker(self, method):
        monitor = ThroughputMonitor("cpu", 1)
        with monitor.phase("before"):
            pass
        monitor.snapshot(0)
        assert self.fetch(monitor, HoldsTheMonitor(monitor), method) == EXPECTED
        snapshot = monitor.snapshot(1)
        assert [key for key in snapshot if key.startswith("t_")] == ["t_data"], "what a worker measures stays there"
        assert snapshot["samples"] == 0
        assert len(monitor.records) == 2

    def test_dataset_may_be_instrumented(self, monitor, timings, method):
        dataset = Plain()
        with monitor.instrument(dataset, {"decode": "__getitem__"}):
            assert self.fetch(monitor, dataset, method) == EXPECTED
            assert dataset[1] == 10
        assert timings().keys() == {"data", "decode"}
        assert recorder_of(monitor).counters.read().phases["decode",][1] == 1

    def test_workers_may_be_started_inside_a_phase(self, monitor, timings, method):
        with monitor.phase("setup"):
            iterator = iter(
                monitor.iterate(DataLoader(TimedDataset(), batch_size=2, num_workers=1, multiprocessing_context=method))
            )
        assert [batch.tolist() for batch in iterator] == EXPECTED
        assert timings().keys() == {"setup", "data", "setup/data"}


def test_ddp_trains_to_the_same_losses_bare_and_monitored(tmp_path):
    program = Path(__file__).with_name("ddp_program.py")
    run = subprocess.run([sys.executable, program, tmp_path / "store"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    ranks = json.loads(run.stdout)
    assert [rank for rank, *_ in ranks] == [0, 1]
    for _, bare, monitored, keys in ranks:
        assert monitored == bare
        assert {"t_features", "t_loss"} <= set(keys)
