"""What trains, as phases, through PyTorch's own seams."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING

from mlvbench.autoprofile.observer import Observer
from mlvbench.autoprofile.seams import install
from mlvbench.monitoring import ThroughputMonitor, recorder_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from mlvbench.records.schema import Timing

__all__ = ["autoprofile"]


def autoprofile(
    record_every_n_steps: int | None = 50,
    clock: Callable[[], float] = time.perf_counter,
    timing: Timing = "events",
) -> AbstractContextManager[ThroughputMonitor]:
    """Profiles whatever trains in a `with` block through PyTorch's own seams.

    The phases are `data` (what the loop waits for), `forward` and `inference` (the outermost module that is called,
    with and without gradients), `loss` (the same for a loss of torch's), `backward` and `optimizer`. Samples and steps
    are counted too. The interval begins when the first seam is reached, and the last one ends when the last is left.

    Args:
        record_every_n_steps: As for `ThroughputMonitor`.
        clock: As for `ThroughputMonitor`.
        timing: As for `ThroughputMonitor`, except that what trains is not held up unless it is asked for.

    Returns:
        A context manager that gives the monitor, and restores every seam on exit. Of several, the last that was
        entered is to be left first.

    Raises:
        TypeError: What `ThroughputMonitor` raises.
        ValueError: What `ThroughputMonitor` raises.

    Example:
        ```python
        with autoprofile() as monitor:
            trainer.train()
        monitor.save("throughput.json")
        ```
    """
    return Block(record_every_n_steps, clock, timing)


class Block:
    """A `with` block that is profiled; gives the monitor.

    Args:
        record_every_n_steps: As for `ThroughputMonitor`.
        clock: As for `ThroughputMonitor`.
        timing: As for `ThroughputMonitor`.
        when_begun: Called at the first seam that is reached.

    Attributes:
        monitor: What the phases are accounted to.
        observer: What the stand-ins tell what passes; `None` where the monitor is disabled.
    """

    def __init__(
        self,
        record_every_n_steps: int | None,
        clock: Callable[[], float] = time.perf_counter,
        timing: Timing = "events",
        when_begun: Callable[[], object] = lambda: None,
    ) -> None:
        self.monitor = ThroughputMonitor("cpu", record_every_n_steps, clock, timing)
        every = self.monitor.record_every_n_steps
        self.observer = None if every is None else Observer(recorder_of(self.monitor), every, when_begun)
        self._remove: Callable[[], None] = lambda: None

    def __enter__(self) -> ThroughputMonitor:
        if self.observer is not None:
            self._remove = install(self.observer)
        return self.monitor

    def __exit__(self, *error: object) -> None:
        self._remove()
        if self.observer is None:
            return
        self.observer.finish()
        if self.observer.error is not None:
            message = f"profiling ended at an error of its own, please report it: {self.observer.error!r}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
