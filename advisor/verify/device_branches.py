"""Code that asks for the device it runs on: which lines are for an NPU, and how to run them here.

A test like ``x.device.type == "npu"`` is false wherever a verification runs on CPU. With the test
answered as on an NPU, the code below it runs, and the stand-in of torch_npu serves it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npufix.rewriters.edit.edit import span
from npufix.rewriters.graph.modules.names import source_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ASKS = re.compile(r"^(is_(torch_)?npu(_available)?|npu_is_available|is_ascend(_npu)?)$")
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def answer(test: ast.expr) -> bool | None:
    """Return what an expression is on an NPU, and is not elsewhere; None if it does not ask."""
    match test:
        case ast.Compare(left, [operator], [right]):
            return _compare(left, operator, right)
        case ast.Attribute(attr="is_npu"):
            return True
        case ast.Call(ast.Name(name) | ast.Attribute(attr=name)) if _ASKS.match(name):
            return True
        case ast.Call(ast.Attribute(ast.Attribute(attr="npu"), "is_available")):
            return True
        case ast.Call(ast.Attribute(owner, "startswith"), [ast.Constant("npu")]):
            return True if _names_a_device(owner) else None
    return None


def _compare(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool | None:
    for device, other in ((left, right), (right, left)):
        if not _names_a_device(device):
            continue
        if isinstance(other, ast.Constant) and other.value == "npu":
            if isinstance(operator, ast.Eq | ast.NotEq):
                return isinstance(operator, ast.Eq)
        elif isinstance(other, ast.Tuple | ast.List | ast.Set):
            names = [e.value for e in other.elts if isinstance(e, ast.Constant)]
            if "npu" in names and "cpu" not in names and isinstance(operator, ast.In | ast.NotIn):
                return isinstance(operator, ast.In)
    return None


def _names_a_device(code: ast.expr) -> bool:
    text = ast.unparse(code)
    return re.search(r"\bdevice(_type)?(\.type)?$|\bdevice_type\b|\.device\)$", text) is not None


def as_on_npu(text: str) -> str:
    """Return a module in which every such test is answered as on an NPU; lines stay where they are.

    Raises:
        SyntaxError: it is no Python.

    """
    lines = list(source_lines(text))
    answered = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.expr) and node.lineno == node.end_lineno:
            said = answer(node)
            if said is not None:
                answered.append((span(node, lines), said))
    for (line, start, _, end), said in sorted(answered, reverse=True):
        old = lines[line - 1]
        # A call: the compiler would drop the other branch of a literal, and its line with it.
        lines[line - 1] = f"{old[:start]}bool({int(said)}){old[end:]}"
    return "".join(lines)


@dataclass
class Branches:
    """The lines of a module that run on one kind of device only."""

    npu: set[int] = field(default_factory=set)
    others: set[int] = field(default_factory=set)
    tests: set[int] = field(default_factory=set)
    """The tests themselves: on one device they are answered in one way only."""


def branches(text: str) -> Branches:
    """Return which lines run on an NPU only, and which on other devices only."""
    found = Branches()
    for node in ast.walk(ast.parse(text)):
        for block in _blocks(node):
            _sort(block, found)
    return found


def _blocks(node: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def _sort(block: Sequence[ast.stmt], found: Branches) -> None:
    for number, statement in enumerate(block):
        said = _answer(statement.test) if isinstance(statement, ast.If) else None
        if not isinstance(statement, ast.If) or said is None:
            continue
        when_true, when_false = (found.npu, found.others) if said else (found.others, found.npu)
        end = statement.test.end_lineno or statement.lineno
        found.tests.update(range(statement.lineno, end + 1))
        _add(statement.body, when_true)
        # After a branch that leaves, the rest of the block is the other one.
        leaves = isinstance(statement.body[-1], _LEAVES)
        _add([*statement.orelse, *(block[number + 1 :] if leaves else ())], when_false)


def _answer(test: ast.expr) -> bool | None:
    """Return the answer of a condition that contains such a test."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _answer(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [_answer(value) for value in test.values]
        return next((part for part in parts if part is not None), None)
    return answer(test)


def _add(block: Sequence[ast.stmt], lines: set[int]) -> None:
    for statement in block:
        lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
