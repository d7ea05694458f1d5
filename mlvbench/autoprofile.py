"""PyTorch's own seams as phases, for a training loop that does not know of the profiler.

`SEAMS` says which attribute of torch is which phase. Each stand-in does nothing but open the phase, call the
original and close the phase; it takes its own frame out of the traceback of an error that passes, and lets Dynamo
past itself. What happens there it tells a `Profile`.
"""

from __future__ import annotations

import functools
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from mlvbench.dynamo import is_dynamo_compiling, leave_frames_alone, leave_our_frames_alone, run_while_tracing
from mlvbench.monitoring import ThroughputMonitor, recorder_of
from mlvbench.profiling import Profile, current_graph_task, hide_this_frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from mlvbench.counting.timeline import Timing

__all__ = ["autoprofile"]


def autoprofile(
    record_every_n_steps: int | None = 50,
    clock: Callable[[], float] = time.perf_counter,
    timing: Timing = "events",
) -> AbstractContextManager[ThroughputMonitor]:
    """Profiles whatever trains in a `with` block through PyTorch's own seams.

    The phases are `data` (what the loop waits for), `forward` and `inference` (the outermost module that is called,
    with and without gradients), `loss` (the same for a loss of torch's), `backward` and `optimizer`. Samples and steps
    are counted too. The interval begins when the first seam is reached, and the last one ends when the last is left.

    Args:
        record_every_n_steps: As for `ThroughputMonitor`.
        clock: As for `ThroughputMonitor`.
        timing: As for `ThroughputMonitor`, except that what trains is not held up unless it is asked for.

    Returns:
        A context manager that gives the monitor, and restores every seam on exit. Of several, the last that was
        entered is to be left first.

    Raises:
        TypeError: What `ThroughputMonitor` raises.
        ValueError: What `ThroughputMonitor` raises.

    Example:
        ```python
        with autoprofile() as monitor:
            trainer.train()
        monitor.save("throughput.json")
        ```
    """
    return Block(record_every_n_steps, clock, timing)


class Block:
    """A `with` block that is profiled; gives the monitor.

    Args:
        record_every_n_steps: As for `ThroughputMonitor`.
        clock: As for `ThroughputMonitor`.
        timing: As for `ThroughputMonitor`.
        when_begun: Called at the first seam that is reached.

    Attributes:
        monitor: What the phases are accounted to.
        profile: What the stand-ins tell what passes; `None` where the monitor is disabled.
    """

    def __init__(
        self,
        record_every_n_steps: int | None,
        clock: Callable[[], float] = time.perf_counter,
        timing: Timing = "events",
        when_begun: Callable[[], object] = lambda: None,
    ) -> None:
        self.monitor = ThroughputMonitor("cpu", record_every_n_steps, clock, timing)
        every = self.monitor.record_every_n_steps
        self.profile = None if every is None else Profile(recorder_of(self.monitor), every, when_begun)
        self._remove: Callable[[], None] = lambda: None

    def __enter__(self) -> ThroughputMonitor:
        if self.profile is not None:
            self._remove = install(self.profile)
        return self.monitor

    def __exit__(self, *error: object) -> None:
        self._remove()
        if self.profile is None:
            return
        self.profile.finish()
        if self.profile.error is not None:
            message = f"profiling ended at an error of its own, please report it: {self.profile.error!r}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def install(profile: Profile) -> Callable[[], None]:
    """Puts a stand-in into each seam, and returns what restores them."""
    leave_our_frames_alone()
    undo = [*(_put(seam, profile) for seam in SEAMS), _hook_optimizers(profile)]
    profile.is_on = True

    def remove() -> None:
        profile.is_on = False
        for restore in reversed(undo):
            restore()

    return remove


# The stand-ins


