"""Intervals of a program's time: from the counters to the snapshots, and to whoever wants them.

Nothing is checked here: `ThroughputMonitor` checks what its user gives, and the observer of torch's seams knows what
it gives.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from mlvbench.counting.counters import Counters, Reading
from mlvbench.counting.device import Device
from mlvbench.records.schema import make_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from mlvbench.counting.counters import Clock, Phase
    from mlvbench.records.schema import Record, Timing

    Subscriber = Callable[[Record], object]


class Recorder:
    """Takes snapshots of what the phases of a program account, each of the interval since the one before.

    Args:
        device: The device that the work runs on.
        clock: Gives seconds.
        timing: How phases are timed on an accelerator.
        records: Snapshots of an earlier recorder, which stand before those of this one.

    Attributes:
        clock: Gives seconds.
        counters: What the phases account to.
        records: The snapshots so far, oldest first.
    """

    def __init__(self, device: Device, clock: Clock, timing: Timing, records: Sequence[Record] = ()) -> None:
        self.counters = Counters(clock, device if device.is_accelerator else None, timing)
        self.records = list(records)
        self._device = device
        self.clock = clock
        self._timing = timing
        self._subscribers: dict[object, Subscriber] = {}
        self._lock = threading.RLock()
        self._baseline = Reading()
        self._interval_start = clock()
        device.take_memory()

    @property
    def device(self) -> torch.device:
        """The device on whose timeline phases are timed, and whose memory is reported."""
        return self._device.device

    @property
    def timing(self) -> Timing:
        """How phases are timed: "synchronize" also where events were asked for and the device has none."""
        timeline = self.counters.timeline
        return self._timing if timeline is None else timeline.timing

    def phase(self, name: str) -> Phase:
        """Returns the phase of a name, which must be a non-empty string without `/`."""
        return self.counters.phase(name)

    def measure_on(self, device: torch.device) -> None:
        """Goes over to the device that the program is found to work on."""
        with self._lock:
            self._device = Device(device)
            self.counters.measure_on(self._device)
            self._device.take_memory()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], object]:
        """Calls a function with a copy of every snapshot from now on.

        What it raises passes to whoever took the snapshot, after the other subscribers have got theirs.

        Returns:
            What ends it.
        """
        key = object()
        self._subscribers[key] = subscriber
        return lambda: self._subscribers.pop(key, None)

    def snapshot(self, step: int, end: float | None = None) -> Record:
        """Takes a snapshot, and begins the next interval.

        Args:
            step: The step that it is recorded for.
            end: When the interval ended, in seconds of the clock; now if `None`.

        Returns:
            The snapshot, of which the caller gets a copy.
        """
        self.counters.catch_up()
        with self._lock:
            record = self._take(step, self.clock() if end is None else end)
            self.records.append(record)
        self._publish(record)
        return dict(record)

    def _take(self, step: int, end: float) -> Record:
        start = self._interval_start
        before, now = self._baseline, self.counters.read()
        memory = self._device.take_memory()
        self._baseline, self._interval_start = now, end
        loop = self.counters.loop_thread()
        return make_record(
            step,
            {
                "/".join(path): total - before.phases.get(path, (0, 0))[0]
                for path, (total, ended) in now.phases.items()
                if (total, ended) != before.phases.get(path, (0, 0))
            },
            samples=now.samples - before.samples,
            accounted=now.accounted.get(loop, 0) - before.accounted.get(loop, 0),
            wall=end - start,
            memory=memory,
        )

    def _publish(self, record: Record) -> None:
        errors = []
        for subscriber in list(self._subscribers.values()):
            try:
                subscriber(dict(record))
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def reset(self) -> None:
        """Begins a new interval: what was accounted since the last snapshot is in none."""
        self.counters.catch_up()
        with self._lock:
            self._baseline, self._interval_start = self.counters.read(), self.clock()
            self._device.take_memory()

    def forget(self) -> None:
        """Leaves the snapshots so far, and a lock that may be held, to the process that this one was forked from."""
        self._lock = threading.RLock()
        self.records = []

    def ended_phases(self) -> list[tuple[str, ...]]:
        """Returns the paths of the phases that have ended since the last snapshot."""
        before = self._baseline.phases
        return [path for path, value in self.counters.read().phases.items() if value != before.get(path, (0, 0))]

    def has_recorded(self, step: int) -> bool:
        """Whether the last snapshot is of this step and no samples were counted since."""
        has_all_samples = self.counters.read().samples == self._baseline.samples
        return has_all_samples and bool(self.records) and self.records[-1]["step"] == step

    def idle_since(self, left: float) -> float:
        """Waits for the device.

        Args:
            left: When the host left the last phase, in seconds of the clock.

        Returns:
            When the device was done with it; without an accelerator `left`.
        """
        timeline = self.counters.timeline
        return left if timeline is None else timeline.idle_since()
