"""Words for what the words of a function do not show: which elements it chooses, what it moves.

A pattern asks for more than an operation in a few cases where nearly every function has that
operation. What is not sure counts as found: reading the function decides.
"""

from __future__ import annotations

import ast
from functools import cached_property
from typing import TYPE_CHECKING

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.names import statements
from npufix.rewriters.graph.modules.syntax import (
    last_name,
    list_indexes,
    list_stored_names,
    nodes_of,
)
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from npufix.rewriters.graph.modules.names import FunctionNode
    from npufix.rewriters.graph.nodes import Node

CHOSEN_WRITE = "x[mask]="
"""An assignment to elements that are chosen by more than their number."""
CHOSEN_UPDATE = "x[mask]+="
CHOSEN_SUM = "x[mask].sum()"
POSITIONS = "where(mask)"
"""Positions that are found: ``nonzero``, by any name; ``where`` of three operands is none."""
MOVED = "zeros().to()"
"""A new tensor that is moved to another device."""
NORMED_SUM = "norm(x + y)"
TURNED = "cat((-x, y))"
FROM_THE_END = "x[..., i]"
"""A part by its number from the end: no feature to look for, its three dots are a word."""
FEATURES = frozenset(
    {CHOSEN_WRITE, CHOSEN_UPDATE, CHOSEN_SUM, POSITIONS, MOVED, NORMED_SUM, TURNED}
)
_BY_WORD = {
    "argwhere": POSITIONS, "cat": TURNED, "concat": TURNED, "concatenate": TURNED,
    "layer_norm": NORMED_SUM, "mean": CHOSEN_SUM, "nonzero": POSITIONS,
    "rearrange": TURNED, "stack": TURNED,
    "sum": CHOSEN_SUM, "to": MOVED, "where": POSITIONS,
}  # fmt: skip
_COUNTED = frozenset({"enumerate", "range"})


def feature_of(node: Node) -> str:
    """Return the word for what a node of a pattern is, "" if its operation says all."""
    operands = [a.args[0] if a.op == Op.AGAIN else a for a in node.args]  # "again": a new tensor
    inner = operands[0].op if operands else ""
    parts = {part.op for part in operands[0].args} if operands else set()
    is_sum = any(operand.op == "add" for operand in operands[:2])  # the module itself comes first
    asked = {
        Op.AUGMENT: (CHOSEN_UPDATE, inner == Op.GETITEM),
        "cat": (TURNED, bool(parts & {"neg", "sub"})),
        "layer_norm": (NORMED_SUM, is_sum),
        "mean": (CHOSEN_SUM, inner == Op.GETITEM),
        "module:LayerNorm": (NORMED_SUM, is_sum),
        "module:RMSNorm": (NORMED_SUM, is_sum),
        Op.SETITEM: (CHOSEN_WRITE, True),
        "stack": (TURNED, bool(parts & {"neg", "sub"})),
        "sum": (CHOSEN_SUM, inner == Op.GETITEM),
        "nonzero": (POSITIONS, True),
        "to": (MOVED, inner in operators.FACTORIES),
    }
    if node.op == Op.GETITEM:  # not every other element, ``x[..., ::2]``: that has more spellings
        index = [part.value for part in node.args[1].args if part.op == Op.CONST]
        return FROM_THE_END if index[:1] == [Ellipsis] and len(index) > 1 else ""
    feature, is_there = asked.get(node.op, ("", False))
    return feature if is_there else ""


def features_by_word(words: frozenset[str]) -> frozenset[str]:
    """Return the features that a helper of these words may have: it may be given anything."""
    found = {feature for word, feature in _BY_WORD.items() if word in words}
    if any(word.startswith("self.") for word in words):
        found.add(NORMED_SUM)  # by a module of any name
    return frozenset(found)


def features_in(
    function: FunctionNode, asked: frozenset[str], helpers: Collection[str]
) -> frozenset[str]:
    """Return which of some features a function has.

    ``helpers`` are the names of what may be inlined into it, and may return anything.
    """
    body = list(statements(function.body, inner=True))
    values = _Values(body, helpers)
    found = set[str]()
    if asked & {CHOSEN_WRITE, CHOSEN_UPDATE}:
        for statement in (s for s in body if isinstance(s, (ast.Assign, ast.AugAssign))):
            stored = [t.slice for t in _targets(statement) if isinstance(t, ast.Subscript)]
            if any(values.chooses(index) for index in stored):
                found.add(CHOSEN_UPDATE if isinstance(statement, ast.AugAssign) else CHOSEN_WRITE)
    wanted = asked - {CHOSEN_WRITE, CHOSEN_UPDATE}
    if wanted:
        for call in (n for n in nodes_of(function) if isinstance(n, ast.Call)):
            found.update(_of_call(call, values, wanted - found))
    return frozenset(found)


