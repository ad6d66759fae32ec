"""What the host decides by a number that it has read."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node


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
