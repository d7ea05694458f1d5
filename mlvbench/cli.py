"""The command line: `mlvbench run`, `mlvbench report` and `mlvbench compare`."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from mlvbench.records.files import RecordsError, replace_file
from mlvbench.records.run import newest_run, read_run
from mlvbench.records.schema import TIMINGS
from mlvbench.report import compare, export, page, text, to_text, write
from mlvbench.report.summary import summarize
from mlvbench.report.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlvbench.records.run import Run
    from mlvbench.records.schema import Timing
    from mlvbench.report.summary import Summary
    from mlvbench.report.text import Sheet

USAGE = """\
usage: mlvbench run [options] train.py [args...]     profile a script that nobody edits
       mlvbench report [options] [run]               where the time of its steps goes
       mlvbench compare [options] before after       what is slower or faster, and whether it is noise

`mlvbench run --help` and so on tell the options; `mlvbench --version` tells the version.
"""
RUN_USAGE = """\
usage: mlvbench run [options] train.py [args...]
       mlvbench run [options] -m package.module [args...]
       mlvbench run [options] -- torchrun --nproc-per-node 2 train.py [args...]

Runs the script as python would, and records where the time of its steps goes.

options, before the script; all that follows it is the script's own:
  --every N       steps between two records (50)
  --output DIR    directory for the records (mlvbench-runs/<script>-<time>)
  --phase NAME=package.module:Class.method
                  one more phase: the calls of that method; may be given again
  --timing HOW    on an accelerator: events (the default), its own times, without
                  holding it up; or synchronize, wait for it at each phase
  --quiet         print nothing while it runs, and no report
  -h, --help      print this
"""
_WITH_VALUE = ("--every", "--output", "--phase", "--timing")
FORMATS = ("table", "json", "csv", "markdown")


class UsageError(ValueError):
    """A command line that says nothing that can be done."""


def main(argv: Sequence[str] | None = None) -> int:
    """Does what the command line says.

    Args:
        argv: The arguments after the program's name; those of this process if None.

    Returns:
        The exit code: 0; 1 where `--fail-if-slower` found it slower; 2 for bad input, after one line on the standard
        error; 130 after Ctrl-C. `mlvbench run` does not return: the script takes the process over.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else ""
    prog = f"mlvbench {name}" if name in _COMMANDS else "mlvbench"
    try:
        return _COMMANDS[name](arguments[1:]) if name in _COMMANDS else _without_command(name)
    except KeyboardInterrupt:
        return 130
    except (UsageError, RecordsError) as error:
        return _complain(f"{prog}: {error}")
    except OSError as error:
        return _complain(f"{prog}: cannot print: {error.strerror or error}")


def _without_command(name: str) -> NoReturn:
    missing = f"there is no command {name!r}" if name else "no command given"
    raise UsageError(f"{missing}: use run, report or compare (mlvbench --help tells more)")


def _help(_: Sequence[str]) -> int:
    return _print(USAGE)


def _version(_: Sequence[str]) -> int:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return _print(f"mlvbench {version('mlvbench')}\n")
    except PackageNotFoundError:
        raise UsageError("it is not installed, and its version therefore not known") from None


# run ------------------------------------------------------------------------------------------------------


@dataclass
class RunOptions:
    """What `mlvbench run` was told."""

    command: list[str] = field(default_factory=list)
    every: int = 50
    output: str | None = None
    phases: list[str] = field(default_factory=list)
    timing: Timing = "events"
    quiet: bool = False
    help: bool = False


def _run(arguments: Sequence[str]) -> int:
    options = read_run_options(arguments)
    if options.help:
        return _print(RUN_USAGE)
    from mlvbench.run.launch import CommandError, launch

    try:
        launch(
            options.command,
            every=options.every,
            output=options.output,
            phases=options.phases,
            timing=options.timing,
            quiet=options.quiet,
        )
    except CommandError as error:
        raise UsageError(printable(str(error))) from None


def read_run_options(arguments: Sequence[str]) -> RunOptions:
    """Reads the options before the script.

    By hand, since argparse takes options from among the script's own.

    Raises:
        UsageError: For an option that there is not, or a value that it cannot have, or where there is no script.
    """
    options = RunOptions()
    waiting = list(arguments)
    while waiting and waiting[0].startswith("-") and waiting[0] not in ("-", "--", "-m"):
        name, equals, value = waiting.pop(0).partition("=")
        if name == "--quiet" and not equals:
            options.quiet = True
        elif name in ("-h", "--help") and not equals:
            options.help = True
        elif name in _WITH_VALUE:
            if not equals and (not waiting or waiting[0].startswith("--")):
                raise UsageError(f"{name} needs a value (mlvbench run --help tells more)")
            _set(options, name, value if equals else waiting.pop(0))
        else:
            known = f"{', '.join(_WITH_VALUE)} or --quiet"
            raise UsageError(f"there is no option {name!r}: use {known}, before the script")
    options.command = waiting
    if not options.help and not [argument for argument in waiting[:2] if argument not in ("--", "-m")]:
        raise UsageError("no script given, such as: mlvbench run train.py")
    return options


