"""Classes with exchanged methods, and putting single modules into them and back.

A module changes its class, as ``torch.nn.utils.parametrize`` does it: other modules of the same
class stay what they are, and a replica that ``DataParallel`` makes calls itself, not the original.
The new class has the name of the old one. Pickles name the old class, so that they load anywhere
and come back as they were written.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
import weakref
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

_MARK = "_npufix_exchange"
_FORWARD = "forward"
_PROTOCOL = 4
"""Of pickle, as the copy module asks for it."""
LOCK = RLock()
"""Held while modules change their classes."""


@dataclass(frozen=True, slots=True)
class _Member:
    module: weakref.ref[nn.Module]
    forward: object
    """What the module itself held under this name: the plain method of its class, or ``None``."""


class Exchange:
    """The new classes of one application, and the modules that are in them."""

    def __init__(self) -> None:
        self._classes: dict[type, type] = {}
        self._methods: dict[type, Mapping[str, object]] = {}
        self._members: list[_Member] = []
        self._active = True

    def put(self, module: nn.Module, methods: Mapping[str, object]) -> None:
        """Give a module new methods.

        Raises:
            TypeError: Python cannot change the class of this object.

        """
        old = type(module)
        if old not in self._classes:
            self._classes[old] = self._make(old, methods)
        _into(module, self._classes[old])
        # What ``forward`` of its class would stand in front of ours.
        self._members.append(_Member(weakref.ref(module), vars(module).pop(_FORWARD, None)))

    def restore(self) -> None:
        """Make every module what it was, and every copy of one that was made meanwhile."""
        with LOCK:
            self._active = False
            for member in self._members:
                module = member.module()
                if module is not None:
                    self._put_back(module, member.forward)
            for old, new in self._classes.items():
                _take_out(old, new, self._methods[old])
            self._members.clear()
            self._classes.clear()
            self._methods.clear()

    def _put_back(self, module: nn.Module, forward: object) -> None:
        held = vars(module)
        own = {function for methods in self._methods.values() for function in methods.values()}
        if getattr(held.get(_FORWARD), "__func__", None) in own:
            del held[_FORWARD]  # somebody took it for the original, and put it back later
        if forward is not None:
            held.setdefault(_FORWARD, forward)
        if is_exchanged(type(module)):
            _into(module, original(type(module)))

    def _make(self, old: type, methods: Mapping[str, object]) -> type:
        self._methods[old] = dict(methods)
        body: dict[str, object] = {
            **methods,
            _MARK: self,
            "__module__": old.__module__,
            "__qualname__": old.__qualname__,
            "__doc__": old.__doc__,
            "__reduce_ex__": _reduce,
        }
        if getattr(old, "__deepcopy__", None) is None:
            body["__deepcopy__"] = _deep_copy
        if getattr(old, "__copy__", None) is None:
            body["__copy__"] = _shallow_copy
        return type(old)(old.__name__, (old,), body)

    def adopt(self, module: nn.Module, cls: type) -> None:
        """Put a copy of a module into the class of ours that the module is in, if it still is."""
        with LOCK:
            if self._active:
                _into(module, cls)
                self._members.append(_Member(weakref.ref(module), None))


def _into(module: nn.Module, cls: type) -> None:
    object.__setattr__(module, "__class__", cls)  # whatever the user's own one does


def _take_out(old: type, new: type, methods: Mapping[str, object]) -> None:
    """Let what was put on top of a class of ours meanwhile (a parametrization) rest on the old."""
    above: type
    for above in new.__subclasses__():
        with contextlib.suppress(TypeError):  # then the old methods show through, at least
            above.__bases__ = tuple(old if base is new else base for base in above.__bases__)
    for name in methods:
        delattr(new, name)


def is_exchanged(cls: type) -> bool:
    """Tell whether a class is one of ours."""
    return _MARK in vars(cls)


def original(cls: type) -> type:
    """Return the user's class."""
    return cls.__bases__[0] if is_exchanged(cls) else cls


def _reduce(self: nn.Module, protocol: Any) -> Any:  # noqa: ANN401 - as pickle calls it
    """Return what pickle writes: the user's class in place of ours."""
    cls = type(self)
    ours: Any = next(base for base in cls.__mro__ if is_exchanged(base))
    reduced = super(ours, self).__reduce_ex__(protocol)
    if isinstance(reduced, str) or cls is not ours:
        return reduced
    function, arguments, *rest = reduced
    plain = original(cls)
    arguments = tuple(plain if value is cls else value for value in arguments)
    if function is vars(copyreg)["__newobj__"] and len(arguments) == 1:
        # Pickle has it name the class of the object; this one is part of every older pickle.
        return (vars(copyreg)["_reconstructor"], (plain, object, None), *rest)
    return (plain if function is cls else function, arguments, *rest)


def _copy(self: nn.Module, memo: dict[int, Any] | None) -> nn.Module:
    """Copy a module as the copy module does, into the class that it is in."""
    cls = type(self)
    state: Any = vars(self)
    if is_exchanged(cls):
        function, arguments, *rest = _reduce(self, _PROTOCOL)
        new: nn.Module = function(*(arguments if memo is None else copy.deepcopy(arguments, memo)))
        state = rest[0] if rest else None
    else:  # a class on top of ours, as parametrizations make it: what it holds is not pickled
        new = cls.__new__(cls)
    if memo is not None:
        memo[id(self)] = new
        state = copy.deepcopy(state, memo)
    if state is not None:
        put: Any = new.__setstate__ if is_exchanged(cls) else vars(new).update
        put(state)
    if is_exchanged(cls) and type(new) is original(cls):
        vars(cls)[_MARK].adopt(new, cls)
    return new


def _deep_copy(self: nn.Module, memo: dict[int, Any]) -> nn.Module:
    return _copy(self, memo)


def _shallow_copy(self: nn.Module) -> nn.Module:
    return _copy(self, None)
