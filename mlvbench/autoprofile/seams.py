"""PyTorch's own seams as phases, for a training loop that does not know of the profiler.

`SEAMS` says which attribute of torch is which phase. Each stand-in does nothing but open the phase, call the
original and close the phase; it takes its own frame out of the traceback of an error that passes, and lets Dynamo
past itself. What happens there it tells an `Observer`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from mlvbench.autoprofile.observer import Observer, current_graph_task
from mlvbench.autoprofile.tracebacks import hide_this_frame
from mlvbench.dynamo import is_dynamo_compiling, leave_frames_alone, leave_our_frames_alone, run_while_tracing

if TYPE_CHECKING:
    from collections.abc import Callable


def install(observer: Observer) -> Callable[[], None]:
    """Puts a stand-in into each seam, and returns what restores them."""
    leave_our_frames_alone()
    undo = [*(_put(seam, observer) for seam in SEAMS), _hook_optimizers(observer)]
    observer.is_on = True

    def remove() -> None:
        observer.is_on = False
        for restore in reversed(undo):
            restore()

    return remove


# The stand-ins


def _fetch(original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    thread = observer.thread

    @functools.wraps(original)
    def fetch(self: Any) -> Any:
        phase = None
        was_in_module = thread.in_module
        try:
            observer.note_fetching()
            phase = observer.enter("data")
            # A module that a dataset calls, to transform an image, is part of fetching it.
            thread.in_module = True
            batch = original(self)
            observer.leave(phase)
            observer.note_fetched(self, batch)
        except BaseException as error:
            observer.fail(phase, error)
            if isinstance(error, StopIteration):
                observer.note_end(self)
            raise
        finally:
            thread.in_module = was_in_module
        return batch

    return fetch


def _call_module(original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    thread = observer.thread

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
            phase = observer.enter_module(self, args, kwargs)
            result = original(self, *args, **kwargs)
            observer.leave(phase)
        except BaseException as error:
            observer.fail(phase, error)
            raise
        finally:
            thread.in_module = False
        return result

    return call


def _call_as(name: str) -> Callable[[Callable[..., Any], Observer], Callable[..., Any]]:
    """Makes the stand-ins of a function each of whose calls is the phase `name`, but in compiled code and backwards."""

    def stand_in(original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or current_graph_task() != -1:
                return original(*args, **kwargs)
            phase = None
            try:
                phase = observer.enter(name)
                result = original(*args, **kwargs)
                observer.leave(phase)
            except BaseException as error:
                observer.fail(phase, error)
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
        stand_in: Makes what is put there, of what is there and a observer.
    """

    owner: Any
    attribute: str
    phase: str
    stand_in: Callable[[Callable[..., Any], Observer], Callable[..., Any]]


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


def _put(seam: Seam, observer: Observer) -> Callable[[], None]:
    original = getattr(seam.owner, seam.attribute)
    stand_in = seam.stand_in(original, observer)
    leave_frames_alone([stand_in])
    setattr(seam.owner, seam.attribute, stand_in)

    def restore() -> None:
        # What another library has put there since is theirs, and calls ours, which does nothing any more.
        if vars(seam.owner).get(seam.attribute) is stand_in:
            setattr(seam.owner, seam.attribute, original)

    return restore


def _hook_optimizers(observer: Observer) -> Callable[[], None]:
    """Makes each optimizer's step a phase."""

    def note_unseen() -> None:
        observer.note_unseen_optimizer()

    run_while_tracing(note_unseen)

    def begins(*_: Any) -> None:
        if is_dynamo_compiling():
            note_unseen()
        else:
            observer.enter_step()

    def ends(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not is_dynamo_compiling():
            observer.leave_step(optimizer)

    handles = (register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends))

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove
