"""An iterable as a phase: what a loop waits for is accounted, and not what its body does."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import wrapt
from torch import Tensor

from mlvbench.dynamo import is_dynamo_compiling, warn_untimed
from mlvbench.instrument.callables import CopiesPlain, wrapped_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mlvbench.instrument.callables import NamedPhase


class TimedIterable(CopiesPlain, wrapt.ObjectProxy[Any]):
    """A view of an iterable in which producing an item is a phase; everything else is the iterable's own."""

    def __init__(self, iterable: Iterable[Any], phase: NamedPhase) -> None:
        super().__init__(iterable)
        self._self_phase = phase
        self._self_begun: TimedIterator | None = None

    @property  # type: ignore[misc]  # of an object it can be set
    def __class__(self) -> Any:
        """The iterable's class, for `isinstance`; but Dynamo would take a list's view for a list, and look inside."""
        cls = type(self.__wrapped__)
        return type(self) if cls.__module__ == "builtins" or issubclass(cls, Tensor) else cls

    def __iter__(self) -> Iterator[Any]:
        if is_dynamo_compiling():
            warn_untimed(self._self_phase.name)
            return iter(self.__wrapped__)
        begun, self._self_begun = self._self_begun, None
        return begun if begun is not None else self._self_begin()

    def __next__(self) -> Any:
        if self._self_begun is None:
            self._self_begun = self._self_begin()
        try:
            return next(self._self_begun)
        except StopIteration:
            self._self_begun = None
            raise

    def _self_begin(self) -> TimedIterator:
        """Starts a pass. Starting workers is waiting for data too, where there is code that could start any."""
        iterable = self.__wrapped__
        if not _begins_with_code(iterable):
            return TimedIterator(iter(iterable), self._self_phase)
        with self._self_phase:
            iterator = iter(iterable)
        return TimedIterator(iterator, self._self_phase)


class _CopyOfAnIterator:
    """Lets `copy.copy` copy the iterator, and hides from `itertools.tee`, which asks the iterator, that it could."""

    def __get__(self, iterator: Any, owner: type) -> Callable[[Any], Any]:
        if iterator is not None:
            raise AttributeError("__copy__")
        return lambda iterator: copy.copy(wrapped_by(iterator))


class TimedIterator(CopiesPlain, wrapt.ObjectProxy[Any]):
    """One pass over an iterable, as its own iterator with a timed `next`."""

    __copy__ = _CopyOfAnIterator()  # type: ignore[assignment]

    def __init__(self, iterator: Iterator[Any], phase: NamedPhase) -> None:
        super().__init__(iterator)
        self._self_phase = phase

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._self_phase:
            return next(self.__wrapped__)


def _begins_with_code(iterable: Any) -> bool:
    """Whether making the iterator runs Python code, and is worth two readings of the clock."""
    begin = getattr(type(iterable), "__iter__", None)
    return inspect.isfunction(begin) and not inspect.isgeneratorfunction(begin)
