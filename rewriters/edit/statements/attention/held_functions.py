"""What an imported function is called where a name or an attribute of one's own holds it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.vendor_operators import find_imported_name
from npufix.rewriters.graph.attributes import list_assigned
from npufix.rewriters.graph.modules.names import list_imported_names
from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npufix.rewriters.edit.statements.surroundings import Surroundings


def find_function(here: Surroundings, code: ast.expr) -> str:
    """Return the full name of the function that is called, "" where it is none that is imported.

    ``self.attend = flash_attn_func``; ``attend = flash_attn_func`` in a module, beside ``None``
    where the package is missing; ``from flash_attn import ...`` in the function itself.
    """
    known = find_imported_name(here, code)
    if known:
        return known
    own = _list_imported_here(here)
    name, _, rest = ast.unparse(code).partition(".")
    if name in own:
        return f"{own[name]}.{rest}".rstrip(".")
    match code:
        case ast.Attribute(ast.Name("self"), attribute) if here.flow.cls is not None:
            held = list_assigned(here.flow.names, here.flow.cls, attribute)
            return _only(here, [value for _, value in held])
        case ast.Name(name) if here.flow.names.tree is not None and name not in _bound(here):
            assigned = (n for n in walk(*here.flow.names.tree.body) if isinstance(n, ast.Assign))
            return _only(here, [n.value for n in assigned if ast.unparse(n.targets[0]) == name])
    return ""


def _only(here: Surroundings, values: Iterable[ast.expr | None]) -> str:
    """Return the one imported function among values, "" if there are several or others."""
    some = [v for v in values if not (isinstance(v, ast.Constant) and v.value is None)]
    found = {"" if v is None else find_imported_name(here, v) for v in some}
    return found.pop() if len(found) == 1 else ""


def _list_imported_here(here: Surroundings) -> dict[str, str]:
    """Return what the function itself imports, unless it binds the name again."""
    imports = [n for n in here.nodes if isinstance(n, (ast.Import, ast.ImportFrom))]
    found = {name: full for node in imports for name, full in list_imported_names(node).items()}
    return {name: full for name, full in found.items() if name not in _bound(here)}


def _bound(here: Surroundings) -> set[str]:
    """Return the names that the function gives a meaning by itself."""
    args = here.flow.function.args
    given = {a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    stored = (n for n in here.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return given | {n.id for n in stored}