def _fetch(original: Callable[..., Any], profile: Profile) -> Callable[..., Any]:
    thread = profile.thread

    @functools.wraps(original)
    def fetch(self: Any) -> Any:
        phase = None
        was_in_module = thread.in_module
        try:
            profile.note_fetching()
            phase = profile.enter("data")
            # A module that a dataset calls, to transform an image, is part of fetching it.
            thread.in_module = True
            batch = original(self)
            profile.leave(phase)
            profile.note_fetched(self, batch)
        except BaseException as error:
            profile.fail(phase, error)
            if isinstance(error, StopIteration):
                profile.note_end(self)
            raise
        finally:
            thread.in_module = was_in_module
        return batch

    return fetch


def _call_module(original: Callable[..., Any], profile: Profile) -> Callable[..., Any]:
    thread = profile.thread

    @functools.wraps(original)
    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return original(self, *args, **kwargs)
        if thread.in_module:
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                hide_this_frame(error)
                raise
        phase = None
        try:
            thread.in_module = True
            phase = profile.enter_module(self, args, kwargs)
            result = original(self, *args, **kwargs)
            profile.leave(phase)
        except BaseException as error:
            profile.fail(phase, error)
            raise
        finally:
            thread.in_module = False
        return result

    return call


def _call_as(name: str) -> Callable[[Callable[..., Any], Profile], Callable[..., Any]]:
    """Makes the stand-ins of a function each of whose calls is the phase `name`, but in compiled code and backwards."""

    def stand_in(original: Callable[..., Any], profile: Profile) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or current_graph_task() != -1:
                return original(*args, **kwargs)
            phase = None
            try:
                phase = profile.enter(name)
                result = original(*args, **kwargs)
                profile.leave(phase)
            except BaseException as error:
                profile.fail(phase, error)
                raise
            return result

        return call

    return stand_in


class Seam(NamedTuple):
    """An attribute of torch whose calls are a phase.

    Attributes:
        owner: What has the attribute.
        attribute: Its name.
        phase: The phase, in words.
        stand_in: Makes what is put there, of what is there and a profile.
    """

    owner: Any
    attribute: str
    phase: str
    stand_in: Callable[[Callable[..., Any], Profile], Callable[..., Any]]


SEAMS = (
    # Not DataLoader.__iter__: other loaders (torchdata's) have their own, and the iterator's type must stay.
    Seam(dataloader._BaseDataLoaderIter, "__next__", "data", _fetch),
    # Starting workers, and the first batches asked of workers that go on, is waiting for data too.
    Seam(dataloader._MultiProcessingDataLoaderIter, "__init__", "data", _call_as("data")),
    Seam(dataloader._MultiProcessingDataLoaderIter, "_reset", "data", _call_as("data")),
    # Half of what torch's global forward hooks cost, which would also be called for each inner module.
    Seam(torch.nn.Module, "__call__", "forward (with gradients), inference (without) or loss", _call_module),
    # Tensor.backward calls it.
    Seam(torch.autograd, "backward", "backward", _call_as("backward")),
)
"""The seams that are attributes. An optimizer's subclasses override `step`, so there torch's own hooks are used."""


def _put(seam: Seam, profile: Profile) -> Callable[[], None]:
    original = getattr(seam.owner, seam.attribute)
    stand_in = seam.stand_in(original, profile)
    leave_frames_alone([stand_in])
    setattr(seam.owner, seam.attribute, stand_in)

    def restore() -> None:
        # What another library has put there since is theirs, and calls ours, which does nothing any more.
        if vars(seam.owner).get(seam.attribute) is stand_in:
            setattr(seam.owner, seam.attribute, original)

    return restore


def _hook_optimizers(profile: Profile) -> Callable[[], None]:
    """Makes each optimizer's step a phase."""

    def note_unseen() -> None:
        profile.note_unseen_optimizer()

    run_while_tracing(note_unseen)

    def begins(*_: Any) -> None:
        if is_dynamo_compiling():
            note_unseen()
        else:
            profile.enter_step()

    def ends(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not is_dynamo_compiling():
            profile.leave_step(optimizer)

    handles = (register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends))

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove
