"""An attribute as a phase: find its place, put a timed stand-in there, restore it.

A method is patched where Python finds it, in the class, and the patch asks for each call whose it is. So an object
that is instrumented holds nothing of ours: its copies, pickles and replicas are plain, each method works on the
object it is called on, and dropping the object frees it at once. Only what an object itself holds, or what does not
receive the object (a static method, say), is replaced in the object.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any, cast

from torch.nn import Module

from mlvbench.instrument.callables import Selection, TimedObject, time_callable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from mlvbench.instrument.callables import NamedPhase


# Threads may instrument methods of one class. It is entered again where an object is freed inside it.
_lock = threading.RLock()


class Handle:
    """Undoes what gave it: with `remove()`, or at the end of a `with` block."""

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def remove(self) -> None:
        """Undoes it. A second call does no more, but for tidying what could not be reached before."""
        self._undo()

    def __reduce__(self) -> tuple[type[Handle], tuple[Callable[[], object]]]:
        """A copy of an instrumented object is not instrumented: its handle has nothing to undo."""
        return Handle, (_nothing,)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def _nothing() -> None:
    """Undoes nothing."""


def instrument(target: Any, phases: Iterable[tuple[NamedPhase, str]]) -> Handle:
    """Makes calls of attributes phases.

    Args:
        target: A module, any object, a class or a Python module.
        phases: Each phase with the dotted path, from the target, of an attribute.

    Returns:
        A handle that restores all of them.

    Raises:
        AttributeError: For a path that leads nowhere.
        TypeError: For one that leads to something that cannot be called or replaced. In both cases nothing is
            patched.
    """
    handles: list[Handle] = []

    def undo() -> None:
        for handle in reversed(handles):
            handle.remove()

    with _lock:
        places = [(phase, _find(target, path)) for phase, path in phases]
        try:
            for phase, place in places:
                patch = Patch.standing(place.owner, place.name) or Patch(place)
                handles.append(patch.add(phase, place))
        except BaseException:
            undo()
            raise
    return Handle(undo)


class _Inherited:
    """Stands for the value of an attribute that its owner does not have itself."""


class _Place:
    """Where an attribute is put, what is there, and whose calls are meant.

    Attributes:
        owner: The class, Python module or object in whose `vars()` it is or will be.
        name: The attribute.
        original: What `vars(owner)` holds, or `_Inherited`.
        value: What the attribute is, wherever it comes from, as its holder has it.
        receiver: The object whose calls alone are meant; `None` for all.
    """

    def __init__(self, owner: Any, name: str, value: Any, receiver: Any = None) -> None:
        self.owner = owner
        self.name = name
        self.original = vars(owner).get(name, _Inherited)
        self.value = value
        self.receiver = receiver


def _find(target: Any, path: str) -> _Place:
    holder = target
    *parents, name = path.split(".")
    for part in parents:
        holder = _attribute(target, path, holder, part)
    value = _attribute(target, path, holder, name)
    if isinstance(value, Module):
        holder, name = value, "forward"
        if getattr(type(value), "forward", None) is Module.forward and "forward" not in vars(value):
            raise TypeError(
                f"{path!r} of {_describe(target)} must be a module that is called, got a {_describe(value)}, which "
                f"has no forward: name the modules in it"
            )
    elif isinstance(value, type):
        # A class stays what it is, for pickle and isinstance; calling it runs this.
        holder, name = value, "__init__"
    if not callable(getattr(holder, name)):
        raise TypeError(f"{path!r} of {_describe(target)} must be callable, got {_short(value)}")
    place = _place(holder, name)
    if place is None:
        raise TypeError(
            f"{path!r} of {_describe(target)} must be a method or function that can be replaced, got {_short(value)}"
        )
    return place


def _attribute(target: Any, path: str, holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name)
    except AttributeError as error:
        where = "" if name == path else f": {_describe(holder)} has no {name!r}"
        public = [known for known in dir(holder) if name.startswith("_") or not known.startswith("_")]
        close = difflib.get_close_matches(name, public, n=3)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise AttributeError(f"{_describe(target)} has no attribute {path!r}{where}{hint}") from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"


def _describe(target: Any) -> str:
    return target.__name__ if isinstance(target, (type, types.ModuleType)) else type(target).__name__


def _place(holder: Any, name: str) -> _Place | None:
    """The place of an attribute; `None` where nothing can be put."""
    if isinstance(holder, types.ModuleType):
        return _Place(holder, name, getattr(holder, name))
    definer = _definer(holder if isinstance(holder, type) else type(holder), name)
    found = vars(definer)[name] if definer else _Inherited
    # Python checks the arguments of a class without an __init__ otherwise than those of one with it.
    if inspect.isdatadescriptor(found) or found is object.__init__:
        return None
    if isinstance(holder, type):
        return _Place(holder, name, found) if definer else None
    held = getattr(holder, "__dict__", None)
    if held is not None and name in held:
        value = held[name]
        return _Place(holder, name, value, value.__self__ if isinstance(value, types.MethodType) else None)
    if definer and callable(found) and hasattr(found, "__get__") and not isinstance(found, (staticmethod, classmethod)):
        # Where it is defined, since an object may change its class: a lazy module does, and one that is sharded.
        return _Place(definer, name, found, holder)
    return None if held is None else _Place(holder, name, getattr(holder, name))


def _definer(cls: type, name: str) -> type | None:
    """The class, `cls` or a base of it, that an attribute comes from."""
    return next((base for base in cls.__mro__ if name in vars(base)), None)


class _Layer:
    """One instrumentation of an attribute.

    Attributes:
        phase: What the calls belong to.
        receiver: The `id` of the object whose calls alone are meant; `None` for all.
        reference: Drops the layer when that object is gone.
    """

    def __init__(self, phase: NamedPhase, receiver: Any, dropped: Callable[[_Layer], None]) -> None:
        self.phase = phase
        self.receiver = None if receiver is None else id(receiver)
        self.reference = None if receiver is None else _reference(receiver, lambda _: dropped(self))


class Patch:
    """What stands in the place of one attribute, and the phases that its calls belong to.

    An object may be freed, and so a layer dropped, in the middle of anything, also of the methods below.
    """

    def __init__(self, place: _Place) -> None:
        self._owner = _reference(place.owner)
        self._name = place.name
        self._original = place.original
        # In order; a dict, since adding to it and taking from it cannot be interrupted.
        self._layers: dict[_Layer, None] = {}
        self._selection = Selection()
        self.installed = _stand_in(place, self._selection)
        _stand_in_function(self.installed)._self_patch = self

    @staticmethod
    def standing(owner: Any, name: str) -> Patch | None:
        """The patch that is in the place of the attribute now."""
        value = vars(owner).get(name)
        patch = getattr(_stand_in_function(value), "_self_patch", None)
        # Another library's `functools.wraps` copies the mark to a wrapper of its own.
        return patch if isinstance(patch, Patch) and patch.installed is value else None

    def add(self, phase: NamedPhase, place: _Place) -> Handle:
        """Times the calls that the place means as a phase; again for the same phase and calls, it counts once."""
        layer = _Layer(phase, place.receiver, self._drop)
        self._layers[layer] = None
        self._arrange()
        if vars(place.owner).get(self._name) is not self.installed:
            _put(place.owner, self._name, self.installed)
        return Handle(lambda: self._drop(layer))

    def _drop(self, layer: _Layer) -> None:
        with _lock:
            self._layers.pop(layer, None)
            self._arrange()
            self._restore_if_idle()

    def _arrange(self) -> None:
        """Looks up in advance which phases each receiver's calls have, so that a call need not."""
        layers = list(self._layers)
        everyones: list[NamedPhase] = []
        theirs: dict[int, list[NamedPhase]] = {}
        for layer in layers:
            if layer.receiver is not None:
                theirs.setdefault(layer.receiver, everyones.copy()).append(layer.phase)
            else:
                for phases in (everyones, *theirs.values()):
                    phases.append(layer.phase)
        self._selection.receiver = None
        self._selection.by_receiver = {receiver: _together(phases) for receiver, phases in theirs.items()}
        if len(theirs) == 1:
            [self._selection.its] = self._selection.by_receiver.values()
            self._selection.receiver = next(layer.reference for layer in layers if layer.reference is not None)
        self._selection.everyone = _together(everyones) if everyones else None
        if layers != list(self._layers):
            self._arrange()

    def _restore_if_idle(self) -> None:
        owner = self._owner()
        # What someone else has put in this place since is theirs; the calls that reach this patch pass through it.
        if self._layers or owner is None or vars(owner).get(self._name) is not self.installed:
            return
        if self._original is _Inherited:
            _delete(owner, self._name)
        else:
            _put(owner, self._name, self._original)


