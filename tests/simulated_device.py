"""An accelerator that works apart from the host, on a timeline of its own driven by the fake clock."""

from __future__ import annotations

import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from fake_clock import FakeClock


class Stream:
    """A queue that works off in order what it is given.

    Attributes:
        device: What it is a queue of.
        idle_from: When it has done all that it was given.
        graph: While it is captured, the work that it was given and does not do.
    """

    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device
        self.idle_from: float = device.clock.now
        self.graph: list[float] | None = None

    def take(self, now: float, seconds: float) -> None:
        """Queues work."""
        if self.graph is not None:
            self.graph.append(seconds)
        else:
            self.idle_from = max(self.idle_from, now) + seconds


class Event:
    """Stands for torch.Event: each recording is a new version, and only the last can be asked about."""

    def __init__(self, device: SimulatedDevice, timing: bool) -> None:
        self.device = device
        self.timing = timing
        self.time: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = self.device.current_of(self.device.current_device) if stream is None else stream
        if stream.graph is not None:
            raise RuntimeError("an event recorded during a capture has no time")
        self.device.recorded += 1
        self.time = max(stream.idle_from, self.device.clock.now)

    def query(self) -> bool:
        self.device.refuse_while_capturing()
        return self.time is None or self.time <= self.device.clock.now

    def synchronize(self) -> None:
        self.device.called("Event.synchronize", None)
        assert self.time is not None
        self.device.clock.now = max(self.device.clock.now, self.time)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds, as torch's events give them."""
        if not (self.query() and end.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        if not self.timing or not end.timing:
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        return self.device.rounded((end.time - self.time) * 1000)


class SimulatedDevice:
    """Takes the place of CUDA, or of another accelerator.

    Attributes:
        kind: Its type, as torch names it.
        current: The current stream.
        current_device: The index of the device that is current, which may be another one.
        single_precision: Whether events tell milliseconds in single precision, as CUDA's do.
        calls: The name and the device of each call that waits for the device or asks for its memory, in order.
        recorded: How many events were recorded.
        made: How many events were made.
    """

    def __init__(self, clock: FakeClock, index: int = 0, kind: str = "cuda") -> None:
        self.clock = clock
        self.index = index
        self.kind = kind
        self.current_device = index
        self.streams = [Stream(self)]
        self.current = self.streams[0]
        self.elsewhere = Stream(self)
        self.single_precision = False
        self.allocated = 0
        self.peak = 0
        self.calls: list[tuple[str, str]] = []
        self.recorded = 0
        self.made = 0

    # What programs do

    def launch(self, seconds: float, cost: float = 0) -> None:
        """Queues work in the current stream, for which the host takes `cost`."""
        self.clock.now += cost
        self.current.take(self.clock.now, seconds)

    @contextmanager
    def stream(self, number: int) -> Iterator[None]:
        """Makes another stream the current one, as `with torch.cuda.stream(...)` does."""
        while len(self.streams) <= number:
            self.streams.append(Stream(self))
        before, self.current = self.current, self.streams[number]
        try:
            yield
        finally:
            self.current = before

    def wait_for(self, number: int) -> None:
        """Makes the current stream wait for what another was given so far."""
        if self.current.graph is None:
            self.current.idle_from = max(self.current.idle_from, self.streams[number].idle_from)

    @contextmanager
    def capture(self) -> Iterator[list[float]]:
        """Captures the current stream into a graph."""
        self.current.graph = graph = []
        try:
            yield graph
        finally:
            for stream in self.streams:
                stream.graph = None

    def replay(self, graph: list[float]) -> None:
        """Launches all of a graph."""
        self.launch(sum(graph))

    def allocate(self, count: int) -> None:
        """Takes (or gives back) memory, in bytes."""
        self.allocated += count
        self.peak = max(self.peak, self.allocated)

    # What torch asks

    @property
    def idle_from(self) -> float:
        """When the device has done all that it was given."""
        return max(stream.idle_from for stream in self.streams)

    @property
    def synchronizations(self) -> int:
        """How often it was waited for."""
        return sum(name in ("synchronize", "Event.synchronize") for name, _ in self.calls)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Puts itself behind torch."""
        for name in ("synchronize", "memory_allocated", "max_memory_allocated", "reset_peak_memory_stats"):
            owner = torch.cuda if self.kind == "cuda" else torch.accelerator
            monkeypatch.setattr(owner, name, getattr(self, name), raising=False)  # accelerator's memory came with 2.9
        module = torch.get_device_module(self.kind)
        captures = lambda: self.current.graph is not None  # noqa: E731
        monkeypatch.setattr(module, "is_current_stream_capturing", captures, raising=False)
        monkeypatch.setattr(module, "is_initialized", lambda: True, raising=False)
        monkeypatch.setattr(module, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: self.current_device)
        monkeypatch.setattr(torch.accelerator, "current_stream", self.current_of)
        monkeypatch.setattr(torch, "Event", self.make_event)

    def make_event(self, device: object = None, *, enable_timing: bool = False) -> Event:
        assert torch.device(device) in (torch.device(self.kind), torch.device(self.kind, self.index)), device
        self.made += 1
        return Event(self, enable_timing)

    def current_of(self, index: int) -> Stream:
        return self.current if index == self.index else self.elsewhere

    def rounded(self, milliseconds: float) -> float:
        return struct.unpack("f", struct.pack("f", milliseconds))[0] if self.single_precision else milliseconds

    def called(self, name: str, device: object) -> None:
        self.calls.append((name, str(device)))

    def refuse_while_capturing(self) -> None:
        if any(stream.graph is not None for stream in self.streams):
            raise RuntimeError("operation not permitted when stream is capturing")

    def synchronize(self, device: object = None) -> None:
        self.called("synchronize", device)
        self.refuse_while_capturing()
        index = None if device is None else torch.device(device).index
        if (self.current_device if index is None else index) == self.index:
            self.clock.now = max(self.clock.now, self.idle_from)

    def memory_allocated(self, device: object = None) -> int:
        self.called("memory_allocated", device)
        return self.allocated

    def max_memory_allocated(self, device: object = None) -> int:
        self.called("max_memory_allocated", device)
        return self.peak

    def reset_peak_memory_stats(self, device: object = None) -> None:
        self.called("reset_peak_memory_stats", device)
        self.peak = self.allocated
