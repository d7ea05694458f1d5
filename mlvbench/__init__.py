"""The PyTorch profiler that stays on for the whole training run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlvbench.monitoring import ThroughputMonitor

__all__ = ["ThroughputMonitor"]


def __getattr__(name: str) -> object:
    # Importing torch takes seconds, and reading records needs none of it.
    if name == "ThroughputMonitor":
        from mlvbench.monitoring import ThroughputMonitor

        return ThroughputMonitor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
