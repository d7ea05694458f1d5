"""A snapshot as a record: its fields, their order and their units."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Record = dict[str, float]

Timing = Literal["synchronize", "events"]
"""How a device is timed: it is waited for at each boundary, or given an event there that is read later."""

TIMINGS: tuple[Timing, ...] = get_args(Timing)

LEADING = ("step",)
TRAILING = ("samples", "wall_sec", "samples_per_sec", "gpu_mem_gb", "gpu_mem_peak_gb")
REQUIRED = ("step", "samples", "wall_sec")


def make_record(
    step: int,
    seconds: Mapping[str, float],
    *,
    samples: int,
    accounted: float,
    wall: float,
    memory: tuple[float, float],
) -> Record:
    """Puts a snapshot's figures into the order in which they are shown.

    Args:
        step: The step that the interval ends with.
        seconds: Seconds for each place of the phases' tree that a phase ended at in the interval, by the names
            from the outermost phase inwards, joined by `/`; in the order first seen.
        samples: Samples counted in the interval.
        accounted: Seconds that outermost phases cover, the denominator of `samples_per_sec`.
        wall: Seconds of the clock since the interval began.
        memory: Device memory allocated now and at its peak, in units of 1e9 bytes.

    Returns:
        `step`, `t_<name>` for each phase, `t_<outer>/<inner>` where phases nest, `samples`, `wall_sec`,
        `samples_per_sec` (0.0 where nothing is accounted), `gpu_mem_gb`, `gpu_mem_peak_gb`.
    """
    phases: Record = {}
    nested: Record = {}
    for key, value in seconds.items():
        name = key.rpartition("/")[2]
        # Interned, since all records of a run share their keys.
        field = sys.intern(f"t_{name}")
        phases[field] = phases.get(field, 0) + value
        if name != key:
            nested[sys.intern(f"t_{key}")] = value
    rate = samples / accounted if accounted > 0 else 0.0
    return {
        "step": step,
        **phases,
        **nested,
        "samples": samples,
        "wall_sec": wall,
        "samples_per_sec": rate if math.isfinite(rate) else 0.0,
        "gpu_mem_gb": memory[0],
        "gpu_mem_peak_gb": memory[1],
    }


def columns(records: Sequence[Record]) -> list[str]:
    """All keys of all records, in a snapshot's order."""
    seen = dict.fromkeys(key for record in records for key in record)
    timed = [key for key in seen if key.startswith("t_")]
    timed.sort(key=lambda key: "/" in key)
    return [*LEADING, *timed, *TRAILING]