def _stand_in(place: _Place, selection: Selection) -> Any:
    """Makes what is put in the place: of the same kind, and bound in the same way, as what is there."""
    time = functools.partial(time_callable, selection=selection)
    value = place.value
    if isinstance(place.owner, types.ModuleType):
        return time(value)
    if not isinstance(place.owner, type):
        if isinstance(value, types.MethodType):
            return types.MethodType(time(value.__func__), value.__self__)
        return TimedObject(value, value, selection)
    if isinstance(value, (staticmethod, classmethod)):
        return type(value)(time(value.__func__, call=_original_call(place)))
    if hasattr(value, "__get__") and not callable(value):
        return time(_plain_function(_original_call(place), value))
    return time(value, call=_original_call(place) if hasattr(value, "__get__") else None)


def _original_call(place: _Place) -> Callable[..., Any] | None:
    """Calls what a class had in a place; `None` where that is a callable of its own, to be called as it is.

    What a class inherits is looked up at each call, as it would be without us: a base class may be patched later.
    """
    owner, name, value = place.owner, place.name, place.value
    inherited = place.original is _Inherited
    if isinstance(value, staticmethod):
        return (lambda *args, **kwargs: getattr(super(owner, owner), name)(*args, **kwargs)) if inherited else None
    if not inherited:
        if isinstance(value, classmethod) or callable(value):
            return None
        return lambda self, *args, **kwargs: value.__get__(self, type(self))(*args, **kwargs)
    unbound = value.__func__ if isinstance(value, classmethod) else value

    def call(*args: Any, **kwargs: Any) -> Any:
        if args and (isinstance(args[0], owner) or (isinstance(args[0], type) and issubclass(args[0], owner))):
            return getattr(super(owner, args[0]), name)(*args[1:], **kwargs)
        return unbound(*args, **kwargs)

    return call


