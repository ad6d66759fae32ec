"""Questions about libcst statements, and how they move deeper into a block."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Iterable


def _tree(statements: Iterable[cst.CSTNode]) -> ast.Module:
    return ast.parse(cst.Module(list(statements)).code)  # type: ignore[arg-type]


def names_in(statements: Iterable[cst.CSTNode]) -> set[str]:
    """Return every name in some statements."""
    return {n.id for n in ast.walk(_tree(statements)) if isinstance(n, ast.Name)}


def list_bound(statements: Iterable[cst.CSTNode]) -> set[str]:
    """Return the names that some statements give another value."""
    stored = (ast.Store, ast.Del)
    nodes = [n for n in ast.walk(_tree(statements)) if isinstance(n, ast.Name)]
    return {n.id for n in nodes if isinstance(n.ctx, stored)}


def join_paragraphs(
    above: list[cst.EmptyLine], statement: cst.BaseStatement
) -> list[cst.EmptyLine]:
    """Return the lines above a removed statement and those above the next one, as one paragraph."""
    own = list(getattr(statement, "leading_lines", ()))
    if not any(line.comment for line in above):
        return own if own and own[0].comment is None else [*above, *own]
    return [*above, *(line for line in own if line.comment)]


class Deeper(cst.CSTTransformer):
    """Indents the lines after a backslash; libcst does that in brackets only."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def leave_SimpleWhitespace(  # noqa: N802 - the name that libcst asks for
        self, original_node: cst.SimpleWhitespace, updated_node: cst.SimpleWhitespace
    ) -> cst.SimpleWhitespace:
        """Indent what follows the line break, if there is one."""
        head, newline, tail = original_node.value.rpartition("\n")
        return updated_node.with_changes(
            value=f"{head}{newline}{self.unit}{tail}" if newline else tail
        )
