"""Datasets that use a monitor, for workers that import them by name."""

from torch.utils.data import Dataset

from mlvbench.monitoring import ThroughputMonitor

monitor = ThroughputMonitor("cpu", 1)


@monitor.timed("decode")
def decode(index):
    return index * 10


class TimedDataset(Dataset):
    """Its items come from a timed function."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return decode(index)


class HoldsTheMonitor(Dataset):
    """Keeps the monitor, and uses all of it."""

    def __init__(self, monitor):
        self.monitor = monitor
        self.read = monitor.phase("read")

    def __len__(self):
        return 6

    def __getitem__(self, index):
        with self.monitor.phase("decode"), self.read:
            self.monitor.record_samples(1)
        self.monitor.step(index)
        return index * 10


class Plain(Dataset):
    """Knows nothing of a monitor."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index * 10
