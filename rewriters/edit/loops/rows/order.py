"""Whether a round needs what the round before it has left in a name, and what it writes to."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.subscripts import flatten
from npufix.rewriters.edit.loops.given.values import CannotBatchError
from npufix.rewriters.graph.modules.syntax import last_name, list_names, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

EFFECT = (
    "it does something else beside computing rows: collect the numbers that it needs first, then "
    "compute all rows at once, as in torch.arange(n, device=x.device) < lengths[:, None]"
)
IN_PLACE: dict[str, ast.operator | None] = {
    "add_": ast.Add(), "copy_": None, "div_": ast.Div(), "mul_": ast.Mult(), "sub_": ast.Sub()
}  # fmt: skip
"""Methods that write into a row what an operator, or nothing else, computes."""
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
    """Return the names that nothing but ``total += f(x[i])`` is about, however often a round."""
    names = Counter(n.id for s in code for n in walk(s) if isinstance(n, ast.Name))
    added = Counter(
        s.target.id
        for s in code
        if isinstance(s, ast.AugAssign)
        and isinstance(s.op, (ast.Add, ast.Sub))
        and isinstance(s.target, ast.Name)
    )
    return {name for name, times in added.items() if names[name] == times}


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


def list_written(code: Sequence[ast.stmt]) -> Iterator[ast.Subscript]:
    """Yield what statements write to.

    Raises:
        CannotBatchError: one of them writes in another way.

    """
    for statement in code:
        for node in walk(statement):
            match node:
                case ast.Subscript(ctx=ast.Store()):
                    yield node
                case ast.Call(ast.Attribute(owner, called)) if called.endswith(
                    "_"
                ) and not called.endswith("__"):
                    if not isinstance(owner, ast.Subscript) or called not in {
                        "fill_",
                        "zero_",
                        *IN_PLACE,
                    }:
                        raise CannotBatchError(EFFECT)
                    yield owner


def is_one_number(code: Sequence[ast.stmt], key: str) -> bool:
    """Tell whether all that is written to a tensor is one number, whichever rows come last."""
    nodes = [node for statement in code for node in walk(statement)]
    stored = [
        ast.unparse(node.value)
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Subscript)
        and ast.unparse(flatten(node.targets[0])[0]) == key
    ]
    every = [1 for target in list_written(code) if ast.unparse(flatten(target)[0]) == key]
    plain = re.fullmatch(r"-?[\d.]+|True|False", stored[0] if stored else "") is not None
    return plain and len(stored) == len(every) and len(set(stored)) == 1
