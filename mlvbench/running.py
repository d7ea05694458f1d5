"""What each Python process of a profiled run does beside its own work.

When it imports torch, it installs the seams; it appends its records to a file of its own, and one process of the run
prints a line for each, and the report. Nothing here is imported by a process that is not part of a run.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from mlvbench.counting.timeline import Timing
    from mlvbench.monitoring import ThroughputMonitor
    from mlvbench.profiling import Profile
    from mlvbench.records import Record
    from mlvbench.runs import RunFile

_DIRECTORY = "MLVBENCH_RUN_DIR"
_SETTINGS = "MLVBENCH_SETTINGS"
_PREFIX = "MLVBENCH_PREFIX"
_PROCESS = "MLVBENCH_PROCESS"
_WATCHED = "MLVBENCH_WATCHED"
_REPORTER = "MLVBENCH_REPORTER"

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
"""Where launchers tell a process its rank, the most telling first. Lightning's tells only the last."""


class PhaseTarget(NamedTuple):
    """A phase of the user's: `path` is an attribute of `module`, like `Class.method`; `text` is what was typed."""

    name: str
    module: str
    path: str
    text: str


class Settings(NamedTuple):
    """What `mlvbench run` was asked for, as every process of the run gets it in its environment.

    Attributes:
        directory: Where the records go, as an absolute path.
        shown: The same as the user would type it.
        every: Steps between two records.
        timing: How phases are timed on an accelerator.
        quiet: Whether no line and no report is printed.
        phases: Further phases.
        command: What was run; to the others as much of it as fits into a variable.
        prefix: The `sys.prefix` of the Python that has this package.
        process: The id of the process that was `mlvbench run`, and is the command now.
        started: When, in ISO 8601.
        made: Whether the directory was made for the run.
    """

    directory: str
    shown: str
    every: int
    timing: Timing
    quiet: bool
    phases: list[PhaseTarget]
    command: list[str]
    prefix: str
    process: int
    started: str
    made: bool

    def environment(self) -> dict[str, str]:
        """The variables that carry the settings; what `bootstrap` reads has names of its own."""
        return {
            _DIRECTORY: self.directory,
            _PREFIX: self.prefix,
            _PROCESS: str(self.process),
            _WATCHED: ",".join({"torch": None, **dict.fromkeys(phase.module for phase in self.phases)}),
            _SETTINGS: json.dumps({**self._asdict(), "command": [part[:200] for part in self.command[:50]]}),
        }

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """Reads them back."""
        settings = json.loads(environment[_SETTINGS])
        return cls(**{**settings, "phases": [PhaseTarget(*phase) for phase in settings["phases"]]})


def is_profiled(environment: Mapping[str, str]) -> bool:
    """Whether a process with these variables is part of a run."""
    return _SETTINGS in environment


def attach() -> None:
    """Attaches the profiler to torch and the modules with phases, before any is imported, and to the process's end."""
    _this_process().attach()


def report() -> None:
    """Says at the end of the process what the run was, if it is for this process to say."""
    _this_process().report()


@functools.cache
def _this_process() -> _Process:
    return _Process(Settings.of(os.environ))


