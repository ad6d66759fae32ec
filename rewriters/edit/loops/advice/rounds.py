"""What the rounds of a loop bind to names, and what code reads through them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_DEEPEST = 4
"""Names that are followed: ``part = x[rows]``, ``rows = slice(start, end)``."""


def list_bound(body: Sequence[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a round binds, each with its value; ``a, b = x, y`` binds two."""
    for node in walk(*body):
        match node:
            case ast.Assign([ast.Name(name)], value):
                yield name, value
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                for target, value in zip(targets, values, strict=True):
                    yield from list_bound([ast.Assign([target], value)])


def follow(
    code: Sequence[ast.AST], bound: Mapping[str, ast.expr], depth: int = _DEEPEST
) -> Iterator[ast.AST]:
    """Yield the nodes of code, and of what the names in it are bound to."""
    for node in walk(*code):
        yield node
        if isinstance(node, ast.Name) and node.id in bound and depth:
            yield from follow([bound[node.id]], bound, depth - 1)