def _of_call(call: ast.Call, values: _Values, wanted: frozenset[str]) -> Iterator[str]:
    name = last_name(call.func)
    if NORMED_SUM in wanted and any(values.may_be(a, _is_sum) for a in call.args[:1]):
        yield NORMED_SUM
    if _BY_WORD.get(name) not in wanted:
        return
    receiver = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    operands = [*receiver, *call.args[:1], *(k.value for k in call.keywords)]
    match name:
        case "nonzero" | "argwhere":
            yield POSITIONS
        case "where" if len(call.args) + len(call.keywords) == 1:
            yield POSITIONS
        case "sum" | "mean" if any(values.may_be(o, values.is_choice) for o in operands):
            yield CHOSEN_SUM
        case "to" if any(values.may_be(r, _is_created) for r in receiver):
            yield MOVED
        case "cat" | "concat" | "concatenate" | "rearrange" | "stack":
            if any(values.may_be(o, values.holds_negative) for o in operands):
                yield TURNED


def _is_sum(code: ast.expr) -> bool:
    match code:
        case ast.BinOp(_, ast.Add(), _) | ast.Call(ast.Attribute(_, "add" | "add_")):
            return True
    return False


def _is_negative(code: ast.expr) -> bool:
    match code:
        case ast.UnaryOp(ast.USub()) | ast.BinOp(_, ast.Sub(), _):
            return True
        case ast.Call(function):
            return last_name(function) in {"neg", "negative", "sub", "subtract"}
    return False


def _is_created(code: ast.expr) -> bool:
    return isinstance(code, ast.Call) and last_name(code.func) in operators.FACTORIES


class _Values:
    """What the names of a function may stand for, wherever they are assigned."""

    def __init__(self, body: Sequence[ast.stmt], helpers: Collection[str]) -> None:
        self.body = body
        self.helpers = helpers

    @cached_property
    def values(self) -> Mapping[str, Sequence[ast.expr | None]]:
        """Return what is assigned to each name, ``None`` if that is not clear."""
        found: dict[str, list[ast.expr | None]] = {}
        for statement in self.body:
            for name, value in _list_bound(statement):
                found.setdefault(name, []).append(value)
        return found

    @cached_property
    def counters(self) -> frozenset[str]:
        """Return the names that do nothing but count the rounds of loops."""
        loops = (s for s in self.body if isinstance(s, ast.For))
        return frozenset().union(*map(_counters, loops)) - self.values.keys()

    def may_be(self, code: ast.expr, test: Callable[[ast.expr], bool], depth: int = 3) -> bool:
        """Tell whether an expression, or what is assigned to a name, may pass a test."""
        match code:
            case ast.Name(name):
                known = self.values.get(name, ())
                return any(v is None or not depth or self.may_be(v, test, depth - 1) for v in known)
            case ast.IfExp() | ast.BoolOp() | ast.NamedExpr() | ast.Starred():
                return True
            case ast.Call(ast.Name(name)) | ast.Call(ast.Attribute(ast.Name("self"), name)):
                return name in self.helpers or test(code)  # a helper may return anything
        return test(code)

    def holds_negative(self, code: ast.expr) -> bool:
        """Tell whether a tuple may hold a negative or a difference; of anything else, yes."""
        if not isinstance(code, (ast.Tuple, ast.List)):
            return not isinstance(code, (ast.Name, ast.Constant, ast.Attribute))
        return any(self.may_be(part, _is_negative) for part in code.elts)

    def is_choice(self, code: ast.expr) -> bool:
        """Tell whether an expression takes elements that it does not name by numbers."""
        return isinstance(code, ast.Subscript) and self.chooses(code.slice)

    def chooses(self, index: ast.expr) -> bool:
        """Tell whether an index may hold a mask or positions."""
        parts = list_indexes(index)
        return not all(isinstance(part, ast.Slice) or self._is_number(part) for part in parts)

    def _is_number(self, code: ast.expr) -> bool:
        match code:
            case ast.Constant() | ast.JoinedStr():
                return True
            case ast.Name(name):
                return name in self.counters
            case ast.UnaryOp(ast.USub(), operand):
                return self._is_number(operand)
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv(), right):
                return self._is_number(left) and self._is_number(right)
        return False


def _list_bound(statement: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names that a statement binds, with ``None`` if it is not clear to what."""
    match statement:
        case ast.Assign(targets, value):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, value
                else:
                    yield from ((n, None) for n in list_stored_names(target))
        case ast.AnnAssign(ast.Name(name), _, value) if value is not None:
            yield name, value
        case ast.AugAssign(ast.Name(name)):
            yield name, None
        case ast.For(target, source) if not _is_counted(source):
            yield from ((n, None) for n in list_stored_names(target))
        case ast.With(items):
            targets = [item.optional_vars for item in items if item.optional_vars is not None]
            yield from ((n, None) for target in targets for n in list_stored_names(target))


def _counters(loop: ast.For) -> set[str]:
    """Return the names that count the rounds of a loop."""
    if not _is_counted(loop.iter):
        return set()
    match loop.target:
        case ast.Name(name) | ast.Tuple([ast.Name(name), *_]):
            return {name}
    return set()


def _is_counted(source: ast.expr) -> bool:
    return (
        isinstance(source, ast.Call)
        and isinstance(source.func, ast.Name)
        and source.func.id in _COUNTED
    )


def _targets(statement: ast.Assign | ast.AugAssign) -> Iterator[ast.expr]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        yield from target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
