"""Loops over rows that lie on the host, where no kernel runs for a round."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.given.facts import Facts
from npufix.rewriters.facts.annotations import annotation
from npufix.rewriters.facts.host_tensors import is_brought_to_host, is_made_on_host
from npufix.rewriters.facts.kinds.arrays import is_of_numpy
from npufix.rewriters.graph.modules.syntax import last_name, list_names, walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.edit.loops.given.reading import Loop
    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Evaluation, Node

_COMPUTES = (ast.AugAssign, ast.BinOp, ast.Call, ast.Compare, ast.Subscript, ast.UnaryOp)
_LISTS = re.compile(r"(?i)(list|sequence|tuple)\[")
_OF_NUMBERS = re.compile(r"(?i)(list|sequence|tuple)\[(int|float)(, \.\.\.)?\]|int|float")


def fills_host(flow: FunctionFlow, inside: Sequence[Evaluation]) -> bool:
    """Tell whether all that a loop writes to is an array, or was made on the host."""
    written = _list_written(inside)
    of_host = is_of_numpy if flow.function.name == "forward" else _is_of_host
    nodes = [Facts(flow, inside).node(code) for code in written]
    return bool(nodes) and all(node is not None and of_host(node) for node in nodes)


def calls_with_rows(facts: Facts, loop: Loop) -> bool:
    """Tell whether what is filled on the host is computed of rows of the device by a function.

    ``out = torch.zeros(n)``, into which each round copies ``out[i] = overlap(x[i], y[i])``.
    """
    for code in loop.body:
        match code:
            case ast.Assign([ast.Subscript()], ast.Call(ast.Name(), given)):
                rows = [arg for arg in given if isinstance(arg, ast.Subscript)]
                nodes = [facts.node(row.value) for row in rows]
                if nodes and not any(node is None or _is_of_host(node) for node in nodes):
                    return True
    return False


def _list_written(inside: Sequence[Evaluation]) -> list[ast.expr]:
    """Return what the rounds of a loop write into."""
    stores = [t for e in inside if isinstance(e.code, ast.Assign) for t in e.code.targets]
    return [store.value for store in stores if isinstance(store, ast.Subscript)]


def _stays_on_host(flow: FunctionFlow, loop: Loop, inside: Sequence[Evaluation]) -> bool:
    """Tell whether a mask is made on the host of what lies there: no kernel runs in any round.

    ``for i, n in enumerate(lens): mask[i, :n] = True`` with ``lens: list[int]``, and ``mask`` is
    moved afterwards; where ``n`` may be an element of a tensor, the host may wait for each.
    """
    written = _list_written(inside)
    if not written:
        return False
    facts = Facts(flow, inside)
    nodes = [facts.node(code) for code in written]
    if not all(node is not None and is_made_on_host(node) for node in nodes):
        return False
    known = list_names(loop.target).union(*map(list_names, written))
    parts = [loop.items, *loop.body]
    called = {id(n.func) for part in parts for n in walk(part) if isinstance(n, ast.Call)}
    read = [
        n
        for part in parts
        for n in walk(part)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and id(n) not in called
    ]
    others = [n for n in read if n.id not in known]
    listed = any(_LISTS.match(_annotation_of(flow, facts, n)) for n in others)
    return listed and all(_holds_numbers(flow, facts, n) for n in others)


def _holds_numbers(flow: FunctionFlow, facts: Facts, code: ast.Name) -> bool:
    given = _annotation_of(flow, facts, code)
    return facts.is_tensor(code) is False or _OF_NUMBERS.fullmatch(given) is not None


def _annotation_of(flow: FunctionFlow, facts: Facts, code: ast.Name) -> str:
    node = facts.node(code)
    return annotation(flow, str(node.value)) if node is not None and node.op == Op.PARAM else ""


def is_of_host_alone(flow: FunctionFlow, loop: Loop, inside: Sequence[Evaluation]) -> bool:
    """Tell whether no kernel runs in any round: of copies, or of a mask that is made there.

    Nor are those rows for which a function calls itself: ``[self.encode(part) for part in texts]``.
    """
    made = [loop.made] if loop.made is not None else [one.made for one in loop.lists]
    codes = list(walk(*loop.body, *made))
    if loop.body and not made and not any(isinstance(code, _COMPUTES) for code in codes):
        return True  # ``for tensor in tensors: tensor = None``
    own = {flow.function.name, f"self.{flow.function.name}"}
    calls = (n.func for n in codes if isinstance(n, ast.Call))
    if any(last_name(called) in own and ast.unparse(called) in own for called in calls):
        return True
    return _reads_copies(flow, inside) or _stays_on_host(flow, loop, inside)


def _reads_copies(flow: FunctionFlow, inside: Sequence[Evaluation]) -> bool:
    """Tell whether a loop takes rows of what the host has a copy of: ``rows = x.cpu()[1:-1]``."""
    if not inside or "cpu" not in flow.by_operation:
        return False
    facts = Facts(flow, inside)
    rows = [facts.node(e.code.value) for e in inside if isinstance(e.code, ast.Subscript)]
    return any(node is not None and is_brought_to_host(node) for node in rows)


def _is_of_host(node: Node) -> bool:
    return is_of_numpy(node) or is_made_on_host(node)
