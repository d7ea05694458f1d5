"""An accelerator that works apart from the host, on a timeline of its own driven by the fake clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import pytest
    from fake_clock import FakeClock


class SimulatedDevice:
    """Takes the place of CUDA: work is queued at no cost, runs in order, and synchronising waits for its end.

    Attributes:
        idle_from: When the device has done all that it was given.
        calls: The name and the device of each call, in order.
    """

    def __init__(self, clock: FakeClock, index: int = 0) -> None:
        self.clock = clock
        self.index = index
        self.idle_from = clock.now
        self.capturing = False
        self.allocated = 0
        self.peak = 0
        self.calls: list[tuple[str, str]] = []

    def launch(self, seconds: int) -> None:
        """Queues work."""
        self.idle_from = max(self.idle_from, self.clock.now) + seconds

    def allocate(self, count: int) -> None:
        """Takes (or gives back) memory, in bytes."""
        self.allocated += count
        self.peak = max(self.peak, self.allocated)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Puts itself behind torch.cuda."""
        for name in ("synchronize", "memory_allocated", "max_memory_allocated", "reset_peak_memory_stats"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def _called(self, name: str, device: object) -> None:
        self.calls.append((name, str(device)))

    def synchronize(self, device: object = None) -> None:
        self._called("synchronize", device)
        if self.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.clock.now = max(self.clock.now, self.idle_from)

    def memory_allocated(self, device: object = None) -> int:
        self._called("memory_allocated", device)
        return self.allocated

    def max_memory_allocated(self, device: object = None) -> int:
        self._called("max_memory_allocated", device)
        return self.peak

    def reset_peak_memory_stats(self, device: object = None) -> None:
        self._called("reset_peak_memory_stats", device)
        self.peak = self.allocated
