"""Snapshots as records: their fields, and files of them."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Record = dict[str, float]
    Writer = Callable[[Sequence[Record], IO[str]], None]

LEADING = ("step",)
TRAILING = ("samples", "wall_sec", "samples_per_sec", "gpu_mem_gb", "gpu_mem_peak_gb")


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


def save(records: Sequence[Record], path: str | os.PathLike[str]) -> None:
    """Writes records to a file that is either whole or not there.

    They are written beside `path` and renamed, so that a program that is killed half-way leaves what was at `path`
    before. Missing directories are made. A symbolic link stays one: its target is replaced.

    Args:
        records: The records, oldest first.
        path: Ends in `.json` (an array, one record a line), `.jsonl` (one record a line) or `.csv` (a column for
            each key that any record has, empty where a record lacks it).

    Raises:
        ValueError: For another suffix; nothing is touched then.
        OSError: Where the file cannot be written; what was there before stays.
    """
    suffix = Path(path).suffix
    if suffix not in _WRITERS:
        expected = ", ".join(list(_WRITERS)[:-1]) + " or " + list(_WRITERS)[-1]
        raise ValueError(f"path must end in {expected}, got {os.fspath(path)!r}")
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".mlvbench-") as folder:
        # In a folder of its own the file gets the permissions that any new file gets, and a name that is free.
        written = Path(folder, target.name)
        with written.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            _WRITERS[suffix](records, file)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, written)
        written.replace(target)


def _write_json(records: Sequence[Record], file: IO[str]) -> None:
    lines = ",\n".join(map(json.dumps, records))
    file.write(f"[\n{lines}\n]\n" if lines else "[]\n")


def _write_jsonl(records: Sequence[Record], file: IO[str]) -> None:
    file.writelines(json.dumps(record) + "\n" for record in records)


def _write_csv(records: Sequence[Record], file: IO[str]) -> None:
    # With the lines' usual end, CR LF, a phase's name with either of them in it is quoted; with LF, CR is not.
    writer = csv.DictWriter(file, _columns(records))
    writer.writeheader()
    writer.writerows(records)


def _columns(records: Sequence[Record]) -> list[str]:
    """All keys of all records, in a snapshot's order."""
    seen = dict.fromkeys(key for record in records for key in record)
    timed = [key for key in seen if key.startswith("t_")]
    timed.sort(key=lambda key: "/" in key)
    return [*LEADING, *timed, *TRAILING]


_WRITERS: dict[str, Writer] = {".json": _write_json, ".jsonl": _write_jsonl, ".csv": _write_csv}