def _set(options: RunOptions, name: str, value: str) -> None:
    if name == "--output":
        options.output = value
    elif name == "--phase":
        options.phases.append(value)
    elif name == "--timing":
        if value not in TIMINGS:
            raise UsageError(f"--timing must be {' or '.join(TIMINGS)}, got {value!r}")
        options.timing = TIMINGS[TIMINGS.index(value)]
    elif value.isascii() and value.isdecimal() and len(value) <= 18 and int(value) > 0:
        options.every = int(value)
    else:
        raise UsageError(f"--every must be a positive integer, got {value!r}")


# report and compare ---------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(printable(message))


def _parser(name: str, description: str) -> _Parser:
    parser = _Parser(prog=f"mlvbench {name}", description=description, allow_abbrev=False)
    parser.add_argument("--format", type=_format, metavar="FORMAT", help=f"{', '.join(FORMATS)} ({FORMATS[0]})")
    parser.add_argument("--html", metavar="PAGE", help="write a page with charts to this file, instead of printing")
    parser.add_argument("--include-warmup", action="store_true", help="count the first snapshot of each process too")
    return parser


def _format(text: str) -> str:
    if text not in FORMATS:
        raise argparse.ArgumentTypeError(f"must be {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got {text!r}")
    return text


def _percent(text: str) -> float:
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = math.nan
    if not 0 <= percent < math.inf:
        raise argparse.ArgumentTypeError(f"must be a percentage from 0 on, such as 5 or 2.5, got {text!r}")
    return percent


def _report(arguments: Sequence[str]) -> int:
    parser = _parser("report", "Tells where the time of a run's steps goes.")
    parser.add_argument("run", nargs="?", help="a run's directory, or a file that save() wrote; the newest if left out")
    options = parser.parse_args(arguments)
    run = read_run(newest_run() if options.run is None else options.run)
    summary = summarize(run, include_warmup=options.include_warmup)
    if options.html is not None:
        _write_page(options.html, lambda: page.report_page(run, summary))
    if not _prints(options):
        return 0
    if options.format == "json":
        return _print(export.report_json(run, summary))
    if options.format == "csv":
        return _print(export.report_csv(summary))
    return _print_sheet(text.report_sheet(run, summary), options.format)


def _compare(arguments: Sequence[str]) -> int:
    parser = _parser("compare", "Tells what is slower or faster in the second run, and whether it is more than noise.")
    parser.add_argument("before", help="a run's directory, or a file that save() wrote")
    parser.add_argument("after", help="the same")
    parser.add_argument(
        "--fail-if-slower",
        type=_percent,
        metavar="PERCENT",
        help="exit with 1 if a step takes longer by more than this, and by more than noise",
    )
    options = parser.parse_args(arguments)
    runs = read_run(options.before), read_run(options.after)
    before, after = (_summary_with_steps(run, include_warmup=options.include_warmup) for run in runs)
    comparison = compare.compare(before, after)
    if options.html is not None:
        _write_page(options.html, lambda: page.comparison_page(runs, (before, after), comparison))
    if not _prints(options):
        pass
    elif options.format == "json":
        _print(export.comparison_json(*runs, comparison))
    elif options.format == "csv":
        _print(export.comparison_csv(comparison))
    else:
        _print_sheet(text.comparison_sheet(*runs, comparison), options.format)
    if options.fail_if_slower is None:
        return 0
    _complain(f"mlvbench compare: {text.verdict(comparison, options.fail_if_slower)}")
    return int(comparison.is_slower(options.fail_if_slower))


def _prints(options: argparse.Namespace) -> bool:
    """Tells whether a report is printed: where a page is written, only if its format is given too."""
    return options.html is None or options.format is not None


def _write_page(path: str, make: Callable[[], str]) -> None:
    _check_is_page(path)
    shown = make()
    try:
        replace_file(path, lambda file: file.write(shown))
    except OSError as error:
        raise UsageError(f"cannot write {path!r}: {error.strerror or error}") from None


def _check_is_page(path: str) -> None:
    """Refuses to replace what is no page: a slip would cost a run's records, or the script."""
    with contextlib.suppress(OSError):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                begins = file.read(len(page.BEGINS))
            if begins and begins != page.BEGINS.encode():
                raise UsageError(f"--html would replace {path!r}, which is no page: give it another name")


def _summary_with_steps(run: Run, *, include_warmup: bool) -> Summary:
    summary = summarize(run, include_warmup=include_warmup)
    if summary.per_step(summary.wall) is None:
        raise RecordsError(
            f"{str(run.path)!r} cannot be compared: its records count no step, and times are compared a step"
        )
    return summary


# Printing -------------------------------------------------------------------------------------------------


def _print_sheet(sheet: Sheet, form: str) -> int:
    if form == "markdown":
        return _print(text.markdown(sheet))
    if sys.stdout is None:  # it is closed
        return 0
    shown, hint = to_text(sheet, sys.stdout)
    if hint:
        _complain(f"mlvbench: {hint}")
    return _print(shown)


def _print(shown: str) -> int:
    if sys.stdout is None:
        return 0
    try:
        write(shown, sys.stdout)
    except OSError as error:
        # What is left in the buffer would raise once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # whoever reads may stop reading
            raise
    return 0


def _complain(line: str) -> int:
    """Says what is wrong, in one line."""
    if sys.stderr is not None:
        write(f"{line}\n", sys.stderr)
    return 2


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": _run,
    "report": _report,
    "compare": _compare,
    "--help": _help,
    "-h": _help,
    "--version": _version,
}
