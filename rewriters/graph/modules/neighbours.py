"""Functions and classes that a module takes from other modules of its package."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames, inlinable, module_names
from npufix.rewriters.graph.modules.outline import only_computes, outline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_MOST_BYTES = 2_000_000
# Base classes are looked up in small modules only: they say what a few attributes are.
_MOST_BYTES_OF_BASES = 200_000
_MOST_BASES = 6
_LIBRARIES = frozenset({"einops", "math", "numpy", "torch", "torch_npu"})
"""Whose functions no file beside this one defines: they are called everywhere."""
# Helpers of helpers of helpers are inlined, no more.
_DEPTH = 3
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\(")
_CALLED_IN = re.compile(r"\b(\w+)\.(\w+)\(")


def neighbour(names: ModuleNames, module: str) -> ModuleNames | None:
    """Return a module of the same package: ``..llama.modeling_llama``, ``package.layers``."""
    if module not in names.neighbours:
        text = names.neighbour(module) if names.neighbour else None
        names.neighbours[module] = None if text is None else _read(names, module, text)
    return names.neighbours[module]


def _read(names: ModuleNames, module: str, text: str) -> ModuleNames | None:
    if len(text) > _MOST_BYTES:
        return None
    found = _parse(text)
    if found is None or names.neighbour is None:
        return None
    ask = names.neighbour
    found.is_rebound("")  # finds out about all names, for every file that asks
    return replace(
        found,
        home=module,
        neighbour=lambda other: ask(name_seen_from(module, other)),
        neighbours={},
        assigned=dict(found.assigned),
        submodules={},
    )


@lru_cache(maxsize=64)  # the modules that a whole package shares; a tree takes megabytes
def _parse(text: str) -> ModuleNames | None:
    try:
        return module_names(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return None


def name_seen_from(module: str, other: str) -> str:
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
    text = names.neighbour(module)
    code = None if text is None else outline(text).functions.get(original)
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
    ask = names.neighbour
    if ask is None:
        return names

    def small(module: str) -> str | None:
        text = ask(module)
        return None if text is None or len(text) > _MOST_BYTES_OF_BASES else text

    return replace(names, neighbour=small, neighbours={})


def helper_texts(names: ModuleNames, source: str) -> Mapping[str, str]:
    """Return the code of the helpers that a module imports and calls, with what they call.

    It is cut out of the text: most modules need not be parsed, as no rule has use for them.
    """
    ask = names.neighbour
    if ask is None:
        return {}
    found, called = {}, dict[str, list[str]]()
    for owner, function in dict.fromkeys(_CALLED_IN.findall(source)):
        called.setdefault(owner, []).append(function)
    for name, full in {**names.relative, **names.imports}.items():
        if name in names.unsure:
            continue
        places = [full] if f"{name}(" in source else []
        if full.partition(".")[0] not in _LIBRARIES:
            places += [f"{full}.{function}" for function in called.get(name, ())]
        text = "\n".join(filter(None, (_with_what_it_calls(ask, place) for place in places)))
        if text:
            found[name] = text
    return found


def forward_text(names: ModuleNames, full: str) -> str:
    """Return the code of all that is called ``forward`` where a class comes from, "" if unknown."""
    ask = names.neighbour
    for _ in range(_DEPTH if ask is not None else 0):
        module, _, name = full.rpartition(".")
        text = (ask(module) or ask(f"{module}.__init__")) if ask and module.strip(".") else None
        if text is None:
            return ""
        if re.search(rf"\bclass {name}\b", text):
            return outline(text).functions.get("forward", "")
        other = outline(text).imports.get(name)
        if other is None:
            return ""
        full = name_seen_from(module, other)
    return ""


@lru_cache(maxsize=1024)
def _list_called_in(function: str) -> Sequence[str]:
    return sorted(set(_CALLED.findall(function)))


def _with_what_it_calls(ask: Callable[[str], str | None], full: str) -> str:
    """Return the code of an imported function and of its helpers; "" if it is none."""
    parts: list[str] = []
    left = [(full, 0)]
    for place, depth in left:  # grows
        module, _, name = place.rpartition(".")
        text = ask(module) if module.strip(".") else None
        function = outline(text).functions.get(name) if text else None
        if not text or function is None or not only_computes(function):
            continue
        parts.append(function)
        if depth < _DEPTH:
            own, imports = outline(text).functions, outline(text).imports
            for called in _list_called_in(function):
                if called == name:
                    continue
                other = f"{module}.{called}" if called in own else imports.get(called)
                if other is not None:
                    there = other if called in own else name_seen_from(module, other)
                    left += [] if (there, depth + 1) in left else [(there, depth + 1)]
    return "\n".join(parts)
