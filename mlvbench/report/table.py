"""A sheet on a terminal, drawn by rich."""

from __future__ import annotations

import os
from io import StringIO
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from mlvbench.report.text import Column, Sheet

GAP = 2
INDENT = 2
# A shorter bar says no more than the figure beside it, and a longer one no more than this.
SHORTEST_BAR, LONGEST_BAR = 8, 24
# Before a name is cut to less than this, columns go.
SHORTEST_NAME = 12
# In a pipe or a file there is room, but not for a name without end.
WIDTH_WITHOUT_TERMINAL = 120
EIGHTHS = " ▏▎▍▌▋▊▉"
ASCII = str.maketrans({"…": "~", "█": "#", "µ": "u", **dict.fromkeys(EIGHTHS[1:], " ")})


def draw(sheet: Sheet, file: IO[str]) -> str:
    """Returns a sheet as text for a stream: as wide as its terminal and in colour; plain where it is not one.

    Raises:
        ImportError: Where rich is not installed.
    """
    from rich.console import Console
    from rich.text import Text

    terminal = _is_terminal(file)
    console = Console(
        file=StringIO(),
        width=_width(file) if terminal else _columns() or WIDTH_WITHOUT_TERMINAL,
        force_terminal=terminal,
        color_system="standard" if terminal and _wants_colour() else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        for line in sheet.title:
            console.print(Text(line, style="dim"), no_wrap=True, overflow="ellipsis", soft_wrap=not terminal)
        console.print()
        console.print(_table(sheet, console))
        console.print()
        for sentence in sheet.advice:
            console.print(Text(sentence, style="yellow"), soft_wrap=not terminal)
        for line in ["", *sheet.notes] if sheet.advice else sheet.notes:
            console.print(Text(line), soft_wrap=not terminal)
    text = "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())
    return text if _is_unicode(file) else text.translate(ASCII)


def _table(sheet: Sheet, console: Console) -> Table:
    from rich.table import Table
    from rich.text import Text

    names = [" " * INDENT * depth + name for depth, name in sheet.names]
    width = max(_cells(text) for text in ["phase", *names])
    columns, left = _fitting(sheet.columns, width, console.width)
    bar = min(left - width - GAP, LONGEST_BAR) if sheet.bars else 0
    table = Table(box=None, padding=(0, 0, 0, GAP), pad_edge=False, header_style="dim")
    table.add_column("phase", width=max(min(width, left), 1), no_wrap=True, overflow="ellipsis")
    for column in columns:
        # Figures to the right, words to the left.
        table.add_column(
            column.title,
            justify="right" if column.title else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=_width_of(column),
        )
        if column.title == "share" and bar >= SHORTEST_BAR:
            table.add_column("", width=bar, no_wrap=True, style="cyan")
    for index, name in enumerate(names):
        cells = [Text(name)]
        for column in columns:
            cells.append(Text(column.cells[index], style=_STYLES.get(column.cells[index], "")))
            if column.title == "share" and bar >= SHORTEST_BAR:
                cells.append(Text(_bar(sheet.bars[index], bar)))
        table.add_row(*cells, style="bold" if index == len(names) - 1 else "")
    return table


_STYLES = {"slower": "red", "faster": "green", "within noise": "dim", "too few snapshots": "dim"}


def _fitting(columns: Sequence[Column], name: int, width: int) -> tuple[list[Column], int]:
    """Returns the columns that there is room for, and the width that they leave for the names."""
    kept = list(columns)
    while True:
        left = width - sum(GAP + _width_of(column) for column in kept)
        if left >= min(name, SHORTEST_NAME) or not kept:
            return kept, left
        kept.remove(min(kept, key=lambda column: column.worth))


def _width_of(column: Column) -> int:
    return max(_cells(text) for text in [column.title, *column.cells])


def _cells(text: str) -> int:
    """How many places a text takes on a terminal: two for a wide character."""
    from rich.cells import cell_len

    return cell_len(text)


def _bar(share: float, width: int) -> str:
    eighths = round(8 * width * min(share, 1.0)) if share > 0 else 0
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


# The stream -----------------------------------------------------------------------------------------------


def _is_terminal(file: IO[str]) -> bool:
    try:
        return file.isatty()
    except ValueError:  # it is closed
        return False


def _wants_colour() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")


def _is_unicode(file: IO[str]) -> bool:
    return (getattr(file, "encoding", None) or "utf-8").lower().replace("_", "-").startswith("utf")


def _width(file: IO[str]) -> int:
    """The terminal's width; what $COLUMNS says goes first, as everywhere."""
    try:
        return _columns() or os.get_terminal_size(file.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _columns() -> int:
    columns = os.environ.get("COLUMNS", "")
    return min(int(columns), 1000) if columns.isascii() and columns.isdecimal() and len(columns) < 9 else 0
