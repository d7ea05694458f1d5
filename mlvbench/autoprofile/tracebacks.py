"""No frame of ours in the tracebacks of the script's errors; and which errors are ours."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


def hide_frames(error: BaseException) -> None:
    """Takes the package's own frames out of a traceback; where it is raised again by `raise`, it stays so.

    Python 3.10 puts the frame that raises it again back.
    """
    # Not by assignment, which an exception that is a frozen dataclass refuses.
    error.with_traceback(_without_ours(error.__traceback__))
    shown = error.__traceback__
    while shown is not None:
        shown.tb_next = _without_ours(shown.tb_next)
        shown = shown.tb_next


def hide_this_frame(error: BaseException) -> None:
    """Takes the frame that has caught an error, and raises it again, out of its traceback."""
    if error.__traceback__ is not None:
        error.with_traceback(error.__traceback__.tb_next)


def is_ours(error: BaseException) -> bool:
    """Whether an error came about here or in what is used here; else a signal handler of the script's raised it."""
    frames = traceback.walk_tb(error.__traceback__)
    modules = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames]
    return all(name in _WHAT_WE_USE or name in sys.stdlib_module_names for name in modules)


_WHAT_WE_USE = ("mlvbench", "torch", "wrapt", "tqdm")


def _without_ours(shown: TracebackType | None) -> TracebackType | None:
    while shown is not None and str(shown.tb_frame.f_globals.get("__name__")).startswith("mlvbench."):
        shown = shown.tb_next
    return shown
