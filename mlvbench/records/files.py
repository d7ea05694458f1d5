"""Files of records, to write and to read."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

from mlvbench.records.schema import REQUIRED, columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlvbench.records.schema import Record

    Writer = Callable[[Sequence[Record], IO[str]], None]


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
    replace_file(path, lambda file: _WRITERS[suffix](records, file))


def replace_file(path: str | os.PathLike[str], write: Callable[[IO[str]], object]) -> None:
    """Writes a file that is either whole or not there, in UTF-8, with what that has no sign for as escapes.

    It is written beside `path` and renamed. Missing directories are made. A symbolic link stays one: its target is
    replaced. What is there and not a file, such as a device or a pipe, is written to.

    Args:
        path: The file.
        write: Writes its text to a stream.

    Raises:
        OSError: Where it cannot be written; what was there before stays.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            write(file)
        return
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".mlvbench-") as folder:
        # In a folder of its own the file gets the permissions that any new file gets, and a name that is free.
        written = Path(folder, target.name)
        with written.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            write(file)
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
    writer = csv.DictWriter(file, columns(records))
    writer.writeheader()
    writer.writerows(records)


_WRITERS: dict[str, Writer] = {".json": _write_json, ".jsonl": _write_jsonl, ".csv": _write_csv}


class RecordsError(ValueError):
    """What should be read is not there, or not records; the message says which, where, and what would be right."""


def read_records(path: Path) -> tuple[list[Record], int]:
    """Reads a file that `save` wrote, or to which a process appended its records.

    Only the last line that a process appended can be torn, which is left out and counted. A damaged line before others
    is an error: whatever damaged it may have damaged more.

    Returns:
        The records, oldest first, and how many torn lines there are: none or one.

    Raises:
        RecordsError: For something else than records.
        OSError: Where the file cannot be read.
    """
    if path.suffix not in _READERS:
        raise RecordsError(f"{shown(path)} is not a run's directory and does not end in .json, .jsonl or .csv")
    content = path.read_bytes()
    # A process may be killed before its first record is written.
    return _READERS[path.suffix](content, path) if content.strip() else ([], 0)


def _read_json(content: bytes, path: Path) -> tuple[list[Record], int]:
    try:
        rows = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RecordsError(f"{shown(path)} is not JSON: {error}") from None
    if not isinstance(rows, list):
        raise RecordsError(f"{shown(path)} is not an array of records, but a JSON {_kind(rows)}")
    return [_check(row, f"{shown(path)}, record {i}") for i, row in enumerate(rows, start=1)], 0


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
        place = f"{shown(path)}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            if number == lines[-1][0]:
                return records, 1
            raise RecordsError(f"{place} is not JSON: the file is damaged, or not one of records") from None
        records.append(_check(row, place))
    return records, 0


def _read_csv(content: bytes, path: Path) -> tuple[list[Record], int]:
    try:
        # A name may hold any line's end: only the reader knows which of them end a row.
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        header = next(reader, [])
        rows = [(reader.line_num, row) for row in reader if row]
    except (ValueError, csv.Error) as error:
        raise RecordsError(f"{shown(path)} is not CSV: {error}") from None
    return [_read_row(header, row, f"{shown(path)}, line {number}") for number, row in rows], 0


def _read_row(header: Sequence[str], row: Sequence[str], place: str) -> Record:
    if len(row) != len(header):
        raise RecordsError(f"{place} has {len(row)} cells, and the header has {len(header)}")
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
        raise RecordsError(f"{place} is not a record, but a JSON {_kind(row)}")
    for key in REQUIRED:
        if key not in row:
            raise RecordsError(f"{place} is not a record of mlvbench: it has no {key!r}")
    for key, value in row.items():
        if type(value) not in (int, float) or not -sys.float_info.max <= value <= sys.float_info.max:
            raise RecordsError(f"{place}: {key!r} must be a finite number, got {_excerpt(value)}")
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


def shown(path: Path) -> str:
    """A path with its control characters as escapes."""
    return repr(os.fspath(path))
