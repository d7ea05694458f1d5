"""A callable as a phase.

What stands in for a function is a function, or a `wrapt` proxy where the kind of function would otherwise be lost;
it binds as the original does, so that a method's receiver is always the object that it is called on.
"""

from __future__ import annotations

import collections.abc
import copy
import functools
import inspect
import operator
import sys
import types
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import wrapt

from mlvbench.dynamo import is_dynamo_compiling, run_while_tracing, warn_untimed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from contextlib import AbstractContextManager
    from typing import SupportsIndex

T = TypeVar("T")


class NamedPhase(Protocol):
    """A phase as this file needs it: a name, and a context manager that may be entered again."""

    name: str

    def __enter__(self) -> None: ...
    def __exit__(self, *error: Any) -> None: ...


# Functions


class Selection:
    """Which phase a call belongs to.

    Attributes:
        everyone: The phase of a call, unless its receiver has another; `None` for a call that is not timed.
        by_receiver: The phase of the calls of some objects, by their `id`.
        receiver: Where that is a single object, a reference to it.
        its: The phase of that object's calls.
    """

    __slots__ = ("by_receiver", "everyone", "its", "receiver")

    def __init__(self, everyone: AbstractContextManager[None] | None = None) -> None:
        self.everyone = everyone
        self.by_receiver: dict[int, AbstractContextManager[None]] = {}
        self.receiver: Callable[[], Any] | None = None
        self.its: AbstractContextManager[None] | None = None

    def of(self, args: tuple[Any, ...]) -> AbstractContextManager[None] | None:
        """The phase of a call with these positional arguments."""
        return self.by_receiver.get(id(args[0]), self.everyone) if args and self.by_receiver else self.everyone

    def warner(self) -> Callable[[], None]:
        """A function that says, where Dynamo traces a call, that these phases cannot be timed.

        Of whichever object the call is: handed to a function, an object would be guarded, and a method that many
        modules share be compiled again for each.
        """

        def warn() -> None:
            for phase in (self.everyone, *self.by_receiver.values()):
                for each in getattr(phase, "phases", [phase] if phase is not None else []):
                    warn_untimed(each.name)

        run_while_tracing(warn)
        return warn


def time_callable(function: Any, selection: Selection, call: Callable[..., Any] | None = None) -> Any:
    """Makes a callable whose calls are phases.

    Args:
        function: A function of any kind, or another callable object.
        selection: Which phases.
        call: What is called, if not `function` itself.

    Returns:
        A plain function for a plain function, else a proxy that looks like the original.
    """
    call = call or function
    if not inspect.isfunction(function):
        return TimedObject(function, call, selection)
    if _manner(function) is not _call_plain:
        return TimedFunction(function, call, selection)
    warn = selection.warner()

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            warn()
            return call(*args, **kwargs)
        # The usual case of Selection.of, written out for speed.
        receiver = selection.receiver
        phase = selection.its if receiver is not None and args and receiver() is args[0] else selection.of(args)
        if phase is None:
            return call(*args, **kwargs)
        with phase:
            return call(*args, **kwargs)

    return timed


