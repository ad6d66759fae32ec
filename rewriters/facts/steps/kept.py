"""What a step computes only once, and keeps: ``if self.mask is None: self.mask = ...``."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import nodes_of

if TYPE_CHECKING:
    from npufix.rewriters.graph.dataflow import FunctionFlow

_FIRST_STEP = re.compile(r"len\((self\.)?state(\[\w+\])?\) == 0|not (self\.)?state(\[\w+\])?")
"""What an optimizer asks before it makes what it keeps of a parameter."""


def is_kept(flow: FunctionFlow, line: int) -> bool:
    """Tell whether a line computes what is kept: ``if self.mask is None: self.mask = ...``.

    So it does behind ``if len(self.table) >= n: return``, where ``self.table`` is made anew.
    """
    if line and _is_grown(flow, line):
        return True
    around = (
        node
        for node in nodes_of(flow.function)
        if isinstance(node, ast.If)
        and node.body[0].lineno <= line <= (node.body[-1].end_lineno or line)
    )
    return any(
        _FIRST_STEP.fullmatch(ast.unparse(node.test))
        or _list_asked_for(node.test) & _attributes(node)
        for node in around
    )


def _is_grown(flow: FunctionFlow, line: int) -> bool:
    """Tell whether a line is reached only if what an attribute holds does not suffice."""
    body = flow.function.body
    made = {
        ast.unparse(target)
        for s in body
        if isinstance(s, ast.Assign) and (s.end_lineno or s.lineno) >= line
        for target in s.targets
        if isinstance(target, ast.Attribute)
    }
    before = (s for s in body if isinstance(s, ast.If) and (s.end_lineno or line) < line)
    return any(
        isinstance(leave, ast.If)
        and isinstance(leave.body[-1], ast.Return)
        and isinstance(leave.body[-1].value, ast.Constant | None)
        and made & {ast.unparse(n) for n in ast.walk(leave.test) if isinstance(n, ast.Attribute)}
        for outer in before
        for leave in ast.walk(outer)
    )


def _list_asked_for(test: ast.expr) -> set[str]:
    """Return what a test compares with ``None``, or misses: ``not hasattr(self, "queue")``."""
    found: set[str] = set()
    for code in ast.walk(test):
        match code:
            case ast.Compare(left, [ast.Is(), *_]):
                found.add(ast.unparse(left))
            case ast.UnaryOp(
                ast.Not(), ast.Call(ast.Name("hasattr"), [owner, ast.Constant(str(name))])
            ):
                found.add(f"{ast.unparse(owner)}.{name}")
    return found


def _attributes(code: ast.If) -> set[str]:
    """Return the attributes that a branch assigns, or ``self.register_buffer("name", x)`` makes."""
    found: set[str] = set()
    for statement in code.body:
        match statement:
            case ast.Assign(targets):
                found |= {ast.unparse(t) for t in targets if isinstance(t, ast.Attribute)}
            case ast.Expr(
                ast.Call(ast.Attribute(owner, "register_buffer"), [ast.Constant(str(name)), *_], _)
            ):
                found.add(f"{ast.unparse(owner)}.{name}")
    return found
