"""What the records of a run say, for people and for machines. Nothing here imports torch."""

from __future__ import annotations

import os
import shlex
import sys
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from mlvbench.report.text import Sheet

__all__ = ["WITHOUT_RICH", "show", "to_text"]

WITHOUT_RICH = "for a table, install rich: pip install rich"


def show(path: str | os.PathLike[str], file: IO[str] | None = None) -> None:
    """Prints the report of a run, and last the command that prints it again.

    Args:
        path: A run's directory, or a file of records.
        file: Where to; the standard error if None.

    Raises:
        RecordsError: Where there is nothing to read.
        OSError: Where it cannot be printed.
    """
    from mlvbench.records.run import read_run
    from mlvbench.report.summary import summarize
    from mlvbench.report.text import printable, report_sheet

    file = sys.stderr if file is None else file
    if file is None:  # it is closed
        return
    run = read_run(path)
    text, hint = to_text(report_sheet(run, summarize(run)), file)
    lines = [hint] if hint else []
    lines.append(printable(f"mlvbench report {shlex.quote(os.fspath(path))}"))
    write(f"{text}\n" + "".join(f"{line}\n" for line in lines), file)


def to_text(sheet: Sheet, file: IO[str]) -> tuple[str, str | None]:
    """Returns a sheet as text for a stream, and what to say where it is Markdown for want of rich."""
    from mlvbench.report.table import draw
    from mlvbench.report.text import markdown

    try:
        return draw(sheet, file), None
    except ImportError:
        return markdown(sheet), WITHOUT_RICH


def write(text: str, file: IO[str]) -> None:
    """Writes text to a stream and through it; what its encoding has no sign for as escapes."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    file.write(text.encode(encoding, "backslashreplace").decode(encoding))
    file.flush()
