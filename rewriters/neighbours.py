"""Functions and classes that a module takes from other modules of its package."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.names import FunctionNode, ModuleNames, inlinable, module_names
from npufix.rewriters.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST_BYTES = 2_000_000
# Base classes are looked up in small modules only: they say what a few attributes are.
_MOST_BYTES_OF_BASES = 200_000
_MOST_BASES = 6
# Helpers of helpers of helpers are inlined, no more.
_DEPTH = 3


def neighbour(names: ModuleNames, module: str) -> ModuleNames | None:
    """Return a module of the same package: ``..llama.modeling_llama``, ``package.layers``."""
    if module not in names.neighbours:
        text = names.neighbour(module) if names.neighbour else None
        names.neighbours[module] = None if text is None else _read(names, module, text)
    return names.neighbours[module]


def _read(names: ModuleNames, module: str, text: str) -> ModuleNames | None:
    if len(text) > _MOST_BYTES:
        return None
    found = _parsed(text)
    if found is None or names.neighbour is None:
        return None
    ask = names.neighbour
    found.is_rebound("")  # finds out about all names, for every file that asks
    return replace(
        found,
        home=module,
        neighbour=lambda other: ask(seen_from(module, other)),
        neighbours={},
        assigned=dict(found.assigned),
        submodules={},
    )


@lru_cache(maxsize=16)  # the modules that a whole package shares; a tree takes megabytes
def _parsed(text: str) -> ModuleNames | None:
    try:
        return module_names(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return None


def seen_from(module: str, other: str) -> str:
    """Return what a module calls ``other`` in the words of the file that calls it ``module``.

    ``..llama.modeling_llama`` calls ``..llama.configuration_llama`` ``.configuration_llama``.
    """
    name = other.lstrip(".")
    up = len(other) - len(name)
    if not up:
        return other  # an absolute name
    path = module.lstrip(".")
    dots = len(module) - len(path)
    parts = path.split(".")
    for _ in range(up):
        if parts:
            parts.pop()
        else:
            dots += 1
    return "." * dots + ".".join([*parts, name])


def imported(names: ModuleNames, name: str) -> tuple[ModuleNames, str] | None:
    """Return the module that a name comes from and what it is called there, if that is known."""
    full = names.relative.get(name) or names.imports.get(name)
    if full is None or name in names.unsure or names.neighbour is None:
        return None
    module, dot, original = full.rpartition(".")
    if not module or not module.strip("."):  # a module, not something in one
        return None
    found = neighbour(names, module)
    return None if found is None or not dot else (found, original)


def imported_function(names: ModuleNames, name: str) -> tuple[ModuleNames, FunctionNode] | None:
    """Return the helper that a name stands for, with the names of its own module."""
    found = imported(names, name)
    function = None if found is None else found[0].functions.get(found[1])
    if found is None or function is None or function.decorator_list:
        return None
    return (found[0], function) if inlinable(function) else None


def foreign_bases(
    names: ModuleNames, cls: ast.ClassDef
) -> Iterator[tuple[ModuleNames, ast.ClassDef]]:
    """Yield the bases of a class that other modules of its package define."""
    left = [(names, cls)]
    for home, current in left:  # grows
        if len(left) > _MOST_BASES:
            return
        for member in home.bases(current):
            for base in member.bases:
                if not isinstance(base, ast.Name) or base.id in home.classes:
                    continue
                found = imported(_small(home), base.id)
                there = None if found is None else found[0].classes.get(found[1])
                if found is not None and there is not None:
                    left.append((found[0], there))
                    for inner in found[0].bases(there):
                        yield found[0], inner


def _small(names: ModuleNames) -> ModuleNames:
    """Return names that know no large neighbours."""
    ask = names.neighbour
    if ask is None:
        return names

    def small(module: str) -> str | None:
        text = ask(module)
        return None if text is None or len(text) > _MOST_BYTES_OF_BASES else text

    return replace(names, neighbour=small, neighbours={})


def helper_texts(names: ModuleNames, source: str) -> Mapping[str, str]:
    """Return the code of the helpers that a module imports and calls, with what they call."""
    if names.neighbour is None:
        return {}
    found = {}
    for name in {**names.relative, **names.imports}:
        if f"{name}(" in source:
            helper = imported_function(names, name)
            if helper is not None:
                found[name] = _text(*helper)
    return found


def _text(names: ModuleNames, function: FunctionNode) -> str:
    parts: list[str] = []
    left = [(names, function, 0)]
    for home, current, depth in left:  # grows
        parts.append(_unparsed(current))
        for node in walk(current) if depth < _DEPTH else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                own = home.functions.get(node.func.id)
                other = imported_function(home, node.func.id) if own is None else (home, own)
                if other is not None and inlinable(other[1]) and other[1] is not current:
                    left.append((*other, depth + 1))
    return "\n".join(parts)


@lru_cache(maxsize=256)
def _unparsed(function: FunctionNode) -> str:
    return ast.unparse(function)
