"""Arguments that are compared with what counts in a loop: experts, classes, rows."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def list_compared_with_counters(function: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield ``chosen`` for ``torch.where(chosen == e)`` in a loop of e over a range.

    With what its numbers are less than, for ``range(n)``: what is more belongs nowhere. Not for
    ``if layer == i:``, which asks for a number.
    """
    loops = [n for n in ast.walk(function) if isinstance(n, ast.For | ast.comprehension)]
    counted = {"range": lambda t: t, "enumerate": lambda t: getattr(t, "elts", [t])[0]}
    counters: dict[str, str] = {}
    for loop in loops:
        made = loop.iter
        if not isinstance(made, ast.Call) or getattr(made.func, "id", "") not in counted:
            continue
        kind = getattr(made.func, "id", "")
        name = getattr(counted[kind](loop.target), "id", "")
        whole = kind == "range" and len(made.args) == 1
        bound = ast.unparse(made.args[0]).removeprefix("self.") if whole else ""
        counters[name] = bound if re.fullmatch(r"\w+", bound) else ""
    for node in ast.walk(function):
        held = node.args if isinstance(node, ast.Call) else [getattr(node, "value", None)]
        held = [node.slice] if isinstance(node, ast.Subscript) else held
        for one in held:
            if isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.Eq):
                sides = [n.id for n in (one.left, one.comparators[0]) if isinstance(n, ast.Name)]
                known = next((counters[n] for n in sides if n in counters), None)
                yield from ((n, known) for n in sides if n not in counters and known is not None)
