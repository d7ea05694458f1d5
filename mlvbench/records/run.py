"""The directory that a profiled run leaves: a file of records for each of its processes, and what the run was."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from mlvbench.records.files import RecordsError, read_records, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mlvbench.records.schema import Record

# Goes up when a program that knows only the format before would misread a run.
FORMAT = 1
RUN_FILE = "run.json"
RUNS = Path("mlvbench-runs")
# 0.jsonl, 0.2.jsonl, 0.restart1.jsonl: the rank, and which of its processes.
_RECORDS_FILE = re.compile(r"([0-9]+)(?:\.(.+))?\.jsonl")


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
        self._identity: tuple[int, int] | None = None

    def append(self, record: Mapping[str, float]) -> None:
        """Writes a record as the file's last line.

        Raises:
            ValueError: For a value that is not a finite number, which JSON has no word for; nothing is written.
            OSError: Where it cannot be written; the file ends with the record before.
        """
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        if self._descriptor is None:
            self._descriptor = self._create()
            self._identity = _identity(self._descriptor)
        elif _identity(self._descriptor) != self._identity:
            # The program has closed all of its files, and the number may be that of one of its own now.
            self._descriptor = self._open_again()
        end = os.fstat(self._descriptor).st_size
        if os.write(self._descriptor, line) < len(line):
            # The disk is full. A piece of a line must not stand before the next one.
            os.ftruncate(self._descriptor, end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(self.path or ""))

    def _open_again(self) -> int:
        assert self.path is not None
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
        self._identity = _identity(descriptor)
        return descriptor

    def close(self) -> None:
        """Closes the file. A record appended later goes into a new one."""
        if self._descriptor is not None and _identity(self._descriptor) == self._identity:
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


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Which file a descriptor is of; `None` for one that is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _create_exclusively(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
    return os.open(path, flags, 0o666)


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
        RecordsError: Where there is nothing to read, or something else than records.
    """
    path = Path(path)
    try:
        if not path.exists():
            raise RecordsError(f"there is no {shown(path)}")
        if path.is_dir():
            return _read_directory(path)
        records, torn = read_records(path)
    except OSError as error:
        raise RecordsError(f"cannot read {shown(path)}: {error.strerror or error}") from None
    if not records:
        raise RecordsError(f"{shown(path)} holds no records: {'its only line is not JSON' if torn else 'it is empty'}")
    return Run(path, {0: [records]}, {}, torn)


def newest_run(root: Path = RUNS) -> Path:
    """Returns the directory of the run that started last.

    Raises:
        RecordsError: Where no run has left records.
    """
    runs = _runs_in(root)
    if not runs:
        raise RecordsError(
            f"there is no run in {shown(root)}: make one with `mlvbench run train.py`, or name a directory or file"
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
        records, torn_here = read_records(path)
        torn += torn_here
        if records:
            ranks.setdefault(rank, []).append(records)
    if not ranks:
        runs = _runs_in(directory)
        hint = (
            f"name one of the runs in it, such as {shown(max(runs, key=_started))}"
            if runs
            else "a run has files such as 0.jsonl"
        )
        raise RecordsError(f"{shown(directory)} holds no records: {hint}")
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
        raise RecordsError(
            f"{shown(directory)} was written by a newer mlvbench (format {written}, this one reads up to {FORMAT}): "
            "update mlvbench"
        )
    return description
