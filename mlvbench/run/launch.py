"""Replaces this process by a Python that runs a script with the profiler attached.

Everything that can be wrong is checked first. What is started is the user's own command, unchanged, with an
environment from which each Python process of the run attaches the profiler to itself (`bootstrap`, `running`).
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mlvbench.records.run import RUNS, holds_records
from mlvbench.run.settings import PhaseTarget, Settings, is_profiled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlvbench.records.schema import Timing

BOOTSTRAP = Path(__file__).parent / "bootstrap"


class CommandError(ValueError):
    """Says what is wrong with what was asked for, in one line."""


def launch(
    command: Sequence[str],
    *,
    every: int = 50,
    output: str | None = None,
    phases: Sequence[str] = (),
    timing: Timing = "events",
    quiet: bool = False,
) -> NoReturn:
    """Runs a command with the profiler attached, in place of this process.

    Args:
        command: A script and its arguments; `-m`, a module and its arguments; or `--` and any command.
        every: Steps between two records, at least one.
        output: The directory for the records; made if it is not there. Without it `$MLVBENCH_RUN_DIR`, or a new
            one in `mlvbench-runs`.
        phases: Further phases, each as `NAME=package.module:Class.method`.
        timing: How phases are timed on an accelerator, as for `ThroughputMonitor`.
        quiet: Whether nothing is printed but the last line, which says where the records are, and what went wrong.

    Raises:
        CommandError: For a command, a phase or a directory that cannot be. Nothing has been run or written then.
    """
    program = _program(command)
    targets = [_target(phase, command) for phase in phases]
    directory, shown, made = _directory(command, output)
    settings = Settings(
        directory=str(directory),
        shown=shown,
        every=every,
        timing=timing,
        quiet=quiet,
        phases=targets,
        command=list(command),
        prefix=sys.prefix,
        process=os.getpid(),
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        made=made,
    )
    environment = {**os.environ, **settings.environment(), "PYTHONPATH": _python_path(os.environ)}
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    # Python ignores these, which what it becomes would inherit.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execve(program[0], program, environment)
    except OSError as error:
        if made:
            with contextlib.suppress(OSError):
                directory.rmdir()
        raise CommandError(f"cannot start {program[0]}: {error.strerror}") from None


# The command


def _program(command: Sequence[str]) -> list[str]:
    """The arguments of the process, the first of them the path of a program."""
    if command[0] == "--":
        return _any_command(command[1:])
    if command[0] == "-m":
        if len(command) < 2:
            raise CommandError("-m needs the name of a module, as in: mlvbench run -m package.module")
        if not _is_findable(command[1].partition(".")[0], [Path.cwd()]):
            raise CommandError(f"no module named {command[1]!r} in this folder or in {sys.prefix}")
    else:
        _check_script(command[0])
    if not sys.executable:
        raise CommandError("this Python does not know its own path, so it cannot start a script")
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    _check_flags(flags)
    return [sys.executable, *flags, *command]


def _any_command(command: Sequence[str]) -> list[str]:
    if not command:
        raise CommandError("-- needs a command, as in: mlvbench run -- torchrun train.py")
    path = shutil.which(command[0])
    if path is None:
        raise CommandError(f"no command {command[0]!r} on the PATH")
    if re.fullmatch(r"python[\d.]*", Path(command[0]).name):
        _check_flags(command[1:])
    # Not resolved: the Python of a virtual environment knows it by its own path.
    return [path, *command[1:]]


def _check_flags(arguments: Sequence[str]) -> None:
    """Refuses the options of Python with which it does not read the environment or run `sitecustomize`."""
    takes_value = False
    for argument in arguments:
        if takes_value:
            takes_value = False
        elif not argument.startswith("-") or argument == "-" or argument.startswith(("-c", "-m")):
            return
        elif not argument.startswith(("--", "-W", "-X")) and set(argument) & set("IES"):
            raise CommandError(
                f"python {argument} cannot be profiled: it ignores PYTHONPATH, by which the profiler gets in"
            )
        else:
            takes_value = argument in ("-W", "-X", "--check-hash-based-pycs")


def _check_script(script: str) -> None:
    if not script:
        raise CommandError("the name of the script is empty")
    try:
        _check_path(script, Path(script))
    except OSError as error:
        raise CommandError(f"cannot look for the script {script!r}: {error.strerror}") from None


def _check_path(script: str, path: Path) -> None:
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise CommandError(f"{script!r} is a folder without a __main__.py, and not a script")
    if path.exists():
        return
    if os.sep not in script and shutil.which(script):
        raise CommandError(
            f"no script {script!r} in this folder; for the command of that name: mlvbench run -- {script} …"
        )
    folder = path.parent
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    hint = f"; did you mean {str(folder / close[0])!r}?" if close else ""
    raise CommandError(f"no script {script!r}{hint}")


# The phases


def _target(text: str, command: Sequence[str]) -> PhaseTarget:
    match = re.fullmatch(r"(?P<name>[^=/]+)=(?P<module>[\w.]+):(?P<path>[\w.]+)", text)
    if match is None or "" in match["module"].split(".") or "" in match["path"].split("."):
        raise CommandError(f"--phase must be NAME=package.module:Class.method, got {text!r}")
    script = _script_in(command)
    first = match["module"].partition(".")[0]
    if match["module"] in (_module_in(command), script and script.stem):
        return PhaseTarget(match["name"], "__main__", match["path"], text)
    if first != "__main__" and not _is_findable(first, [Path.cwd() if script is None else script.resolve().parent]):
        close = difflib.get_close_matches(first, sys.stdlib_module_names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise CommandError(
            f"--phase {text!r}: no module named {first!r} where the script would find it; {hint}"
            "what the script itself adds to sys.path must be on PYTHONPATH for this"
        )
    return PhaseTarget(match["name"], match["module"], match["path"], text)


def _script_in(command: Sequence[str]) -> Path | None:
    """The script that a command runs, as far as one can tell."""
    if command[0] == "-m":
        return None
    if command[0] != "--":
        return Path(command[0])
    return next((Path(part) for part in command if part.endswith(".py")), None)


def _module_in(command: Sequence[str]) -> str | None:
    """The module that a command runs with `-m` as its own, the last if it is a launcher's command."""
    places = [place for place, part in enumerate(command[:-1]) if part == "-m"]
    if command[0] == "-m":
        return command[1]
    return command[places[-1] + 1] if command[0] == "--" and places else None


