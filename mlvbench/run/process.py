"""What each Python process of a profiled run does beside its own work.

When it imports torch, it installs the seams; it appends its records to a file of its own, and one process of the run
prints a line for each, and the report. Nothing here is imported by a process that is not part of a run.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mlvbench.run.console import say, write
from mlvbench.run.settings import REPORTER, Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from mlvbench.autoprofile.observer import Observer
    from mlvbench.monitoring import ThroughputMonitor
    from mlvbench.records.run import RunFile
    from mlvbench.records.schema import Record
    from mlvbench.run.settings import PhaseTarget

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK")
"""Where launchers tell a process its rank, the most telling first. Lightning's tells only the last."""


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
        observer: What measures, once torch is imported.
    """

    def __init__(self, settings: Settings) -> None:
        self.observer: Observer | None = None
        self._monitor: ThroughputMonitor | None = None
        self._settings = settings
        self._is_first = os.getpid() == settings.process
        # The first process of the run, if it is a Python, has told the others that it will report.
        self._reports = self._is_first or REPORTER not in os.environ
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
            os.environ[REPORTER] = str(os.getpid())
            atexit.register(self.report)
        os.register_at_fork(after_in_child=self._forget)
        wrapt.register_post_import_hook(_never_raising(self._install), "torch")
        for module in {phase.module for phase in self._waiting} - {"__main__"}:
            wrapt.register_post_import_hook(_never_raising(self._add_phases), module)

    def _install(self, _: ModuleType) -> None:
        # All that is needed while it trains, so that importing it is no part of that.
        from mlvbench.autoprofile import Block
        from mlvbench.monitoring import recorder_of

        block = Block(self._settings.every, timing=self._settings.timing, when_begun=self._begin)
        self._monitor, self.observer = block.monitor, block.observer
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
                    say(f"--phase {phase.text}: {error}")

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
        if self.observer is not None:
            self.observer.forget()

    def _finish(self) -> None:
        if self.observer is not None:
            self.observer.finish()

    def _record(self, record: Record) -> None:
        if not self._has_failed:
            try:
                self._write(record)
            except (OSError, ValueError) as error:
                self._has_failed = True
                say(f"no more records are written: {error}; the training goes on")
        # At the end there may be one without a step, of what came after the last.
        if record["step"] not in (0, self._last_step) and not self._settings.quiet and self._prints():
            say(_line(record))
        self._last_step = record["step"]

    def _prints(self) -> bool:
        """Whether this is the one of the processes that train together that prints.

        A process that is no rank may be one whose output the script reads.
        """
        return self._rank == 0 and (self._reports or _is_rank())

    def _write(self, record: Record) -> None:
        from mlvbench.records.run import RunFile, describe_run

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
            say(f"cannot report: {error}")
        if getattr(sys, "last_type", None) is KeyboardInterrupt:
            # Python notes that Ctrl-C ends it, to end by that signal, and forgets it where code in a string is run,
            # as making a dataclass does.
            with contextlib.suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")

    def _say_what_happened(self) -> None:
        if self.observer is not None and self.observer.error is not None:
            say(f"profiling ended at an error of its own, please report it: {self.observer.error!r}")
        if self._has_records():
            # What another process recorded is shown by one that trains, or that started those which do.
            if self._is_first or self.observer is not None:
                self._show()
        elif self._is_first:
            say(self._why_nothing())
            if self._settings.made:
                with contextlib.suppress(OSError):
                    Path(self._settings.directory).rmdir()

    def _has_records(self) -> bool:
        from mlvbench.records.run import holds_records

        return holds_records(Path(self._settings.directory))

    def _show(self) -> None:
        from mlvbench import report
        from mlvbench.records.run import read_run

        run = read_run(self._settings.directory)
        keys = {
            key for processes in run.ranks.values() for records in processes for record in records for key in record
        }
        for phase in self._settings.phases:
            if f"t_{phase.name}" not in keys and phase not in self._wrong:
                say(f"--phase {phase.text}: never entered: {self._why_not(phase)}")
        if not keys & {"t_backward", "t_optimizer"}:
            missing = [name for name in ("data", "forward", "loss", "backward", "optimizer") if f"t_{name}" not in keys]
            say(f"no training was seen: {', '.join(missing[:-1])} and {missing[-1]} were never reached")
        # As it was typed, unless the script has gone to another folder.
        directory, shown = self._settings.directory, self._settings.shown
        shown = shown if os.path.abspath(shown) == directory else directory
        if self._settings.quiet:
            write(f"mlvbench report {shlex.quote(shown)}\n")
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
            f"nothing was recorded: {reached if self.observer is not None else 'this process did not import torch'}; "
            "what `python -I`, `-E` or `-S` runs, or another Python, cannot be seen"
        )


def _never_raising(hook: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """Keeps an error of ours out of the script's import."""

    def guarded(module: ModuleType) -> None:
        try:
            hook(module)
        except Exception as error:
            say(f"not profiled: {error!r}; please report it")

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