class _Process:
    """One process of a run.

    Attributes:
        profile: What measures, once torch is imported.
    """

    def __init__(self, settings: Settings) -> None:
        self.profile: Profile | None = None
        self._monitor: ThroughputMonitor | None = None
        self._settings = settings
        self._is_first = os.getpid() == settings.process
        # The first process of the run, if it is a Python, has told the others that it will report.
        self._reports = self._is_first or _REPORTER not in os.environ
        self._rank = _rank()
        self._waiting = set(settings.phases)
        self._wrong: set[PhaseTarget] = set()
        self._file: RunFile | None = None
        self._has_failed = False
        self._last_step: float | None = None

    def attach(self) -> None:
        """Waits for torch, for the modules with further phases, and for the end."""
        import wrapt

        if self._reports and not self._is_first:
            os.environ[_REPORTER] = str(os.getpid())
            atexit.register(self.report)
        os.register_at_fork(after_in_child=self._forget)
        wrapt.register_post_import_hook(_never_raising(self._install), "torch")
        for module in {phase.module for phase in self._waiting} - {"__main__"}:
            wrapt.register_post_import_hook(_never_raising(self._add_phases), module)

    def _install(self, _: ModuleType) -> None:
        # All that is needed while it trains, so that importing it is no part of that.
        import mlvbench.report.intervals
        import mlvbench.report.text
        import mlvbench.runs  # noqa: F401
        from mlvbench.autoprofile import Block
        from mlvbench.monitoring import recorder_of

        block = Block(self._settings.every, timing=self._settings.timing, when_begun=self._begin)
        self._monitor, self.profile = block.monitor, block.profile
        recorder_of(self._monitor).subscribe(self._record)
        block.__enter__()
        for name in {phase.module for phase in self._waiting} - {"__main__"}:
            module = sys.modules.get(name)
            # One that is importing torch is not whole yet: its own hook follows.
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                self._add_phases(module)

    def _add_phases(self, module: ModuleType) -> None:
        if self._monitor is None:
            return  # The module is imported before torch is.
        for phase in [phase for phase in self._waiting if sys.modules.get(phase.module) is module]:
            self._waiting.discard(phase)
            try:
                self._monitor.instrument(module, {phase.name: phase.path})
            except (AttributeError, TypeError) as error:
                self._wrong.add(phase)
                if self._prints():
                    _say(f"--phase {phase.text}: {error}")

    def _begin(self) -> None:
        """Does what had to wait for the training: what the script itself defines is there only now."""
        self._rank = _rank()
        self._add_phases(sys.modules["__main__"])
        atexit.register(self._finish)
        # A child of multiprocessing's does not come to what atexit has.
        if util := sys.modules.get("multiprocessing.util"):
            util.Finalize(None, self._finish, exitpriority=0)

    def _forget(self) -> None:
        """Leaves to the parent what is the parent's."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._is_first = self._reports = False
        if self.profile is not None:
            self.profile.forget()

    def _finish(self) -> None:
        if self.profile is not None:
            self.profile.finish()

    def _record(self, record: Record) -> None:
        if not self._has_failed:
            try:
                self._write(record)
            except (OSError, ValueError) as error:
                self._has_failed = True
                _say(f"no more records are written: {error}; the training goes on")
        # At the end there may be one without a step, of what came after the last.
        if record["step"] not in (0, self._last_step) and not self._settings.quiet and self._prints():
            _say(_line(record))
        self._last_step = record["step"]

    def _prints(self) -> bool:
        """Whether this is the one of the processes that train together that prints.

        A process that is no rank may be one whose output the script reads.
        """
        return self._rank == 0 and (self._reports or _is_rank())

    def _write(self, record: Record) -> None:
        from mlvbench.runs import RunFile, describe_run

        if _group() is not None:
            self._rank = _rank()  # At the end the group may be gone.
        if self._file is None:
            directory = Path(self._settings.directory)
            restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            self._file = RunFile(directory, f"{self._rank}" if restarts == "0" else f"{self._rank}.restart{restarts}")
            describe_run(directory, self._description())
        self._file.append(record)

    def _description(self) -> dict[str, object]:
        from importlib.metadata import PackageNotFoundError, version

        assert self._monitor is not None
        try:
            ours = version("mlvbench")
        except PackageNotFoundError:
            ours = "not installed"
        return {
            "command": self._settings.command,
            "record_every_n_steps": self._settings.every,
            "timing": self._monitor.timing,
            "device": str(self._monitor.device),
            "started": self._settings.started,
            "mlvbench": ours,
            "torch": sys.modules["torch"].__version__,
        }

    def report(self) -> None:
        """Says, when the run is at its end, what it was."""
        if not self._reports or self._rank != 0:
            return
        try:
            self._finish()
            self._say_what_happened()
        except KeyboardInterrupt:
            pass
        except Exception as error:
            _say(f"cannot report: {error}")
        if getattr(sys, "last_type", None) is KeyboardInterrupt:
            # Python notes that Ctrl-C ends it, to end by that signal, and forgets it where code in a string is run,
            # as making a dataclass does.
            with contextlib.suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")

    def _say_what_happened(self) -> None:
        if self.profile is not None and self.profile.error is not None:
            _say(f"profiling ended at an error of its own, please report it: {self.profile.error!r}")
        if self._has_records():
            # What another process recorded is shown by one that trains, or that started those which do.
            if self._is_first or self.profile is not None:
                self._show()
        elif self._is_first:
            _say(self._why_nothing())
            if self._settings.made:
                with contextlib.suppress(OSError):
                    Path(self._settings.directory).rmdir()

    def _has_records(self) -> bool:
        from mlvbench.runs import holds_records

        return holds_records(Path(self._settings.directory))

    def _show(self) -> None:
        from mlvbench import report
        from mlvbench.runs import read_run

        run = read_run(self._settings.directory)
        keys = {
            key for processes in run.ranks.values() for records in processes for record in records for key in record
        }
        for phase in self._settings.phases:
            if f"t_{phase.name}" not in keys and phase not in self._wrong:
                _say(f"--phase {phase.text}: never entered: {self._why_not(phase)}")
        if not keys & {"t_backward", "t_optimizer"}:
            missing = [name for name in ("data", "forward", "loss", "backward", "optimizer") if f"t_{name}" not in keys]
            _say(f"no training was seen: {', '.join(missing[:-1])} and {missing[-1]} were never reached")
        # As it was typed, unless the script has gone to another folder.
        directory, shown = self._settings.directory, self._settings.shown
        shown = shown if os.path.abspath(shown) == directory else directory
        if self._settings.quiet:
            _print(f"mlvbench report {shlex.quote(shown)}\n")
        elif sys.__stderr__ is not None:
            report.show(shown, sys.__stderr__)

    def _why_not(self, phase: PhaseTarget) -> str:
        if phase in self._waiting:
            return f"{phase.module} was never imported"
        return (
            f"no call of {phase.path} began while it trained (what runs in workers of a DataLoader is not timed: "
            "num_workers=0 shows it)"
        )

    def _why_nothing(self) -> str:
        if getattr(sys, "last_type", None) is not None:
            return "nothing was recorded"
        reached = "of data, forward, inference, loss, backward and optimizer none was reached"
        return (
            f"nothing was recorded: {reached if self.profile is not None else 'this process did not import torch'}; "
            "what `python -I`, `-E` or `-S` runs, or another Python, cannot be seen"
        )


def _never_raising(hook: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """Keeps an error of ours out of the script's import."""

    def guarded(module: ModuleType) -> None:
        try:
            hook(module)
        except Exception as error:
            _say(f"not profiled: {error!r}; please report it")

    return guarded


