"""What the host decides by a number that it has read."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_OF_RANKS = re.compile(r"(^|_)(reduce|gather|broadcast)(_|$)")
_PASSED = operators.TO_DEVICE | {Op.GETITEM, Op.ITEM, "max", "min", "sum"}
_IS = (ast.Is, ast.IsNot, ast.In, ast.NotIn)


def tests_of(here: Surroundings, code: ast.expr, users: Sequence[Node]) -> list[ast.AST]:
    """Return the statements whose tests a number decides, through a name as well: ``if n > 0:``."""
    asked = {*users, here.value(code)} - {None}
    tests = [n for n in here.nodes if isinstance(n, (ast.If, ast.IfExp, ast.Assert))]
    parts = ((t, part) for t in tests for part in walk(t.test) if isinstance(part, ast.expr))
    return list(dict.fromkeys(t for t, part in parts if here.value(part) in asked))


def is_check(code: ast.AST) -> bool:
    """Tell whether a test only finds mistakes of the caller: ``if n != m: raise ValueError``."""
    fails = isinstance(code, ast.If) and isinstance(code.body[-1], ast.Raise) and not code.orelse
    return fails or isinstance(code, ast.Assert)


def leaves(code: ast.AST) -> bool:
    """Tell whether a test ends a loop: ``if n == beams: best = scores.max(0); break``."""
    return isinstance(code, ast.If) and isinstance(code.body[-1], ast.Break)


def is_tested(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether code is the whole of a test: ``while x.item():``."""
    inner: ast.AST = code
    for outer in here.around(code):
        if isinstance(outer, (ast.If, ast.IfExp, ast.While, ast.Assert)) and outer.test is inner:
            return True
        inner = outer
    return False


def is_asked_before(here: Surroundings, code: ast.expr, tensor: ast.expr) -> bool:
    """Tell whether the test around a read has waited for the same: ``if t > 0: add(t.item())``.

    What was computed by then is read at once.
    """
    read = ast.unparse(tensor)
    inner: ast.AST = code
    for outer in here.around(code):
        if isinstance(outer, (ast.If, ast.IfExp)) and inner is not outer.test:
            for part in walk(outer.test):
                match part:
                    case ast.Compare(left, [how], [right]) if not isinstance(how, _IS):
                        if read in {ast.unparse(left), ast.unparse(right)}:
                            return True
        if isinstance(outer, ast.stmt):
            inner = outer
    return False


def is_told_by_others(node: Node) -> bool:
    """Tell whether the host made a number, which other ranks then wrote to: ``reduce(flag)``.

    It decides by what they say, as whether all are to stop.
    """
    while node.args and node.op in _PASSED:
        node = node.args[0]
    if node.op == Op.CALL and _OF_RANKS.search(str(node.args[0].value)):
        return any(_is_number_of_host(arg) for arg in node.args[1:])
    return _is_number_of_host(node)


def _is_number_of_host(node: Node) -> bool:
    return node.op in (operators.FACTORIES | {"as_tensor", "tensor"}) - operators.RANDOM
