"""What `mlvbench run` was asked for, and the environment that carries it to every process of the run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlvbench.records.schema import Timing

_DIRECTORY = "MLVBENCH_RUN_DIR"
_SETTINGS = "MLVBENCH_SETTINGS"
_PREFIX = "MLVBENCH_PREFIX"
_PROCESS = "MLVBENCH_PROCESS"
_WATCHED = "MLVBENCH_WATCHED"
REPORTER = "MLVBENCH_REPORTER"


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
