"""What the methods of a class become: which of them change, with all that they call.

A module-level helper (``apply_rotary_pos_emb``) belongs to every model of its file, so it is not
changed: the methods that call it get copies that call a copy of it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.runtime.modules.copies import CannotCopyError, copy_of, decorate
from npufix.advisor.runtime.modules.loaded import innermost, why_changed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FunctionType

    from npufix.advisor.runtime.modules.loaded import Definition, LoadedFiles
    from npufix.advisor.runtime.source.places import NewImport, RulePlace

_START = "forward"
_MOST_CALLS = 8
"""How deep helpers of helpers are followed."""


@dataclass(frozen=True)
class Spot:
    """A place of a rule in a file."""

    path: str
    place: RulePlace
    known: frozenset[str] = frozenset()
    """Conditions of rules that the model proves for the file: ``npu102:cosines-within-one``."""

    @property
    def proven(self) -> tuple[str, ...]:
        """Return the conditions that neither the source nor the call proves, but the model."""
        rule = self.place.rule.lower()
        return tuple(name for name in self.place.vouched if f"{rule}:{name}" in self.known)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Return the conditions that nothing proves: the user vouches for them."""
        return tuple(name for name in self.place.vouched if name not in self.proven)


@dataclass
class ClassPlan:
    """What the methods of a class become."""

    methods: dict[str, object] = field(default_factory=dict)
    replaced: list[Spot] = field(default_factory=list)
    left: dict[Spot, str] = field(default_factory=dict)
    """Places that stay as they are, and why."""


@dataclass(frozen=True)
class _Copy:
    """A changed function, and the places that changed in it and in what it calls."""

    function: FunctionType
    spots: tuple[Spot, ...]


class Planner:
    """Plans classes; a helper that two of them call is copied once."""

    def __init__(self, files: LoadedFiles) -> None:
        self._files = files
        self._copies: dict[int, _Copy | None] = {}
        self._kept: list[FunctionType] = []
        self._left: dict[Spot, str] = {}

    def plan(self, cls: type) -> ClassPlan:
        """Return what the methods become that ``forward`` leads to."""
        made = ClassPlan()
        self._left = made.left
        for name in self._methods(cls):
            method = inspect.getattr_static(cls, name)
            is_static = isinstance(method, staticmethod)
            found = self._copy_function(method.__func__ if is_static else method, 0)
            if found is not None:
                made.methods[name] = staticmethod(found.function) if is_static else found.function
                made.replaced += found.spots
        made.replaced = list(dict.fromkeys(made.replaced))
        return made

    def _methods(self, cls: type) -> Iterator[str]:
        """Yield ``forward`` and the methods that it leads to."""
        waiting, seen = [_START], {_START}
        start: FunctionType | None = None
        while waiting:
            name = waiting.pop(0)
            method = inspect.getattr_static(cls, name, None)
            chain = innermost(method.__func__ if isinstance(method, staticmethod) else method)
            start = start or (chain[-1] if chain else None)
            if chain and start is not None and not _is_near(chain[-1], start):
                continue
            if not chain:
                if callable(method):
                    self._leave(cls, name, f"{name} is no plain function of its class")
                continue
            yield name
            node = self._tree(chain[-1])
            if node is None:
                continue
            called = _own_attributes(node)
            waiting += [one for one in sorted(called) if one not in seen]
            seen |= called
            if _calls_super(node, name):
                own = next(c for c in cls.__mro__ if name in vars(c))
                for base in own.__mro__[1:]:
                    self._leave(base, name, f"{own.__qualname__}.{name} calls it through super()")

    def _leave(self, cls: type, name: str, reason: str) -> None:
        """Name the places in a method that cannot be exchanged."""
        owner = next((c for c in cls.__mro__ if name in vars(c)), None)
        file = None if owner is None else self._files.of_class(owner)
        if file is None or owner is None:
            return
        function = f"{owner.__qualname__}.{name}"
        for place in file.places:
            if place.function == function:
                self._left[Spot(file.path, place, file.known)] = reason

    def _tree(self, function: FunctionType) -> Definition | None:
        file = self._files.of(function)
        found = None if file is None else file.definition(function, new=False)
        return None if found is None else found[0]

    def _copy_function(self, outer: object, depth: int) -> _Copy | None:
        """Return the changed copy of a function, ``None`` if nothing in it changes."""
        if id(outer) not in self._copies:
            self._copies[id(outer)] = None  # it may call itself
            chain = innermost(outer)
            if chain and depth <= _MOST_CALLS:
                self._kept.append(chain[0])  # or another one may get its id
                self._copies[id(outer)] = self._make_copy(chain, depth)
        return self._copies[id(outer)]

    def _make_copy(self, chain: list[FunctionType], depth: int) -> _Copy | None:
        function = chain[-1]
        file = self._files.of(function)
        if file is None:
            return None
        places = [Spot(file.path, place, file.known) for place in file.places_in(function)]
        changed = why_changed(file, function)
        if changed:
            self._left.update(dict.fromkeys(places, changed))
            return None
        self._left.update({s: s.place.why_not for s in places if not s.place.replaced})
        own = [s for s in places if s.place.replaced]
        found = file.definition(function, new=bool(own))
        if found is None:
            self._left.update(dict.fromkeys(own, "its function is not where it was in the file"))
            return None
        called = self._helpers(function, found[0], depth)
        spots = (*own, *(spot for copy in called.values() for spot in copy.spots))
        if not spots:
            return None
        given = {name: copy.function for name, copy in called.items()}
        try:
            needed = _import_values(file.imports, found[0])
            new = copy_of(function, *found, {**needed, **given})
            return _Copy(decorate(chain, new), tuple(dict.fromkeys(spots)))
        except CannotCopyError as error:
            self._left.update(dict.fromkeys(spots, f"{function.__qualname__}: {error}"))
        return None

    def _helpers(self, function: FunctionType, node: Definition, depth: int) -> Mapping[str, _Copy]:
        """Return the changed copies of the functions of the same package that are called."""
        code = function.__code__
        own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        found: dict[str, _Copy] = {}
        for name in sorted(_read(node) - own):
            helper = function.__globals__.get(name)
            chain = innermost(helper)
            if chain and _is_near(chain[-1], function):
                copied = self._copy_function(helper, depth + 1)
                if copied is not None:
                    found[name] = copied
        return found


