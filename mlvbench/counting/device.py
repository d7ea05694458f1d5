"""The device that the work runs on: the only file that knows a backend."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
    """Waits for a device, tells when it passed what, and reads its memory.

    In a process that is not the one it was made in (a forked or spawned data worker, say), a device is left alone
    unless that process has started it itself: touching it would fail, or take up device memory in every worker.

    Args:
        device: As `torch.device` takes it; what that raises passes through.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.is_accelerator = self.device.type not in _HOST_TYPES
        self._is_cuda = self.device.type == "cuda"
        self._is_built = False
        self._index = self.device.index
        self._process = os.getpid()

    def wait(self) -> bool:
        """Waits for all work that the device has been given.

        Returns:
            Whether it could. While a stream is being captured into a CUDA graph it cannot: nothing runs then, and
            waiting would break the capture.

        Raises:
            RuntimeError: For a CUDA device in a PyTorch without CUDA, and what torch raises where the device fails.
        """
        if not self.is_accelerator or self.belongs_to_another_process():
            return True
        if self.is_capturing():
            return False
        (torch.cuda if self._is_cuda else torch.accelerator).synchronize(self._its_device())
        return True

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured into a graph.

        Raises:
            RuntimeError: For a CUDA device in a PyTorch without CUDA.
        """
        if self._is_cuda:
            if not self._is_built:
                self._check_build()
            return torch.cuda.is_current_stream_capturing()
        asks = getattr(torch.get_device_module(self.device), "is_current_stream_capturing", None)
        return asks is not None and bool(asks())

    def has_timing_events(self) -> bool:
        """Whether its events tell when the device passed them; where they do not, a warning says so once."""
        return self._is_cuda or _has_timing_events(self.device.type)

    def record(self, event: torch.Event | None) -> torch.Event:
        """Records an event in the stream that is current for this device, whichever device is current.

        Args:
            event: One that the device has passed and that is not needed any more, or None for a new one.

        Returns:
            The event.
        """
        if self._index is None:
            # From here on it is this one, since its events are.
            self._index = torch.accelerator.current_device_index()
        if event is None:
            event = torch.Event(self._its_device(), enable_timing=True)
        # Without the stream, it would be that of the current device.
        event.record(torch.accelerator.current_stream(self._index))
        return event

    def has_passed(self, event: torch.Event) -> bool:
        """Whether the device has come to an event."""
        return event.query()

    def elapsed(self, start: torch.Event, end: torch.Event) -> float:
        """Returns the seconds between two events that the device has passed; negative if it passed the end first."""
        return start.elapsed_time(end) / 1000

    def take_memory(self) -> Memory:
        """Reads the memory, and starts the device's own peak again; no other counter is touched.

        Code that starts the peak again itself, with `torch.cuda.reset_peak_memory_stats`, lowers what is read here,
        since the device has no other peak: it is then the peak since that.

        Returns:
            What is allocated now, and the peak since the last call; zeros where the device does not tell.
        """
        if not self.is_accelerator or self.belongs_to_another_process():
            return Memory(0.0, 0.0)
        if self._is_cuda:
            return _take_memory(torch.cuda, self._its_device())
        try:
            return _take_memory(torch.accelerator, self._its_device())
        except (AttributeError, RuntimeError, ValueError):
            # PyTorch before 2.9, or a device whose allocator keeps no books (MPS).
            return Memory(0.0, 0.0)

    def belongs_to_another_process(self) -> bool:
        """Whether the device is not this process's to touch."""
        if os.getpid() == self._process:
            return False
        is_started = getattr(torch.get_device_module(self.device), "is_initialized", None)
        return is_started is None or not is_started()

    def _its_device(self) -> torch.device:
        return self.device if self._index is None else torch.device(self.device.type, self._index)

    def _check_build(self) -> None:
        if not torch.backends.cuda.is_built() and not torch.cuda.is_available():  # type: ignore[no-untyped-call]
            raise RuntimeError(f"the monitor's device is {str(self.device)!r}, but this PyTorch was built without CUDA")
        self._is_built = True


_TELLS_TIMES: dict[str, bool] = {}
"""Whether the events of a type of device do, once it was asked."""


def _has_timing_events(kind: str) -> bool:
    if kind in _TELLS_TIMES:
        return _TELLS_TIMES[kind]
    _TELLS_TIMES[kind] = False
    try:
        start, end = (torch.Event(kind, enable_timing=True) for _ in range(2))
        start.record()
        end.record()
        end.synchronize()
        start.elapsed_time(end)
    except RuntimeError as error:
        warnings.warn(
            f"{kind} devices have no events that tell times ({error}): "
            'they are synchronised at the boundaries of phases, as with timing="synchronize"',
            RuntimeWarning,
            stacklevel=2,
        )
    else:
        _TELLS_TIMES[kind] = True
    return _TELLS_TIMES[kind]


def _take_memory(counters: Any, device: torch.device) -> Memory:
    memory = Memory(
        counters.memory_allocated(device) / GIGABYTE,
        counters.max_memory_allocated(device) / GIGABYTE,
    )
    # Before anything is allocated there is nothing to reset, and CUDA, if not started yet, would refuse.
    if memory.peak > 0:
        counters.reset_peak_memory_stats(device)
    return memory


def open_marker(name: str) -> Callable[[], object]:
    """Opens a range of NVIDIA's tools (NVTX), where this PyTorch can; returns what closes it."""
    markers = torch.cuda.nvtx
    try:
        markers.range_push(name)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return lambda: None
    return markers.range_pop
