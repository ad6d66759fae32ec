"""Code of which only one part is computed, whichever way is taken: ``if``, ``else``, ``return``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node


def is_apart(here: Surroundings, code: ast.AST, call: ast.expr, parts: Collection[Node]) -> bool:
    """Tell whether what a call needs can change without a change of some code.

    They stand in two branches, and the code has no value of ``parts`` by a name from before them.
    """
    if not isinstance(code, ast.expr) or here.loop_of(call) is not None:
        return False
    split = _find_split(here, code, call)
    if split is None:
        return False
    named = {n.id for n in walk(code) if isinstance(n, ast.Name) and here.value(n) in parts}
    return all(
        n.lineno > split.lineno
        for n in here.nodes
        if isinstance(n, ast.Name) and n.id in named and isinstance(n.ctx, ast.Store)
    )


def _find_split(here: Surroundings, code: ast.expr, call: ast.expr) -> ast.If | None:
    """Return the branch that leads to one of two expressions alone."""
    for branch in (*here.around(code), *here.around(call)):
        if not isinstance(branch, ast.If):
            continue
        ways = [_way(branch, code), _way(branch, call)]
        if set(ways) == {"body", "orelse"}:
            return branch
        if set(ways) == {"body", "after"} and isinstance(branch.body[-1], (ast.Return, ast.Raise)):
            return branch
    return None


def _way(branch: ast.If, code: ast.expr) -> str:
    """Return which statements of a branch code stands in, or that it stands behind all of it."""
    if _holds(branch.body, code):
        return "body"
    if branch.orelse and _holds(branch.orelse, code):
        return "orelse"
    return "after" if code.lineno > (branch.end_lineno or 0) else ""


def _holds(block: Sequence[ast.stmt], code: ast.expr) -> bool:
    first, last = block[0], block[-1]
    end = (last.end_lineno or 0, last.end_col_offset or 0)
    return (first.lineno, first.col_offset) <= (code.lineno, code.col_offset) <= end