def _is_findable(module: str, folders: Sequence[Path]) -> bool:
    """Whether a top-level module is found, without importing it."""
    if PathFinder.find_spec(module, [str(folder) for folder in folders]) is not None:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


# The environment


def _python_path(environment: Mapping[str, str]) -> str:
    before = environment.get("PYTHONPATH")
    return f"{BOOTSTRAP}{os.pathsep}{before}" if before else str(BOOTSTRAP)


def _directory(command: Sequence[str], output: str | None) -> tuple[Path, str, bool]:
    """The run's directory, with the name that it has in this folder, and whether it had to be made."""
    if output == "":
        raise CommandError("--output must be the name of a directory, got ''")
    # In a run that is started inside a run the variable is that of the other one.
    inherited = None if is_profiled(os.environ) else os.environ.get("MLVBENCH_RUN_DIR")
    given = output or inherited
    try:
        if given:
            directory = Path(given)
            _check_output(directory)
            made = not directory.exists()
            directory.mkdir(parents=True, exist_ok=True)
        else:
            directory, made = _new_directory(command), True
    except OSError as error:
        raise CommandError(f"cannot make the run's directory: {error}; choose another with --output") from None
    if not os.access(directory, os.W_OK):
        raise CommandError(f"cannot write into {str(directory)!r}; choose another with --output")
    return directory.absolute(), str(directory), made


def _check_output(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise CommandError(f"the records need a directory, and {str(directory)!r} is a file")
    # Where a launcher starts this once a rank, another rank may have written there already.
    if directory.exists() and holds_records(directory) and "RANK" not in os.environ and not _job():
        raise CommandError(
            f"the directory {str(directory)!r} has the records of another run, which would be mixed; choose another"
        )


def _new_directory(command: Sequence[str]) -> Path:
    RUNS.mkdir(exist_ok=True)
    if not (ignored := RUNS / ".gitignore").exists():
        ignored.write_text("*\n")
    name = _name(command)
    job = _job()
    if job:
        directory = RUNS / f"{name}-{job}"
        directory.mkdir(exist_ok=True)
        return directory
    name = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        try:
            (RUNS / f"{name}{suffix}").mkdir()
        except FileExistsError:
            continue
        return RUNS / f"{name}{suffix}"
    raise FileExistsError(f"{RUNS / name}")


def _name(command: Sequence[str]) -> str:
    """What a run of the command is called."""
    script = _script_in(command)
    return script.resolve().stem if script else Path(command[1]).name


def _job() -> str | None:
    """The name of the job where a launcher starts `mlvbench run` once a rank: the ranks share a directory."""
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")  # which is torchrun's name for none
    if job == "none" and os.environ.get("SLURM_NTASKS", "1") != "1" and "SLURM_STEP_ID" in os.environ:
        job = f"{os.environ.get('SLURM_JOB_ID')}.{os.environ['SLURM_STEP_ID']}"
    return None if job == "none" else re.sub(r"[^\w.-]", "-", job)