def _group() -> ModuleType | None:
    """torch.distributed, if this process has joined those that train together."""
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed and distributed.is_available() and distributed.is_initialized() else None


def _has_ranks() -> bool:
    group = _group()
    return group is not None and group.get_world_size() > 1


def _is_rank() -> bool:
    return _group() is not None or any(name in os.environ for name in _RANKS)


def _rank() -> int:
    """The rank of this process among those that train together."""
    if (group := _group()) is not None:
        return int(group.get_rank())
    told = next((os.environ[name] for name in _RANKS if name in os.environ), "0")
    return int(told) if told.isdecimal() else 0


def _line(record: Record) -> str:
    """A snapshot in a line: the step, the throughput, the two phases that take most, the memory."""
    from mlvbench.report.intervals import intervals_of

    wall = record["wall_sec"] or 1
    # What each phase takes itself: its time without that of the phases in it.
    own = {path: column[0] for path, column in intervals_of([record]).seconds.items()}
    for path, seconds in list(own.items()):
        if path[:-1] in own:
            own[path[:-1]] -= seconds
    largest = sorted(own, key=lambda path: -own[path])[:2]
    parts = [
        f"step {record['step']:,}",
        f"{record['samples'] / wall:,.0f} samples/s{' on rank 0' if _has_ranks() else ''}",
        *(f"{'/'.join(path)} {own[path] / wall:.0%}" for path in largest),
        *([f"{record['gpu_mem_peak_gb']:.1f} GB"] if record["gpu_mem_peak_gb"] else []),
    ]
    return "  ".join(parts)


def _say(text: str) -> None:
    from mlvbench.report.text import printable

    _print(f"mlvbench: {printable(text)}\n")


def _print(line: str) -> None:
    """Prints to the stderr that the process began with, above the bars of tqdm's where there are any.

    What the script has put in its place is the script's. Where it cannot print, it does nothing.
    """
    if sys.__stderr__ is None:
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
        if tqdm is not None and getattr(tqdm, "_instances", None):
            tqdm.write(line, file=sys.__stderr__, end="")
        else:
            sys.__stderr__.write(line)
            sys.__stderr__.flush()
