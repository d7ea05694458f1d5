"""The device that the work runs on: the only file that knows a backend."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

GIGABYTE = 1e9
"""Bytes in the unit of `gpu_mem_gb`: 1e9, not 2**30."""

_HOST_TYPES = frozenset({"cpu", "meta"})


class Memory(NamedTuple):
    """Device memory held by tensors, in units of 1e9 bytes."""

    allocated: float
    peak: float


def accelerator_of(tensors: Iterable[torch.Tensor]) -> torch.device | None:
    """The device of the first tensor that is on an accelerator of this machine's; `None` if there is no such tensor."""
    return next((tensor.device for tensor in tensors if _is_usable(tensor.device.type)), None)


def _is_usable(kind: str) -> bool:
    if kind in _HOST_TYPES:
        return False
    if kind == "cuda":
        return torch.cuda.is_available()
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == kind


class Device:
    """Waits for a device, and reads its memory.

    In a process that is not the one it was made in (a forked or spawned data worker, say), a device is left alone
    unless that process has started it itself: touching it would fail, or take up device memory in every worker.

    Args:
        device: As `torch.device` takes it; what that raises passes through.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.is_accelerator = self.device.type not in _HOST_TYPES
        self._is_cuda = self.device.type == "cuda"
        self._process = os.getpid()

    def wait(self) -> bool:
        """Waits for all work that the device has been given.

        Returns:
            Whether the moment may be recorded. While a stream is being captured into a CUDA graph it may not:
            nothing runs then, and waiting would break the capture.

        Raises:
            RuntimeError: For a CUDA device in a PyTorch without CUDA, and what torch raises where the device fails.
        """
        if not self.is_accelerator or self._is_elsewhere():
            return True
        if not self._is_cuda:
            torch.accelerator.synchronize(self.device)
            return True
        if not torch.backends.cuda.is_built() and not torch.cuda.is_available():  # type: ignore[no-untyped-call]
            raise RuntimeError(f"the monitor's device is {str(self.device)!r}, but this PyTorch was built without CUDA")
        if torch.cuda.is_current_stream_capturing():
            return False
        torch.cuda.synchronize(self.device)
        return True

    def take_memory(self) -> Memory:
        """Reads the memory, and starts its peak again; no other counter of the device is touched.

        Returns:
            What is allocated now, and the peak since the last call; zeros where the device is not a CUDA device.
        """
        if not self._is_cuda or self._is_elsewhere():
            return Memory(0.0, 0.0)
        memory = Memory(
            torch.cuda.memory_allocated(self.device) / GIGABYTE,
            torch.cuda.max_memory_allocated(self.device) / GIGABYTE,
        )
        # Before anything is allocated there is nothing to reset, and CUDA, if not started yet, would refuse.
        if memory.peak > 0:
            torch.cuda.reset_peak_memory_stats(self.device)
        return memory

    def _is_elsewhere(self) -> bool:
        if os.getpid() == self._process:
            return False
        is_started = getattr(torch.get_device_module(self.device), "is_initialized", None)
        return is_started is None or not is_started()
