"""What the package knows of `torch.compile`, whose tracer is Dynamo.

A region that is compiled runs as one graph: nothing can be timed or counted in it, and nothing of ours may end up in
the graph. Importing Dynamo takes a second, so nothing here does: a process that compiles nothing does not pay for it.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

__all__ = [
    "is_dynamo_compiling",
    "leave_frames_alone",
    "leave_our_frames_alone",
    "run_while_tracing",
    "warn_uncounted",
    "warn_untimed",
]


# What Dynamo runs while it traces


def run_while_tracing(function: Callable[..., None]) -> None:
    """Makes Dynamo call `function` while it traces, and put no call of it into the graph.

    This sets the mark that `torch.compiler.assume_constant_result` sets, which imports Dynamo to do so.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]


_said: set[str] = set()


def warn_untimed(name: str) -> None:
    """Warns, once for each phase, that it cannot be timed inside a compiled region."""
    _warn_once(
        f"phase {name!r} is inside a region compiled by torch.compile and is not timed there: "
        "the region runs as one graph; put the phase around the call of the compiled function"
    )


def warn_uncounted(method: str) -> None:
    """Warns, once for each method of the monitor, that it does nothing inside a compiled region."""
    _warn_once(
        f"{method}() is inside a region compiled by torch.compile and does nothing there: "
        "call it outside, next to the call of the compiled function"
    )


run_while_tracing(warn_untimed)
run_while_tracing(warn_uncounted)


def _warn_once(message: str) -> None:
    if message in _said:
        return
    _said.add(message)
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        # The user turns warnings into errors. Raised while Dynamo traces, it would be an internal error of Dynamo.
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn(message, RuntimeWarning, stacklevel=3)


# Frames that Dynamo does not compile


def leave_our_frames_alone() -> None:
    """Makes Dynamo compile no function of this package that is imported by now."""
    ours = [module for name, module in sys.modules.items() if name.partition(".")[0] == __package__]
    leave_frames_alone(function for module in ours for function in _functions_of(module))


def leave_frames_alone(functions: Iterable[Any]) -> None:
    """Makes Dynamo compile what functions call, but not the functions themselves.

    All modules share one stand-in for `__call__`, whose graphs would soon exceed the recompile limit of a function.
    And where a graph of the script's ends in front of a stand-in, Dynamo would compile what the stand-in calls. This
    is what `torch._dynamo.decorators.skip` does, which imports Dynamo.
    """
    frames = torch._C._dynamo.eval_frame
    for function in functions:
        if hasattr(frames, "set_code_exec_strategy"):
            strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
            frames.set_code_exec_strategy(function.__code__, strategy)
        elif hasattr(frames, "skip_code"):
            frames.skip_code(function.__code__)


def _functions_of(module: ModuleType) -> Iterator[Any]:
    """The functions and methods that a module defines."""
    for value in vars(module).values():
        if getattr(value, "__module__", None) == module.__name__:
            yield from filter(inspect.isfunction, vars(value).values() if isinstance(value, type) else [value])
