"""Snapshots as records: their fields, files of them, and the directory of files that a profiled run leaves."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Record = dict[str, float]
    Writer = Callable[[Sequence[Record], IO[str]], None]

LEADING = ("step",)
TRAILING = ("samples", "wall_sec", "samples_per_sec", "gpu_mem_gb", "gpu_mem_peak_gb")
REQUIRED = ("step", "samples", "wall_sec")

# Goes up when a program that knows only the format before would misread a run.
FORMAT = 1
RUN_FILE = "run.json"
RUNS = Path("mlvbench-runs")
# 0.jsonl, 0.2.jsonl, 0.restart1.jsonl: the rank, and which of its processes.
_RECORDS_FILE = re.compile(r"([0-9]+)(?:\.(.+))?\.jsonl")


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


class RunFile:
    """The file to which one process of a run appends its records.

    A record is one line and one `write`, so that a process that is killed leaves all of its lines but the last one
    whole. No two processes write to one file.

    Attributes:
        path: Where the records are; None before the first one.
    """

    def __init__(self, directory: Path, name: str) -> None:
        """Touches nothing: a process that never records leaves no file.

        Args:
            directory: The run's, made with the first record.
            name: The file's name without `.jsonl`, such as `0` for rank 0; where another process has taken it,
                `0.2`, `0.3` and so on.
        """
        self.path: Path | None = None
        self._directory = directory
        self._name = name
        self._descriptor: int | None = None

    def append(self, record: Mapping[str, float]) -> None:
        """Writes a record as the file's last line.

        Raises:
            ValueError: For a value that is not a finite number, which JSON has no word for; nothing is written.
            OSError: Where it cannot be written; the file ends with the record before.
        """
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        if self._descriptor is None:
            self._descriptor = self._create()
        end = os.fstat(self._descriptor).st_size
        if os.write(self._descriptor, line) < len(line):
            # The disk is full. A piece of a line must not stand before the next one, should there be room again.
            os.ftruncate(self._descriptor, end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(self.path or ""))

    def close(self) -> None:
        """Closes the file. A record appended later goes into a new one."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _create(self) -> int:
        self._directory.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            name = f"{self._name}.jsonl" if number == 1 else f"{self._name}.{number}.jsonl"
            try:
                descriptor = _create_exclusively(self._directory / name)
            except FileExistsError:
                continue
            self.path = self._directory / name
            return descriptor
        raise AssertionError("counting ends nowhere")


def describe_run(directory: Path, description: Mapping[str, object]) -> None:
    """Writes what a run is, its command and its settings, to its `run.json`; the process that comes first does.

    Args:
        directory: The run's, made where missing.
        description: Whatever JSON can say. `format` is added where it lacks it.

    Raises:
        OSError: Where it cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": FORMAT, **description}) + "\n"
    try:
        descriptor = _create_exclusively(directory / RUN_FILE)
    except FileExistsError:
        return
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _create_exclusively(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
    return os.open(path, flags, 0o666)


class BadRecords(ValueError):  # noqa: N818
    """What should be read is not there, or not records; the message says which, where, and what would be right."""


@dataclass(frozen=True)
class Run:
    """All records of a run, and what is known of it.

    Attributes:
        path: The directory, or the file, that they are from.
        ranks: For each rank the records of each of its processes, oldest first. A process counts its steps anew.
        description: What `run.json` says; empty where there is none that can be read.
        torn: Lines left out since a process was killed while writing them.
    """

    path: Path
    ranks: Mapping[int, Sequence[Sequence[Record]]]
    description: Mapping[str, object]
    torn: int


def read_run(path: str | os.PathLike[str]) -> Run:
    """Reads a run's directory, or a file that `save` wrote.

    Of the lines that a process appended, only its last one can be torn, which is left out and counted. A damaged line
    before others is an error: whatever damaged it may have damaged more.

    Args:
        path: A directory with files such as `0.jsonl`, or a `.json`, `.jsonl` or `.csv` file.

    Raises:
        BadRecords: Where there is nothing to read, or something else than records.
    """
    path = Path(path)
    try:
        if not path.exists():
            raise BadRecords(f"there is no {_shown(path)}")
        if path.is_dir():
            return _read_directory(path)
        records, torn = _read_file(path)
    except OSError as error:
        raise BadRecords(f"cannot read {_shown(path)}: {error.strerror or error}") from None
    if not records:
        raise BadRecords(f"{_shown(path)} holds no records: {'its only line is not JSON' if torn else 'it is empty'}")
    return Run(path, {0: [records]}, {}, torn)


def newest_run(root: Path = RUNS) -> Path:
    """Returns the directory of the run that started last.

    Raises:
        BadRecords: Where no run has left records.
    """
    runs = _runs_in(root)
    if not runs:
        raise BadRecords(
            f"there is no run in {_shown(root)}: make one with `mlvbench run train.py`, or name a directory or file"
        )
    return max(runs, key=_started)


def _runs_in(root: Path) -> list[Path]:
    try:
        return sorted(path for path in root.iterdir() if holds_records(path))
    except OSError:
        return []


def holds_records(directory: Path) -> bool:
    """Tells whether a directory has a file with records; False also where it is none or cannot be read."""
    try:
        return any(path.stat().st_size > 0 for _, path in _records_files(directory))
    except OSError:
        return False


def _started(run: Path) -> float:
    """When a run started, in seconds since 1970; by its directory's time where `run.json` does not tell."""
    try:
        return datetime.fromisoformat(str(_read_description(run)["started"])).timestamp()
    except (KeyError, ValueError, OverflowError, OSError):
        return run.stat().st_mtime


