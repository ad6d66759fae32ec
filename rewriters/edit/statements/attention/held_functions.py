"""What an imported function is called where a name or an attribute of one's own holds it."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.vendor_operators import find_imported_name
from npufix.rewriters.facts.steps.functions import list_given
from npufix.rewriters.graph.attributes import list_assigned
from npufix.rewriters.graph.modules.names import list_imported_names
from npufix.rewriters.graph.modules.syntax import SIMPLE_STATEMENTS, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npufix.rewriters.edit.statements.surroundings import Surroundings


def find_function(here: Surroundings, code: ast.expr, own: Mapping[str, str]) -> str:
    """Return the full name of the function that is called, "" where it is none that is imported.

    ``self.attend = flash_attn_func``; ``attend = flash_attn_func`` in a module, beside ``None``
    where the package is missing; ``from flash_attn import ...`` in the function itself, which is
    what ``list_imported_here`` returns: ``own``.
    """
    known = find_imported_name(here, code)
    if known:
        return known
    name, _, rest = ast.unparse(code).partition(".")
    if name in own:
        return f"{own[name]}.{rest}".rstrip(".")
    tree = here.flow.names.tree
    match code:
        case ast.Attribute(ast.Name("self"), attribute) if here.flow.cls is not None:
            assigned = list_assigned(here.flow.names, here.flow.cls, attribute)
            return _only(here, [value for _, value in assigned])
        case ast.Name() if tree is not None and name in (held := _list_held(tree)):
            return "" if name in _list_bound(here) else _only(here, held[name])
    return ""


def _only(here: Surroundings, values: Iterable[ast.expr | None]) -> str:
    """Return the one imported function among values, "" if there are several or others."""
    some = [v for v in values if not (isinstance(v, ast.Constant) and v.value is None)]
    found = {"" if v is None else find_imported_name(here, v) for v in some}
    return found.pop() if len(found) == 1 else ""


@lru_cache(maxsize=2)  # each function of a module asks
def _list_held(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Return what a module assigns to each name."""
    found: dict[str, list[ast.expr]] = {}
    for node in walk(tree, closed=SIMPLE_STATEMENTS):
        match node:
            case ast.Assign([ast.Name(name), *_], value):
                found.setdefault(name, []).append(value)
    return found


def list_imported_here(here: Surroundings) -> dict[str, str]:
    """Return what the function itself imports, unless it binds the name again."""
    imports = [n for n in here.nodes if isinstance(n, (ast.Import, ast.ImportFrom))]
    found = {name: full for node in imports for name, full in list_imported_names(node).items()}
    bound = _list_bound(here) if found else ()
    return {name: full for name, full in found.items() if name not in bound}


def _list_bound(here: Surroundings) -> set[str]:
    """Return the names that the function gives a meaning by itself."""
    stored = (n for n in here.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return list_given(here.flow.function) | {n.id for n in stored}
