"""Which names a module uses anywhere, and how it calls a method."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from npufix.rewriters.graph.modules.names import ModuleNames

_KEY = "words of the module"


def mentions(names: ModuleNames, words: Collection[str]) -> bool:
    """Tell whether a module uses one of these names: a variable, attribute, keyword or import."""
    if _KEY not in names.assigned:
        names.assigned[_KEY] = frozenset(_words(names.tree)) if names.tree else frozenset()
    return not names.assigned[_KEY].isdisjoint(words)


def arguments(names: ModuleNames, method: str) -> Sequence[Mapping[str, str]]:
    """Return the code of the arguments of each ``x.method(...)`` in a module.

    ``x`` is under "", positional arguments under "0", "1", keywords under their names.
    """
    found: list[Mapping[str, str]] = []
    for node in walk(names.tree) if names.tree else ():
        match node:
            case ast.Call(ast.Attribute(owner, attr), positional, keywords) if attr == method:
                given = {"": ast.unparse(owner)}
                given |= {str(i): ast.unparse(arg) for i, arg in enumerate(positional)}
                given |= {k.arg or "**": ast.unparse(k.value) for k in keywords}
                found.append(given)
    return found


def _words(tree: ast.Module) -> Iterator[str]:
    for node in walk(tree):
        match node:
            case ast.Name(name) | ast.Attribute(_, name):
                yield name
            case ast.arg(name) | ast.keyword(str(name)):
                yield name
            case ast.Import(aliases):
                yield from (part for alias in aliases for part in alias.name.split("."))
            case ast.ImportFrom(module, aliases):
                yield from (module or "").split(".")
                yield from (alias.name for alias in aliases)
