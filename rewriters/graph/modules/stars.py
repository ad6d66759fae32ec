"""What ``from .layers import *`` gives a meaning: all that the other module has names for."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.asking import Neighbours, name_seen_from
from npufix.rewriters.graph.modules.names import ModuleNames, module_names
from npufix.rewriters.graph.modules.neighbours import neighbour
from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Callable

_DEPTH = 3
"""A module takes all of another, which takes all of a third; no more are read."""


def read_names(tree: ast.Module, beside: Callable[[str], str | None] | None) -> ModuleNames:
    """Read the top level of a module, with the names that it takes from others by a star."""
    names = module_names(tree, Neighbours.of(beside))
    if not names.starred or names.neighbour is None:
        return names
    loaded = {n.id for n in walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    found = {name: _find(names, name, _DEPTH) for name in sorted(loaded - names.bound)}
    known = {name: full for name, full in found.items() if full is not None}
    near = {name: full for name, full in known.items() if full.startswith(".")}
    far = {name: full for name, full in known.items() if name not in near}
    imports = {k: v for k, v in names.imports.items() if k not in near} | far
    return replace(names, imports=imports, relative={**names.relative, **near})


def _find(names: ModuleNames, name: str, depth: int) -> str | None:
    """Return what a name stands for that the last module with a star in front of it brings."""
    if name.startswith("_"):
        return None
    for module in reversed(names.starred if depth else ()):
        there = neighbour(names, module)
        if there is None:
            if module.partition(".")[0] in sys.stdlib_module_names:
                continue
            return None  # nobody knows what is in it
        own = name in there.bound
        full = _say_own(there, name) if own else _find(there, name, depth - 1)
        if own or full is not None:
            return None if full is None else name_seen_from(module, full)
    return None


def _say_own(there: ModuleNames, name: str) -> str | None:
    """Return what a module itself gives a name to, in its own words."""
    if name in there.unsure or "__all__" in there.bound:
        return None
    if name in there.functions or name in there.classes:
        return f".{there.home.rpartition('.')[2]}.{name}"
    return there.relative.get(name) or there.imports.get(name)
