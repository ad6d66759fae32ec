"""Whether a round needs what the round before it has left in a name."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.values import CannotBatchError
from npufix.rewriters.graph.modules.syntax import list_names

if TYPE_CHECKING:
    from collections.abc import Sequence

RECURRENCE = "a round needs what the round before it has left in a name"


def require_no_recurrence(code: Sequence[ast.stmt], known: set[str]) -> None:
    """Refuse a name that is read before it is bound in the same round.

    Raises:
        CannotBatchError: there is one.

    """
    stored = {
        n.id for s in code for n in ast.walk(s) if isinstance(n, ast.Name) and not _reads(n)
    } - known
    bound: set[str] = set()

    def follow(statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            inner = (
                statement.body + statement.orelse
                if isinstance(statement, (ast.For, ast.If))
                else []
            )
            parts: list[ast.AST] = [statement]
            if isinstance(statement, ast.For):
                parts = [statement.iter]
                bound.update(list_names(statement.target))
            elif isinstance(statement, ast.If):
                parts = [statement.test]
            reads = {
                n.id for p in parts for n in ast.walk(p) if isinstance(n, ast.Name) and _reads(n)
            }
            if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                reads.add(statement.target.id)
            if reads & stored - bound:
                raise CannotBatchError(RECURRENCE)
            follow(inner)
            bound.update(
                n.id
                for p in parts
                for n in ast.walk(p)
                if isinstance(n, ast.Name) and not _reads(n)
            )

    follow(code)


def _reads(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def list_totals(code: Sequence[ast.stmt]) -> set[str]:
    """Return the names that nothing but ``total += f(x[i])`` is about, each once a round."""
    names = Counter(n.id for s in code for n in ast.walk(s) if isinstance(n, ast.Name))
    return {
        s.target.id
        for s in code
        if isinstance(s, ast.AugAssign)
        and isinstance(s.op, (ast.Add, ast.Sub))
        and isinstance(s.target, ast.Name)
        and names[s.target.id] == 1
    }
