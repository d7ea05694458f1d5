"""How far the training is, told from what passes PyTorch's seams: samples trained on, and steps.

The script says neither. So a batch counts when the model is trained on it, and a step is one of the optimizer that
leads the loop; both by rules that validation, a second network and closures must not mislead.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import UserDict, deque
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch._C import DisableTorchFunction
from torch.nn import Module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FETCHED_AHEAD = 1024
"""Batches remembered for each loader: far more than any trainer fetches ahead, and no leak where none is trained on."""


class Samples:
    """Counts the samples that the model is trained on.

    A batch counts once, with the length of its first tensor's first dimension, when a model is called with gradients
    after the batch was fetched. So the second network of a GAN and the further evaluations of a closure add nothing.
    A trainer may fetch ahead; batches are used in the order of fetching. What inference alone has used, and is
    followed by another fetch, was for validation. Without a loader the input of the first model counts.
    """

    def __init__(self) -> None:
        self._loaders: dict[int, _Fetched] = {}
        self._loader: weakref.ref[Any] | None = None
        self._fetched: _Fetched | None = None
        self._trains_from_loader = False
        self._model: weakref.ref[Any] | None = None
        self._trainable: weakref.ref[Any] | None = None
        self._frozen: weakref.ref[Any] | None = None
        self._last_input: weakref.ref[Tensor] | None = None
        self._counted_in_step = False

    def used_unseen(self) -> int | None:
        """Takes a batch that was fetched and that no module was called with: what is compiled has used it.

        Returns:
            Its samples; `None` where there is no such batch.
        """
        if self._fetched is None or not self._fetched.lengths:
            return None
        self._counted_in_step = True
        return self._fetched.take() or 0

    def fetched(self, loader: Any, batch: Any) -> None:
        """Notes a batch that a loader's iterator gave. Only its length is kept."""
        if self._fetched is None or self._loader is None or self._loader() is not loader:
            key = id(loader)
            self._loader = weakref.ref(loader, lambda _: self._loaders.pop(key, None))
            self._fetched = self._loaders.setdefault(key, _Fetched(self._loader))
        self._fetched.add(length(batch))

    def ended(self, loader: Any) -> None:
        """Notes that a loader's iterator has no more batches."""
        # From one epoch to the next what was frozen may be trained.
        self._frozen = None
        fetched = self._loaders.get(id(loader))
        if fetched is not None:
            fetched.drop_inferred()
            if fetched.lengths:
                # A trainer that fetches ahead uses them now, also where it has validated in between.
                self._loader, self._fetched = fetched.loader, fetched

    def inferred(self) -> None:
        """Notes that a model was called without gradients."""
        if self._fetched is not None:
            self._fetched.mark_inferred()

    def trained(self, model: Any, inputs: Iterable[Any], in_closure: bool) -> int | None:
        """Notes that a model was called with gradients.

        Args:
            model: The module.
            inputs: What it was called with.
            in_closure: Whether an optimizer's step called it.

        Returns:
            The samples to count, if this is a new batch; else `None`.
        """
        if self._fetched is not None and self._fetched.lengths and self._is_trainable(model):
            self._trains_from_loader = self._counted_in_step = True
            fetched = self._fetched.take()
            return fetched if fetched is not None else (length(inputs) or 0)
        if self._trains_from_loader or (in_closure and self._counted_in_step) or not self._is_trainable(model):
            return None
        return self._input(model, inputs)

    def _is_trainable(self, model: Any) -> bool:
        """Whether a module has anything to train: a metric has not, nor has a module that transforms images."""
        if self._trainable is not None and self._trainable() is model:
            return True
        if self._frozen is not None and self._frozen() is model:
            return False
        is_trainable = any(parameter.requires_grad for parameter in parameters_of(model))
        if is_trainable:
            self._trainable = weakref.ref(model)
        else:
            self._frozen = weakref.ref(model)
        return is_trainable

    def _input(self, model: Any, inputs: Iterable[Any]) -> int | None:
        """The length of an input that no loader gave, if it is the first model's and a new one."""
        leading = None if self._model is None else self._model()
        if leading is None:
            self._model = weakref.ref(model)
        elif leading is not model:
            return None
        tensor = next(tensors_in(inputs), None)
        if tensor is None or (self._last_input is not None and self._last_input() is tensor):
            return None
        self._last_input = weakref.ref(tensor)
        self._counted_in_step = True
        return tensor.shape[0]

    def stepped(self) -> int | None:
        """Notes that a step of the training is complete.

        Returns:
            The samples of a batch that it was taken with, where no module was seen to be called with that.
        """
        unseen = None
        if not self._counted_in_step:
            unseen = self.used_unseen()
            # The model that was called first is not called any more: another is being trained.
            self._model = None
        self._counted_in_step = False
        self._last_input = None
        return unseen


class _Fetched:
    """Lengths of the batches that one pass over a loader gave and that no model was trained on yet, oldest first."""

    def __init__(self, loader: weakref.ref[Any]) -> None:
        # Kept, since a weak reference that is gone calls nothing.
        self.loader = loader
        self.lengths: deque[int | None] = deque(maxlen=_FETCHED_AHEAD)
        self._inferred = 0

    def add(self, length: int | None) -> None:
        if self._inferred:
            self.drop_inferred()
        self.lengths.append(length)

    def take(self) -> int | None:
        if self._inferred:
            self._inferred -= 1
        return self.lengths.popleft()

    def mark_inferred(self) -> None:
        self._inferred = min(len(self.lengths), self._inferred + 1)

    def drop_inferred(self) -> None:
        for _ in range(self._inferred):
            self.lengths.popleft()
        self._inferred = 0


def parameters_of(model: Any) -> Iterator[Any]:
    """A module's parameters; by torch's own method, since another one may do anything."""
    return Module.parameters(model)


def length(batch: Any) -> int | None:
    """The length of the first dimension of the first tensor in a batch; `None` if there is no such tensor."""
    # The usual case, written out for speed: a tensor, or a tensor first in a list.
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    found = _length(first) if isinstance(first, Tensor) else None
    return found if found is not None else next((_length(tensor) for tensor in tensors_in(batch)), None)


def _length(tensor: Tensor) -> int | None:
    """The length of a tensor's first dimension; `None` where it has none, or none that is a plain number."""
    try:
        # A subclass of Tensor, or a mode, must not be asked: it may do anything.
        with DisableTorchFunction():
            first = tensor.shape[0] if tensor.dim() else None
    except (RuntimeError, NotImplementedError):
        return None  # a nested tensor
    return first if type(first) is int else None


def tensors_in(batch: Any, depth: int = 4) -> Iterator[Tensor]:
    """The tensors in a batch that have a length, in order, also in lists, dicts and dataclasses inside it.

    Nothing of the script's own is called: what a lazy container holds is not looked for.
    """
    if isinstance(batch, Tensor):
        if _length(batch) is not None:
            yield batch
    elif depth:
        for item in _items(batch):
            yield from tensors_in(item, depth - 1)


def _items(batch: Any) -> Iterable[Any]:
    if isinstance(batch, UserDict):  # a tokenizer's
        batch = batch.data
    if isinstance(batch, dict):
        return dict.values(batch)
    if isinstance(batch, list):
        return list.__iter__(batch)
    if isinstance(batch, tuple):
        return tuple.__iter__(batch)
    if dataclasses.is_dataclass(batch) and hasattr(batch, "__dict__"):
        return [vars(batch)[field.name] for field in dataclasses.fields(batch) if field.name in vars(batch)]
    return ()