class CopiesPlain:
    """A proxy whose copies and pickles are those of the object alone; they load where this package is not installed.

    Where the proxy is what the object's name leads to, it pickles by that name, as the object would.
    """

    __slots__ = ()

    # No annotation of an attribute may stand here: it would hide the wrapped object's own `__annotations__`.

    def __copy__(self) -> Any:
        return copy.copy(wrapped_by(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(wrapped_by(self), memo)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        wrapped = wrapped_by(self)
        name = getattr(wrapped, "__qualname__", "")
        try:
            stands_for_it = operator.attrgetter(name)(sys.modules[wrapped.__module__]) is self
        except (AttributeError, KeyError, TypeError):
            stands_for_it = False
        return name if stands_for_it else (operator.getitem, ((wrapped,), 0))


def wrapped_by(proxy: Any) -> Any:
    """Returns the object that a proxy stands for."""
    return proxy.__wrapped__


class TimedObject(CopiesPlain, wrapt.CallableObjectProxy[Any]):
    """A callable object whose calls are phases. In a class it binds if the object does (functools.lru_cache's, say)."""

    def __init__(self, wrapped: Any, call: Callable[..., Any], selection: Selection) -> None:
        super().__init__(wrapped)
        self._self_manner = _manner(wrapped)
        self._self_call = call
        self._self_selection = selection
        self._self_warn = selection.warner()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # noqa: D102  # a special method, but for the slash
        if is_dynamo_compiling():
            self._self_warn()
            return self._self_call(*args, **kwargs)
        phase = self._self_selection.of(args)
        if phase is None:
            return self._self_call(*args, **kwargs)
        return self._self_manner(phase, self._self_call, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        bind = getattr(type(self.__wrapped__), "__get__", None)
        if instance is None or bind is None or bind(self.__wrapped__, instance, owner) is self.__wrapped__:
            return self
        return types.MethodType(self, instance)


class TimedFunction(TimedObject):
    """A coroutine, generator or async-generator function whose calls are phases. A copy of a function is itself."""

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self


def _manner(function: Any) -> Callable[..., Any]:
    """How a call of `function` is timed: as a whole, or only while what it returns is producing."""
    for called in (function, getattr(type(function), "__call__", None)):  # noqa: B004  # the method that a call runs
        if inspect.iscoroutinefunction(called):
            return _call_coroutine
        if inspect.isasyncgenfunction(called):
            return _call_async_generator
        if inspect.isgeneratorfunction(called):
            code = getattr(called, "__code__", None)
            is_awaitable = code is not None and code.co_flags & inspect.CO_ITERABLE_COROUTINE
            return _call_plain if is_awaitable else _call_generator
    return _call_plain


def _call_plain(phase: AbstractContextManager[None], function: Any, args: Any, kwargs: Any) -> Any:
    with phase:
        return function(*args, **kwargs)


def _call_coroutine(phase: AbstractContextManager[None], function: Any, args: Any, kwargs: Any) -> Any:
    # The original is called at once, so that wrong arguments are an error here and not where it is awaited.
    coroutine = function(*args, **kwargs)
    return _named_after(coroutine, _await(phase, _Unstarted(coroutine)))


def _call_generator(phase: AbstractContextManager[None], function: Any, args: Any, kwargs: Any) -> Any:
    generator = function(*args, **kwargs)
    return _named_after(generator, _generate(_TimedGenerator(phase, generator)))


def _call_async_generator(phase: AbstractContextManager[None], function: Any, args: Any, kwargs: Any) -> Any:
    generator = function(*args, **kwargs)
    return _named_after(generator, _generate_async(phase, generator))


def _named_after(original: Any, stand_in: T) -> T:
    for name in ("__name__", "__qualname__"):
        setattr(stand_in, name, getattr(original, name, getattr(stand_in, name)))
    return stand_in


class _Unstarted:
    """Holds a coroutine; should it never be started, only the one around it is to be complained about."""

    def __init__(self, coroutine: Any) -> None:
        self.coroutine = coroutine

    def __del__(self) -> None:
        if inspect.iscoroutine(self.coroutine):
            self.coroutine.close()


async def _await(phase: AbstractContextManager[None], held: _Unstarted) -> Any:
    with phase:
        return await held.coroutine


def _generate(generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return (yield from generator)


class _TimedGenerator(collections.abc.Generator[Any, Any, Any]):
    """A generator that is accounted while it is producing; what is sent or thrown in reaches the original."""

    def __init__(self, phase: AbstractContextManager[None], generator: Generator[Any, Any, Any]) -> None:
        self._phase = phase
        self._generator = generator

    def send(self, value: Any) -> Any:
        with self._phase:
            return self._generator.send(value)

    def throw(self, *error: Any) -> Any:
        with self._phase:
            return self._generator.throw(*error)

    def close(self) -> None:
        self._generator.close()


async def _generate_async(
    phase: AbstractContextManager[None], generator: AsyncGenerator[Any, Any]
) -> AsyncGenerator[Any, Any]:
    produce: Callable[[Any], Any] = generator.asend
    given: Any = None
    while True:
        try:
            with phase:
                item = await produce(given)
        except StopAsyncIteration:
            return
        try:
            given = yield item
            produce = generator.asend
        except GeneratorExit:
            await generator.aclose()
            raise
        except BaseException as error:
            given = error
            produce = generator.athrow
