"""What a profiled run left behind, read as any reader could: with nothing but `json`."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Record = dict[str, float]


def read_records(path: Path) -> list[Record]:
    """The snapshots of one rank, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def total(records: list[Record]) -> Counter[str]:
    """The sums of what may be summed."""
    sums: Counter[str] = Counter()
    for record in records:
        sums.update({key: value for key, value in record.items() if key in ("samples", "wall_sec") or key[:2] == "t_"})
    return sums


def inclusive(record: Mapping[str, float]) -> dict[str, float]:
    """Seconds for each phase and each path of nested phases, by names without the `t_`."""
    return {key[2:]: value for key, value in record.items() if key.startswith("t_")}


def outermost(record: Mapping[str, float]) -> dict[str, float]:
    """Seconds for each phase, without those spent inside another: `t_x` less all of `t_…/x`."""
    seconds = {phase: value for phase, value in inclusive(record).items() if "/" not in phase}
    for path, value in inclusive(record).items():
        outer, _, phase = path.rpartition("/")
        if outer:
            seconds[phase] -= value
    return seconds