def _records_files(directory: Path) -> Iterator[tuple[int, Path]]:
    """Yields the rank and the path of each file of records, the files of a rank in the order of its processes."""
    found = ((match, path) for path in directory.iterdir() if (match := _RECORDS_FILE.fullmatch(path.name)))
    for match, path in sorted(found, key=lambda item: (int(item[0][1]), _natural(item[0][2] or ""), item[1].name)):
        yield int(match[1]), path


def _natural(text: str) -> list[tuple[int, int, str]]:
    """A key by which 2 comes before 10, and a number before a word."""
    parts = re.findall(r"[0-9]+|[^0-9]+", text)
    return [(0, int(part), "") if part[0].isdecimal() else (1, 0, part) for part in parts]


def _read_directory(directory: Path) -> Run:
    description = _read_description(directory)
    ranks: dict[int, list[Sequence[Record]]] = {}
    torn = 0
    for rank, path in _records_files(directory):
        records, torn_here = _read_file(path)
        torn += torn_here
        if records:
            ranks.setdefault(rank, []).append(records)
    if not ranks:
        runs = _runs_in(directory)
        hint = (
            f"name one of the runs in it, such as {_shown(max(runs, key=_started))}"
            if runs
            else "a run has files such as 0.jsonl"
        )
        raise BadRecords(f"{_shown(directory)} holds no records: {hint}")
    return Run(directory, ranks, description, torn)


def _read_description(directory: Path) -> Mapping[str, object]:
    try:
        description = json.loads((directory / RUN_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(description, dict):
        return {}
    written = description.get("format")
    if isinstance(written, int) and written > FORMAT:
        raise BadRecords(
            f"{_shown(directory)} was written by a newer mlvbench (format {written}, this one reads up to {FORMAT}): "
            "update mlvbench"
        )
    return description


def _read_file(path: Path) -> tuple[list[Record], int]:
    """Returns the records of a file, and how many torn lines it ends with: none or one."""
    if path.suffix not in _READERS:
        raise BadRecords(f"{_shown(path)} is not a run's directory and does not end in .json, .jsonl or .csv")
    content = path.read_bytes()
    # A process may be killed before its first record is written.
    return _READERS[path.suffix](content, path) if content.strip() else ([], 0)


def _read_json(content: bytes, path: Path) -> tuple[list[Record], int]:
    try:
        rows = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadRecords(f"{_shown(path)} is not JSON: {error}") from None
    if not isinstance(rows, list):
        raise BadRecords(f"{_shown(path)} is not an array of records, but a JSON {_kind(rows)}")
    return [_check(row, f"{_shown(path)}, record {i}") for i, row in enumerate(rows, start=1)], 0


def _read_jsonl(content: bytes, path: Path) -> tuple[list[Record], int]:
    try:
        import msgspec
    except ImportError:
        return _read_lines(content, path)
    integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    try:
        records: list[Record] = msgspec.json.Decoder(dict[str, integer | float]).decode_lines(content)
    except msgspec.MsgspecError:
        records = []
    if records and all("step" in record and "samples" in record and "wall_sec" in record for record in records):
        return records, 0
    # It does not tell the line, and refuses what is allowed: longer integers, names with half a surrogate pair.
    return _read_lines(content, path)


def _read_lines(content: bytes, path: Path) -> tuple[list[Record], int]:
    lines = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
    records: list[Record] = []
    for number, line in lines:
        place = f"{_shown(path)}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            if number == lines[-1][0]:
                return records, 1
            raise BadRecords(f"{place} is not JSON: the file is damaged, or not one of records") from None
        records.append(_check(row, place))
    return records, 0


def _read_csv(content: bytes, path: Path) -> tuple[list[Record], int]:
    try:
        # A name may hold any line's end: only the reader knows which of them end a row.
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        header = next(reader, [])
        rows = [(reader.line_num, row) for row in reader if row]
    except (ValueError, csv.Error) as error:
        raise BadRecords(f"{_shown(path)} is not CSV: {error}") from None
    return [_read_row(header, row, f"{_shown(path)}, line {number}") for number, row in rows], 0


def _read_row(header: Sequence[str], row: Sequence[str], place: str) -> Record:
    if len(row) != len(header):
        raise BadRecords(f"{place} has {len(row)} cells, and the header has {len(header)}")
    return _check({key: _number(cell) for key, cell in zip(header, row, strict=True) if cell}, place)


def _number(cell: str) -> float | str:
    for read in (int, float):
        try:
            return read(cell)
        except ValueError:
            continue
    return cell


_READERS: dict[str, Callable[[bytes, Path], tuple[list[Record], int]]] = {
    ".json": _read_json,
    ".jsonl": _read_jsonl,
    ".csv": _read_csv,
}


def _check(row: object, place: str) -> Record:
    """Returns a record as it is, if it is one."""
    if not isinstance(row, dict):
        raise BadRecords(f"{place} is not a record, but a JSON {_kind(row)}")
    for key in REQUIRED:
        if key not in row:
            raise BadRecords(f"{place} is not a record of mlvbench: it has no {key!r}")
    for key, value in row.items():
        if type(value) not in (int, float) or not -sys.float_info.max <= value <= sys.float_info.max:
            raise BadRecords(f"{place}: {key!r} must be a finite number, got {_excerpt(value)}")
    return row


def _kind(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _excerpt(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of very many digits
        return "a very large integer"
    return text if len(text) <= 40 else f"{text[:40]}…"


def _shown(path: Path) -> str:
    """A path with its control characters as escapes."""
    return repr(os.fspath(path))