def _plain_function(call: Any, described_by: Any) -> Callable[..., Any]:
    @functools.wraps(described_by)
    def function(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return function


def _stand_in_function(installed: Any) -> Any:
    """The callable inside a static, class or bound method; anything else as it is."""
    if isinstance(installed, (staticmethod, classmethod, types.MethodType)):
        return installed.__func__
    return installed


class _Together:
    """Several phases entered at once, the first outermost."""

    def __init__(self, phases: list[NamedPhase]) -> None:
        self.phases = phases
        self._outer = phases[0]
        self._inner = _together(phases[1:])

    def __enter__(self) -> None:
        self._outer.__enter__()
        try:
            self._inner.__enter__()
        except BaseException:
            self._outer.__exit__(*sys.exc_info())
            raise

    def __exit__(self, *error: Any) -> None:
        try:
            self._inner.__exit__(*error)
        except BaseException:
            self._outer.__exit__(*sys.exc_info())
            raise
        self._outer.__exit__(*error)


def _together(phases: list[NamedPhase]) -> AbstractContextManager[None]:
    different = list(dict.fromkeys(phases))
    return cast("AbstractContextManager[None]", different[0] if len(different) == 1 else _Together(different))


def _reference(value: Any, callback: Callable[[Any], None] | None = None) -> Any:
    """A weak reference; for the few objects that allow none, a strong one."""
    try:
        return weakref.ref(value, callback)
    except TypeError:
        return lambda: value


def _put(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, type):
        setattr(owner, name, value)
    else:
        # Past any __setattr__: that of nn.Module or of a proxy would do more than put it here.
        vars(owner)[name] = value


def _delete(owner: Any, name: str) -> None:
    if isinstance(owner, type):
        delattr(owner, name)
    else:
        del vars(owner)[name]
