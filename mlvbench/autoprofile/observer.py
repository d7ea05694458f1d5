"""What happens at the seams of torch, as phases, samples and steps of a recorder.

What is noted beside the phases is guarded: an error of ours ends the profiling, and not the training.
"""

from __future__ import annotations

import sys
import threading
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.loss import _Loss
from torch.optim import Optimizer
from torch.utils.data import get_worker_info

from mlvbench.autoprofile.batches import Samples, parameters_of, tensors_in
from mlvbench.autoprofile.steps import Steps
from mlvbench.autoprofile.tracebacks import hide_frames, is_ours
from mlvbench.counting.device import accelerator_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from mlvbench.counting.counters import Phase
    from mlvbench.counting.recorder import Recorder

NAMES = {"data", "forward", "inference", "loss", "backward", "optimizer"}
"""The phases that the seams make."""

current_graph_task = torch._C._current_graph_task_id
"""The id of the backward that the current thread works for; -1 if none. With it torch's checkpointing asks the same."""


class _Thread(threading.local):
    """What a thread is in the middle of.

    Attributes:
        in_module: Whether an outermost module is being called.
        steps: How many optimizers' steps are open, one inside the other.
        step: The phase of the outermost of them.
    """

    in_module = False
    steps = 0
    step: Any = None


