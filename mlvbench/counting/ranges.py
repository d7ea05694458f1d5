"""Phases as ranges in the traces that people read: torch.profiler's, and those of Nsight Systems."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch.autograd import profiler

from mlvbench.counting.device import open_marker

if TYPE_CHECKING:
    from collections.abc import Callable

profiler_flag: Any = (
    SimpleNamespace(_is_profiler_enabled=True) if "NSYS_PROFILING_SESSION_ID" in os.environ else profiler
)
"""What is asked, as `asked._is_profiler_enabled`, whether a profiler is running.

torch's own flag is asked where it is, in some nanoseconds; opening a range costs microseconds even where nobody
listens. Nsight Systems starts the process that it profiles, and tells it so in this variable.
"""


def open_range(name: str) -> Callable[[], object]:
    """Opens a range in the trace that is being taken, and returns what closes it."""
    if not profiler._is_profiler_enabled:
        return open_marker(name)
    shown = profiler.record_function(name)
    shown.__enter__()  # type: ignore[no-untyped-call]
    return lambda: shown.__exit__(None, None, None)
