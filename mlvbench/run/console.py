"""What a process of a run prints, beside what the script prints."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """Prints a line of the profiler's own."""
    from mlvbench.report.text import printable

    write(f"mlvbench: {printable(text)}\n")


def write(line: str) -> None:
    """Prints to the stderr that the process began with, above the bars of tqdm's where there are any.

    What the script has put in its place is the script's. Where it cannot print, it does nothing.
    """
    if sys.__stderr__ is None:
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
        if tqdm is not None and getattr(tqdm, "_instances", None):
            tqdm.write(line, file=sys.__stderr__, end="")
        else:
            sys.__stderr__.write(line)
            sys.__stderr__.flush()