def _read(node: ast.AST) -> set[str]:
    names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    declared = {name for n in ast.walk(node) if isinstance(n, ast.Global) for name in n.names}
    return {n.id for n in names if isinstance(n.ctx, ast.Load)} - declared


def _is_near(helper: FunctionType, function: FunctionType) -> bool:
    """Tell whether a helper is of the same part of a package, at most one folder up.

    ``models/llama`` and ``models/mistral`` lend each other code; what is common to a whole library
    (loading, logging) is no part of a model's mathematics, and takes long to search.
    """
    one, other = (Path(f.__code__.co_filename) for f in (helper, function))
    return one == other or one.parent == other.parent or other.parent.parent in one.parents


def _calls_super(node: Definition, name: str) -> bool:
    """Tell whether a method calls the one that it overrides: ``super().forward(x)``."""
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(ast.Call(ast.Name("super")), called) if called == name:
                return True
    return False


def _own_attributes(node: Definition) -> set[str]:
    """Return the names ``x`` of all ``self.x`` in a method."""
    arguments = [*node.args.posonlyargs, *node.args.args]
    if not arguments:
        return set()
    own = arguments[0].arg
    return {
        n.attr
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute)
        and isinstance(n.value, ast.Name)
        and n.value.id == own
        and not n.attr.startswith("__")
    }


def _import_values(imports: tuple[NewImport, ...], node: ast.AST) -> dict[str, object]:
    """Return the values of the names that new code imports."""
    read = _read(node)
    return {one.name: _value(one) for one in imports if one.name in read}


def _value(one: NewImport) -> object:
    try:
        module = importlib.import_module(one.module)
    except ImportError as error:
        if one.module == "torch_npu":  # then nothing is on an NPU, and it is not called
            return None
        raise CannotCopyError(f"it needs {one.module}, which is not installed") from error
    if one.member:
        return getattr(module, one.member)
    return sys.modules[one.module.partition(".")[0]] if one.name != one.module else module
