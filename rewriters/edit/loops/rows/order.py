"""Whether a round needs what the round before it has left in a name."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.values import CannotBatchError
from npufix.rewriters.graph.modules.syntax import last_name, list_names, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

RECURRENCE = "a round needs what the round before it has left in a name"


def require_no_recurrence(code: Sequence[ast.stmt], known: set[str]) -> None:
    """Refuse a name that is read before it is bound in the same round.

    Raises:
        CannotBatchError: there is one.

    """
    stored = {
        n.id for s in code for n in walk(s) if isinstance(n, ast.Name) and not _reads(n)
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
            reads = {n.id for p in parts for n in walk(p) if isinstance(n, ast.Name) and _reads(n)}
            if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                reads.add(statement.target.id)
            if reads & stored - bound:
                raise CannotBatchError(RECURRENCE)
            follow(inner)
            bound.update(
                n.id for p in parts for n in walk(p) if isinstance(n, ast.Name) and not _reads(n)
            )

    follow(code)


def _reads(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def list_totals(code: Sequence[ast.stmt]) -> set[str]:
    """Return the names that nothing but ``total += f(x[i])`` is about, each once a round."""
    names = Counter(n.id for s in code for n in walk(s) if isinstance(n, ast.Name))
    return {
        s.target.id
        for s in code
        if isinstance(s, ast.AugAssign)
        and isinstance(s.op, (ast.Add, ast.Sub))
        and isinstance(s.target, ast.Name)
        and names[s.target.id] == 1
    }


class InFirst(ast.NodeTransformer):
    """Puts zero in the place of counters: ``y[j]`` has as many dimensions as ``y[0]``."""

    def __init__(self, counters: set[str]) -> None:
        self.counters = counters

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return zero for a counter."""
        return ast.Constant(0) if node.id in self.counters else node


def list_measured(code: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield what a loop takes the length of."""
    for statement in code:
        for node in walk(statement):
            match node:
                case ast.Call(ast.Name("len"), [argument]):
                    yield ast.unparse(argument)


def converts(code: ast.expr, written: Iterable[str]) -> bool:
    """Tell whether code makes a number of what a loop writes to: ``int(n[i])``."""
    names = {name for key in written for name in list_names(ast.parse(key))}
    return any(
        isinstance(node, ast.Call)
        and last_name(node.func) in {"int", "item"}
        and not names.isdisjoint(list_names(node))
        for node in walk(code)
    )
