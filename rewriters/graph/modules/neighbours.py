"""Functions and classes that a module takes from other modules of its package."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.asking import (
    CLASS,
    FUNCTION,
    NAMES,
    Bound,
    Known,
    Neighbours,
    name_seen_from,
    parse,
)
from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames, inlinable
from npufix.rewriters.graph.modules.outline import only_computes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MOST_BYTES = 2_000_000
# Base classes are looked up in small modules only: they say what a few attributes are.
_MOST_BYTES_OF_BASES = 200_000
_MOST_BASES = 6
_LIBRARIES = frozenset({"einops", "math", "numpy", "torch", "torch_npu"})
"""Whose functions no file beside this one defines: they are called everywhere."""
# Helpers of helpers of helpers are inlined, no more.
_DEPTH = 3
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\(")


def neighbour(names: ModuleNames, module: str) -> ModuleNames | None:
    """Return a module of the same package: ``..llama.modeling_llama``, ``package.layers``."""
    if module not in names.neighbours:
        ask = Neighbours.of(names.neighbour)
        text = ask.peek(module) if ask else None
        found = None if text is None or ask is None else _read(ask, module, text)
        names.neighbours[module] = found
    return names.neighbours[module]


def _read(ask: Neighbours, module: str, text: str) -> ModuleNames | None:
    found = parse(text) if len(text) <= _MOST_BYTES else None
    ask.note(module, NAMES)
    if found is None:
        return None
    return replace(
        found,
        home=module,
        neighbour=ask.seen_from(module),
        neighbours={},
        assigned=dict(found.assigned),
        submodules={},
        functions=Known(found.functions, FUNCTION, ask, module),
        bound=Bound(found.bound, ask, module),
        classes=Known(found.classes, CLASS, ask, module),
    )


def find_imported(names: ModuleNames, name: str) -> tuple[ModuleNames, str] | None:
    """Return the module that a name comes from and what it is called there, if that is known."""
    full = names.relative.get(name) or names.imports.get(name)
    if full is None or name in names.unsure or names.neighbour is None:
        return None
    module, dot, original = full.rpartition(".")
    if not module or not module.strip("."):  # a module, not something in one
        return None
    found = neighbour(names, module)
    return None if found is None or not dot else (found, original)


def find_imported_function(
    names: ModuleNames, called: str
) -> tuple[ModuleNames, FunctionNode] | None:
    """Return the helper that ``f`` or ``module.f`` stands for, with the names of its module."""
    first, dot, name = called.partition(".")
    behind = dot + name
    full = names.relative.get(first) or names.imports.get(first) or ""
    module, _, original = f"{full}{behind}".rpartition(".")
    if not full or names.neighbour is None or not module.strip(".") or first in names.unsure:
        return None
    if behind and full.partition(".")[0] in _LIBRARIES:
        return None
    ask = Neighbours.of(names.neighbour)
    code = ask.function(module, original) if ask else None
    if code is None or not only_computes(code):
        return None  # a class, most of the time: nothing to parse a module for
    home = neighbour(names, module)
    function = None if home is None else home.functions.get(original)
    if home is None or function is None or function.decorator_list:
        return None
    return (home, function) if inlinable(function) else None


def foreign_bases(
    names: ModuleNames, cls: ast.ClassDef
) -> Iterator[tuple[ModuleNames, ast.ClassDef]]:
    """Yield the bases of a class that other modules of its package define."""
    left = [(names, cls)]
    for home, current in left:  # grows
        if len(left) > _MOST_BASES:
            return
        small = _small(home)
        for member in home.bases(current):
            for base in member.bases:
                if not isinstance(base, ast.Name) or base.id in home.classes:
                    continue
                found = find_imported(small, base.id)
                there = None if found is None else found[0].classes.get(found[1])
                if found is not None and there is not None:
                    left.append((found[0], there))
                    for inner in found[0].bases(there):
                        yield found[0], inner


def _small(names: ModuleNames) -> ModuleNames:
    """Return names that know no large neighbours."""
    ask = Neighbours.of(names.neighbour)
    if ask is None:
        return names
    return replace(names, neighbour=replace(ask, most=_MOST_BYTES_OF_BASES), neighbours={})


def helper_texts(names: ModuleNames, source: str) -> Mapping[str, str]:
    """Return the code of the helpers that a module imports and calls, with what they call.

    It is cut out of the text: most modules need not be parsed, as no rule has use for them.
    """
    ask = Neighbours.of(names.neighbour)
    if ask is None:
        return {}
    found = {}
    for name, full in {**names.relative, **names.imports}.items():
        if name in names.unsure:
            continue
        places = [full] if f"{name}(" in source else []
        if f"{name}." in source and full.partition(".")[0] not in _LIBRARIES:
            called = re.findall(rf"\b{name}\.(\w+)\(", source)
            places += [f"{full}.{function}" for function in dict.fromkeys(called)]
        text = "\n".join(filter(None, (_with_what_it_calls(ask, place) for place in places)))
        if text:
            found[name] = text
    return found


def forward_text(names: ModuleNames, full: str) -> str:
    """Return the code of all that is called ``forward`` where a class comes from, "" if unknown."""
    ask = Neighbours.of(names.neighbour)
    for _ in range(_DEPTH if ask is not None else 0):
        module, _, name = full.rpartition(".")
        if ask is None or not module.strip("."):
            return ""
        there = module if ask.peek(module) else f"{module}.__init__"
        if ask.has_class(there, name):
            return ask.function(there, "forward") or ""
        other = ask.imported(there, name)
        if other is None:
            return ""
        full = name_seen_from(module, other)
    return ""


@lru_cache(maxsize=1024)
def _list_called_in(function: str) -> Sequence[str]:
    return sorted(set(_CALLED.findall(function)))


def _with_what_it_calls(ask: Neighbours, full: str) -> str:
    """Return the code of an imported function and of its helpers; "" if it is none."""
    parts: list[str] = []
    left = [(full, 0)]
    for place, depth in left:  # grows
        module, _, name = place.rpartition(".")
        function = ask.function(module, name) if module.strip(".") else None
        if function is None or not only_computes(function):
            continue
        parts.append(function)
        for called in _list_called_in(function) if depth < _DEPTH else ():
            if called == name:
                continue
            own = ask.function(module, called) is not None
            other = f"{module}.{called}" if own else ask.imported(module, called)
            if other is not None:
                there = other if own else name_seen_from(module, other)
                left += [] if (there, depth + 1) in left else [(there, depth + 1)]
    return "\n".join(parts)
