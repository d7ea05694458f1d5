"""The monitor: where a training step's time goes, at what throughput, with which memory."""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import operator
import time
import warnings
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, overload

from mlvbench.counting.counters import SEPARATOR
from mlvbench.counting.device import Device
from mlvbench.counting.recorder import Recorder
from mlvbench.dynamo import is_dynamo_compiling, warn_uncounted, warn_untimed
from mlvbench.instrument import patching
from mlvbench.instrument.callables import Selection, time_callable
from mlvbench.instrument.iterables import TimedIterable
from mlvbench.instrument.patching import Handle
from mlvbench.records import files
from mlvbench.records.schema import TIMINGS

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import SupportsIndex

    import torch

    from mlvbench.counting.counters import Clock, Phase
    from mlvbench.records.schema import Record, Timing

__all__ = ["ThroughputMonitor"]

F = TypeVar("F")
I = TypeVar("I", bound="Iterable[Any]")  # noqa: E741

_NOTHING = contextlib.nullcontext()


class _NoPhases(dict[str, AbstractContextManager[None]]):
    """The phases of a disabled monitor."""

    def __missing__(self, name: str) -> AbstractContextManager[None]:
        return _NOTHING


class ThroughputMonitor:
    """Accounts a training loop's time to named phases, and takes a snapshot of it every so many steps.

    A disabled monitor (`record_every_n_steps=None`) does nothing at all: every method is a no-op, `iterate` and
    `timed` give back what they were given, and neither the clock nor the device is touched.

    Args:
        device: The device that the work runs on; the memory of an accelerator is reported. What `torch.device` raises
            for an unknown one passes through.
        record_every_n_steps: Steps between two snapshots, a positive integer; `None` disables the monitor.
        clock: Gives seconds. Read once when a phase begins, once when it ends (but not with `timing="events"`), and
            once where an interval does (here, in `snapshot` and in `reset`).
        timing: How phases are timed on an accelerator, which works apart from the host; on a CPU both are the clock.
            With "synchronize" the device is waited for when a phase begins and when it ends, so that a phase is
            charged with its own work and not with what was in flight before. With "events" the device is given an
            event there, in the current stream, and waited for once a snapshot alone: a phase is charged with the time
            that the device takes from the one to the other. `"data"` is then the time that the device stands idle
            for data, whatever the loader takes.

    Raises:
        TypeError: For a `record_every_n_steps` that is not an integer, or a `clock` that cannot be called.
        ValueError: For a `record_every_n_steps` below one, or another `timing`.

    Example:
        ```python
        monitor = ThroughputMonitor("cuda", record_every_n_steps=50)
        for step, batch in enumerate(monitor.iterate(loader), start=1):
            with monitor.phase("forward"):
                loss = model(batch)
            monitor.record_samples(len(batch))
            snapshot = monitor.step(step)
        monitor.save("throughput.json")
        ```
    """

    def __init__(
        self,
        device: torch.device | str,
        record_every_n_steps: int | None = 50,
        clock: Clock = time.perf_counter,
        timing: Timing = "synchronize",
    ) -> None:
        if not callable(clock):
            raise TypeError(f"clock must be a function that gives seconds, got {clock!r}")
        if timing not in TIMINGS:
            raise ValueError(f"timing must be 'synchronize' or 'events', got {timing!r}")
        self._device = Device(device)
        self._record_every_n_steps = _checked_interval(record_every_n_steps)
        self._clock = clock
        self._timing = timing
        self._last_step: int | None = None
        self._start([])

    def _start(self, records: Sequence[Record]) -> None:
        """Begins the first interval."""
        self._recorder = Recorder(self._device, self._clock, self._timing, records) if self.enabled else None
        self._phases: Mapping[str, AbstractContextManager[None]] = (
            self._recorder.counters.phases if self._recorder else _NoPhases()
        )

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles keep settings and records; counting begins anew in them, with no subscriber."""
        state = {name: value for name, value in vars(self).items() if name not in ("_recorder", "_phases")}
        return {**state, "_device": Device(self.device), "records": self.records}

    def __setstate__(self, state: dict[str, Any]) -> None:
        records = state.pop("records")
        vars(self).update(state)
        self._start(records)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(device={str(self.device)!r}, "
            f"record_every_n_steps={self.record_every_n_steps}, records={len(self.records)})"
        )

    @property
    def device(self) -> torch.device:
        """The device on whose timeline phases are timed, and whose memory is reported."""
        return self._device.device if self._recorder is None else self._recorder.device

    @property
    def timing(self) -> Timing:
        """How phases are timed on an accelerator: "synchronize" or "events".

        Where events were asked for and the device turns out to have none that tell times, it is "synchronize".
        """
        return self._timing if self._recorder is None else self._recorder.timing

    @property
    def record_every_n_steps(self) -> int | None:
        """Steps between two snapshots; `None` for a disabled monitor."""
        return self._record_every_n_steps

    @property
    def clock(self) -> Clock:
        """The only source of host time, in seconds."""
        return self._clock

    @property
    def enabled(self) -> bool:
        """Whether anything is measured."""
        return self._record_every_n_steps is not None

    @property
    def records(self) -> list[dict[str, float]]:
        """The snapshots so far, oldest first; a copy, so that changing it changes nothing here."""
        return [] if self._recorder is None else [dict(record) for record in self._recorder.records]

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Accounts the time of a `with` block to a phase.

        Nothing is recorded when the block raises, and the exception passes untouched. Phases nest, also in
        themselves (then the time counts once), and each thread and asyncio task has its own. In a region compiled
        by `torch.compile` nothing is timed, which is said once in a warning.

        Args:
            name: A non-empty string without `/`.

        Returns:
            A context manager that may be entered any number of times, anywhere but in a compiled region: there only
            one that is made there can be.

        Raises:
            TypeError: For a name that is not a string.
            ValueError: For an empty one, or one with `/`, which separates nested phases in a snapshot.
        """
        if is_dynamo_compiling():
            if self.enabled:
                warn_untimed(name)
            return contextlib.nullcontext()
        try:
            return self._phases[name]
        except (KeyError, TypeError):
            return self._phase(name) if self.enabled else _NOTHING

    def iterate(self, iterable: I) -> I:
        """Accounts the time that producing each item takes to the phase `"data"`.

        What a `for` loop waits for is counted, and not what its body does: producing an item, and making the
        iterator (which starts a loader's workers). The last call, which finds nothing, is not. The clock is read
        twice an item, and twice for making an iterator where that runs Python code.

        Args:
            iterable: Any iterable; a `DataLoader`, as a rule.

        Returns:
            A view of it: its items, length and attributes are the iterable's own. Each `iter()` starts a new pass,
            as the iterable's would; `next(view)` starts one too, and a `for` after it goes on with that pass.

        Raises:
            TypeError: For something that cannot be iterated over.
        """
        if not self.enabled:
            return iterable
        if is_dynamo_compiling():
            warn_untimed("data")
            return iterable
        if not hasattr(type(iterable), "__iter__") and not hasattr(type(iterable), "__getitem__"):
            raise TypeError(f"iterate needs an iterable, got {iterable!r}")
        return TimedIterable(iterable, self._phase("data"))  # type: ignore[return-value]  # a view of it

    @overload
    def timed(self, name: str) -> Callable[[F], F]: ...
    @overload
    def timed(self, name: F) -> F: ...
    def timed(self, name: Any) -> Any:
        """Makes the calls of a function a phase, as a decorator: `@monitor.timed("name")` or `@monitor.timed`.

        Functions, methods, `classmethod` and `staticmethod` in either order; coroutines (with what they await);
        generators and async generators (only while they are producing, as `iterate` does). Signature, name,
        docstring and kind of the function stay.

        Args:
            name: The phase's name. Without it, the function: its own name is the phase's.

        Raises:
            TypeError: For something that is not a function, or a name that is not a string.
            ValueError: For an empty name, or one with `/`.
        """
        if isinstance(name, str):
            if not self.enabled:
                return lambda function: function
            return functools.partial(self._timed, self._phase(name))
        if not self.enabled:
            return name
        return self._timed(None, name)

    def _timed(self, phase: Phase | None, function: Any) -> Any:
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(self._timed(phase, function.__func__))
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"timed decorates a function, got {function!r}")
        if phase is None:
            name = getattr(function, "__name__", None)
            if not isinstance(name, str):
                raise TypeError(f'timed needs a phase\'s name, @monitor.timed("name"), for {function!r:.60}')
            phase = self._phase(name)
        return time_callable(function, Selection(phase))

    def instrument(self, target: Any, phases: Mapping[str, str | Sequence[str]]) -> Handle:
        """Makes calls of a target's methods phases, without editing the target.

        It patches all or nothing. Instrumenting a method again for the same phase times it once. Copies and pickles
        of an instrumented object are not instrumented, and no object is kept alive.

        Args:
            target: An `nn.Module`, any other object (whose calls alone are timed then), a class or a Python module.
            phases: For each phase the dotted path of an attribute from the target (`"backbone.blocks.0.attention"`),
                or several that share the phase. An `nn.Module` at the end of a path means its `forward`, a class
                its `__init__`.

        Returns:
            A handle: `remove()`, or leaving a `with` block, restores the target, in any order among several.

        Raises:
            AttributeError: For a path that leads nowhere; the message has the closest names.
            TypeError: For a path to something that cannot be called or replaced.
            ValueError: For an empty phase name or path.
        """
        if not self.enabled:
            return Handle(lambda: None)
        return patching.instrument(target, [(self._phase(name), path) for name, path in _checked_paths(phases)])

    def record_samples(self, count: SupportsIndex) -> None:
        """Adds to the samples of this interval.

        Args:
            count: An integer, a NumPy integer or a 0-d integer tensor.

        Raises:
            TypeError: For something that is not an integer.
            ValueError: For a negative number.
        """
        recorder = self._recorder_for("record_samples")
        if recorder is None:
            return
        samples = _checked_integer("count", count)
        if samples < 0:
            raise ValueError(f"count must not be negative, got {samples}")
        recorder.counters.add_samples(samples)

    def step(self, step: SupportsIndex) -> dict[str, float] | None:
        """Registers a completed step; the phases of the thread that calls it make the accounted time.

        Args:
            step: Its number, of the kinds that `record_samples` takes.

        Returns:
            A snapshot where one is due, else `None`. It is due where `step // record_every_n_steps` is larger than at
            the last call, so that a counter which jumps over a multiple loses no interval; at the first call, where
            the step is a multiple.

        Raises:
            TypeError: For something that is not an integer.
        """
        recorder = self._recorder_for("step")
        if recorder is None:
            return None
        number = _checked_integer("step", step)
        recorder.counters.mark_loop()
        return recorder.snapshot(number) if self._is_due(number) else None

    def _is_due(self, step: int) -> bool:
        every = self._record_every_n_steps
        assert every is not None
        last = step - 1 if self._last_step is None else self._last_step
        self._last_step = step
        return step // every > last // every

    def snapshot(self, step: SupportsIndex) -> dict[str, float] | None:
        """Takes a snapshot now, whatever the step: for the tail of a run.

        Args:
            step: The step that it is recorded for.

        Returns:
            What was accounted since the last snapshot or `reset`: `step`; `t_<name>`, seconds for each phase that
            ended; `t_<outer>/<inner>`, the part of an inner phase spent inside an outer one; `samples`; `wall_sec`,
            the clock's seconds; `samples_per_sec`, samples over the time that outermost phases on the loop's thread
            cover; `gpu_mem_gb` and `gpu_mem_peak_gb`, memory allocated now and at its peak in the interval, in
            units of 1e9 bytes. `None` from a disabled monitor.

            An accelerator has one peak, which is started again with each interval. Where other code starts it
            again too (`torch.cuda.reset_peak_memory_stats`), the peak is that since then.

        Raises:
            TypeError: For a step that is not an integer.
        """
        recorder = self._recorder_for("snapshot")
        return None if recorder is None else recorder.snapshot(_checked_integer("step", step))

    def reset(self) -> None:
        """Starts a new interval: what was accounted since the last snapshot is in none."""
        recorder = self._recorder_for("reset")
        if recorder is not None:
            recorder.reset()

    def subscribe(self, callback: Callable[[dict[str, float]], object]) -> Handle:
        """Calls a function with every snapshot from now on.

        A callback that raises an `Exception` is dropped with a warning: a logger that fails never stops training.

        Args:
            callback: Gets a snapshot of its own.

        Returns:
            A handle that ends it.

        Raises:
            TypeError: For something that cannot be called.
        """
        if self._recorder is None:
            return Handle(lambda: None)
        if not callable(callback):
            raise TypeError(f"callback must be a function of a snapshot, got {callback!r}")

        def call(snapshot: Record) -> None:
            try:
                callback(snapshot)
            except Exception as error:
                unsubscribe()
                message = f"subscriber {callback!r} raised {error!r} and gets no more snapshots"
                warnings.warn(message, RuntimeWarning, stacklevel=2)

        unsubscribe = self._recorder.subscribe(call)
        return Handle(unsubscribe)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all records to a file, whole or not at all.

        Args:
            path: Ends in `.json` (an array), `.jsonl` (one record a line) or `.csv` (one record a row).

        Raises:
            ValueError: For another suffix.
            OSError: Where the file cannot be written; what was there before stays.
        """
        if self.enabled:
            files.save(self.records, path)

    def _recorder_for(self, method: str) -> Recorder | None:
        """The recorder; `None` where a method does nothing: disabled, or (with a warning) compiled."""
        if self._recorder is not None and is_dynamo_compiling():
            warn_uncounted(method)
            return None
        return self._recorder

    def _phase(self, name: Any) -> Phase:
        if not isinstance(name, str):
            raise TypeError(f"a phase's name must be a string, got {name!r}")
        if not name or SEPARATOR in name:
            raise ValueError(f"a phase's name must be a non-empty string without {SEPARATOR!r}, got {name!r}")
        return recorder_of(self).phase(str.__str__(name))  # of a string enumeration's member, the value


def recorder_of(monitor: ThroughputMonitor) -> Recorder:
    """Returns what an enabled monitor records with, for the other parts of this package."""
    assert monitor._recorder is not None
    return monitor._recorder


def _checked_interval(value: Any) -> int | None:
    if value is None:
        return None
    expected = f"record_every_n_steps must be a positive integer or None, got {value!r}"
    if isinstance(value, bool):
        raise TypeError(expected)
    try:
        interval = operator.index(value)
    except TypeError:
        raise TypeError(expected) from None
    if interval < 1:
        raise ValueError(expected)
    return interval


def _checked_integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None


def _checked_paths(phases: Any) -> list[tuple[str, str]]:
    if not isinstance(phases, collections.abc.Mapping):
        raise TypeError(f"phases must be a dict of names and paths, got {phases!r}")
    pairs = []
    for name, paths in phases.items():
        for path in [paths] if isinstance(paths, str) else _checked_list(name, paths):
            if not isinstance(path, str):
                raise TypeError(f"the path of phase {name!r} must be a string, got {path!r}")
            if not path or "" in path.split("."):
                raise ValueError(f"the path of phase {name!r} must be names joined by dots, got {path!r}")
            pairs.append((name, path))
    return pairs


def _checked_list(name: Any, paths: Any) -> list[Any]:
    if not isinstance(paths, (list, tuple)):
        raise TypeError(f"the path of phase {name!r} must be a string or a list of strings, got {paths!r}")
    return list(paths)