class Observer:
    """What the stand-ins in torch's seams share: they tell it what passes, and it opens and closes the phases.

    Args:
        recorder: What the phases are accounted to, and what takes the snapshots.
        every: Steps between two snapshots.
        when_begun: Called at the first seam that is reached.

    Attributes:
        is_on: Whether the stand-ins are to do anything.
        thread: What the current thread is in the middle of.
        error: The error of ours that ended the profiling, if one did.
    """

    def __init__(self, recorder: Recorder, every: int, when_begun: Callable[[], object] = lambda: None) -> None:
        self.thread = _Thread()
        self.error: Exception | None = None
        self._recorder = recorder
        self._counters = recorder.counters
        self._phases = recorder.counters.phases
        self._clock = recorder.clock
        self._every = every
        self._when_begun = when_begun
        self.is_on = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._samples = Samples()
        self._steps = Steps()
        self._is_begun = False
        self._is_on_its_device = False
        self._next_due = self._every
        self._last_left: float = 0

    def finish(self) -> None:
        """Takes a snapshot of what there is since the last, if anything.

        The interval ends where the last seam was left, by the device too; or now, where phases of the script's own may
        have ended later. An error of a subscriber passes.
        """
        if self._is_begun and self.error is None:
            self._steps.ended()
            self._is_begun = False
            try:
                last_left = self._recorder.idle_since(self._last_left)
            except RuntimeError:
                # The device has failed, which the script hears of itself, and tells nothing any more.
                return
            ended = {path[-1] for path in self._recorder.ended_phases()}
            if ended or not self._recorder.has_recorded(self._steps.count):
                self._recorder.snapshot(self._steps.count, last_left if ended <= NAMES else self._clock())

    def forget(self) -> None:
        """Leaves what was counted so far to the process that this one was forked from."""
        self.thread.in_module, self.thread.steps = False, 0
        self._recorder.forget()
        self._begin_anew()

    # What the stand-ins call

    def enter(self, name: str, beginning: int = 0) -> Phase | None:
        """Opens a phase, which `leave` or `fail` closes; `None` where a stand-in is called that others have kept."""
        if not self.is_on:
            return None
        if not self._is_begun and not self._begin():
            return None
        if self.thread.steps > beginning:
            self._forget_steps_that_raised()
        phase = self._phases.get(name) or self._recorder.phase(name)
        try:
            phase.__enter__()
        except BaseException as error:
            # Ctrl-C may come when it is open already.
            phase.__exit__(type(error), error, None)
            raise
        return phase

    def _begin(self) -> bool:
        """Begins with the first seam that is reached; not in a loader's worker, whose time is not the loop's."""
        self.is_on = get_worker_info() is None
        if self.is_on:
            self._is_begun = True
            self._guarded(self._when_begun)
            self._recorder.reset()
            self._last_left = self._clock()
        return self.is_on

    def leave(self, phase: Phase | None) -> None:
        """Closes a phase that ended well."""
        if phase is not None:
            phase.__exit__(None, None, None)
            self._last_left = self._clock()

    def fail(self, phase: Phase | None, error: BaseException) -> None:
        """Closes a phase that an error ended, and takes the frames of the stand-ins out of the error's traceback."""
        if phase is not None:
            phase.__exit__(type(error), error, error.__traceback__)
            self._last_left = self._clock()
        hide_frames(error)

    def enter_module(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Phase | None:
        """Opens the phase of an outermost module; `None` where the call is part of something else."""
        if not self.is_on or current_graph_task() != -1 or "_is_replica" in module.__dict__:
            return None
        if not self._is_begun and not self._begin():
            return None
        if isinstance(module, _Loss):
            return self.enter("loss")
        has_gradients = torch.is_grad_enabled()
        if self.error is None:
            try:
                self._note_call(module, args, kwargs, has_gradients)
            except Exception as error:
                self._end_at(error)
        return self.enter("forward" if has_gradients else "inference")

    def _note_call(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], has_gradients: bool
    ) -> None:
        inputs = (*args, *kwargs.values()) if kwargs else args
        if not self._is_on_its_device:
            self._measure_on_device_of(chain(islice(parameters_of(module), 1), tensors_in(inputs)))
        if not has_gradients:
            self._samples.inferred()
            return
        samples = self._samples.trained(module, inputs, in_closure=self.thread.steps > 0)
        if samples is not None:
            if not self._steps.are_led and self._steps.batch_began():
                self._register_step()
            self._counters.add_samples(samples)

    def note_fetching(self) -> None:
        """Notes that a batch is asked for: where what is compiled trains, the one before it has been used."""
        if self._steps.unseen:
            self._guarded(self._note_unseen_batch)

    def _note_unseen_batch(self) -> None:
        samples = self._samples.used_unseen()
        if samples is not None:
            self._counters.add_samples(samples)
            if self._steps.batch_ended():
                self._register_step()

    def note_fetched(self, loader: object, batch: object) -> None:
        """Notes what a loader gave."""
        if self.error is None:
            try:
                self._samples.fetched(loader, batch)
            except Exception as error:
                self._end_at(error)

    def note_end(self, loader: object) -> None:
        """Notes that a loader has no more."""
        self._guarded(self._samples.ended, loader)

    def note_unseen_optimizer(self) -> None:
        """Notes that an optimizer steps where it cannot be counted."""
        self._steps.unseen = True

    def enter_step(self) -> None:
        """Opens the phase of an optimizer's step, unless the step is part of a backward or of another step."""
        if current_graph_task() != -1:
            self.note_unseen_optimizer()
            return
        thread = self.thread
        if thread.steps:
            self._forget_steps_that_raised(beginning=1)
        # Counted before it is opened, and closed before it is not: should Ctrl-C come between, the next seam sees it.
        thread.steps += 1
        if thread.steps == 1:
            thread.step = None
            thread.step = self.enter("optimizer", beginning=1)

    def leave_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Closes it, and notes a step of the training if it was one."""
        thread = self.thread
        if current_graph_task() != -1 or not thread.steps:
            return
        if thread.steps > 1:
            self._forget_steps_that_raised()
        if thread.steps > 1:
            thread.steps -= 1
            return
        self.leave(thread.step)
        thread.steps = 0
        if self.error is None:
            try:
                self._note_step(optimizer)
            except Exception as error:
                self._end_at(error)

    def _note_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._steps.stepped(optimizer):
            return
        if not self._is_on_its_device:
            self._measure_on_device_of(tensor for group in optimizer.param_groups for tensor in group["params"])
            self._is_on_its_device = True
        samples = self._samples.stepped()
        if samples is not None:
            self._counters.add_samples(samples)
        self._register_step()

    def _register_step(self) -> None:
        """Does what the monitor's `step` does for a count that only grows, in less time."""
        count = self._steps.count
        if self._counters.loop is None:
            self._counters.mark_loop()
        if count >= self._next_due:
            self._counters.mark_loop()
            self._next_due = count - count % self._every + self._every
            self._recorder.snapshot(count)

    def _forget_steps_that_raised(self, beginning: int = 0) -> None:
        """Closes the phase of steps that are not on the stack any more: their hooks do not hear of an error."""
        thread = self.thread
        thread.steps = min(thread.steps, _steps_on_the_stack() - beginning)
        if not thread.steps and thread.step is not None:
            thread.step.__exit__(*_STEP_RAISED)

    def _measure_on_device_of(self, tensors: Iterable[torch.Tensor]) -> None:
        accelerator = accelerator_of(tensors)
        if accelerator is not None:
            self._recorder.measure_on(accelerator)
            self._is_on_its_device = True

    def _guarded(self, note: Callable[..., object], *args: object) -> None:
        """Calls what notes something; an error in it is ours, so it ends the profiling and not the training.

        Where every step passes, the same is written out, for speed.
        """
        try:
            if self.error is None:
                note(*args)
        except Exception as error:
            self._end_at(error)

    def _end_at(self, error: Exception) -> None:
        """Ends the profiling at an error of ours. One of the script's, of a signal handler, goes on its way."""
        if not is_ours(error):
            raise error
        # Without what its frames hold: batches, modules.
        self.error = error.with_traceback(None)


_STEP_RAISED = (RuntimeError, RuntimeError(), None)
_STEP_CODE = Optimizer.profile_hook_step(len).__code__
"""The function that torch puts around each class's `step`, which calls the hooks."""


def _steps_on_the_stack() -> int:
    frame: FrameType | None = sys._getframe()
    found = 0
    while frame is not None:
        found += frame.f_code is _STEP_CODE
        frame = frame.f_back
    return found
