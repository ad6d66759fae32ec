"""From an expression of the user to its node."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph import chunks, operators
from npufix.rewriters.graph.calls import CallReader
from npufix.rewriters.graph.canonical import arithmetic, dtype_of, field_of, new_axis
from npufix.rewriters.graph.modules import torch_names
from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.graph.nodes import Node
    from npufix.rewriters.graph.state import State

BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow",
    ast.MatMult: "matmul", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.BitAnd: "and",
    ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "lshift", ast.RShift: "rshift",
}  # fmt: skip
_COMPARE = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
    ast.In: "in", ast.NotIn: "notin", ast.Is: "is", ast.IsNot: "isnot",
}  # fmt: skip
_UNARY = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert", ast.Not: "not"}
_CALLS = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)


class ExpressionReader:
    """Evaluates expressions symbolically."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.calls = CallReader(state, self)

    def close(self) -> None:
        """Let go of the parts that know this one: else they keep the whole tree of the module.

        Only a collection of garbage would find that, and it costs a fifth of a scan.
        """
        vars(self.calls.helpers).clear()
        vars(self.calls).clear()

    def read(self, code: ast.expr) -> Node:
        """Return the value of an expression and remember where it was computed."""
        node = self.evaluate(code)
        self.state.record(node, code)
        return node

    def evaluate(  # noqa: C901, PLR0911, PLR0912 - one case a syntax
        self, code: ast.expr
    ) -> Node:
        """Return the value of an expression."""
        match code:  # what is frequent first
            case ast.Constant(value):
                return self.state.graph.constant(repr(value) if isinstance(value, bytes) else value)
            case ast.Name(name):
                return self.state.value_of(name)
            case ast.Attribute():
                return self._attribute(code)
            case ast.Call():
                return self.calls.call(code)
            case ast.Subscript(value, index):
                return self._subscript(self.read(value), self.read(index))
            case ast.UnaryOp(op, operand):
                return arithmetic(
                    self.state.graph, _UNARY[type(op)], [self.read(operand)], self.state.epoch
                )
            case ast.BinOp(left, op, right):
                args = [self.read(left), self.read(right)]
                return arithmetic(self.state.graph, BINARY[type(op)], args, self.state.epoch)
            case ast.Compare(left, [op], [right]):
                return self.state.op(_COMPARE[type(op)], self.read(left), self.read(right))
            case ast.Compare(left, ops, rights):
                spelled = tuple(_COMPARE[type(op)] for op in ops)
                if _assigns(code):
                    return self._opaque(code)
                return self.state.op(Op.COMPARE, *map(self.read, [left, *rights]), value=spelled)
            case ast.BoolOp() | ast.IfExp() if _assigns(code):
                return self._opaque(code)  # the assignment may be skipped
            case ast.BoolOp(op, values):
                nodes = [self.read(values[0]), *map(self.read_maybe, values[1:])]
                return self.state.op(Op.BOOLOP, *nodes, value=type(op).__name__)
            case ast.IfExp(test, body, orelse):
                return self.state.phi(
                    self.read(test), self.read_maybe(body), self.read_maybe(orelse)
                )
            case ast.Tuple(items) | ast.List(items):
                kind = "tuple" if isinstance(code, ast.Tuple) else "list"
                return self.state.graph.node(kind, *map(self.read, items))
            case ast.Starred(value):
                return self.state.op(Op.STAR, self.read(value))
            case ast.Slice(lower, upper, step):
                parts = [
                    self.read(p) if p else self.state.graph.constant(None)
                    for p in (lower, upper, step)
                ]
                return self.state.graph.node(Op.SLICE, *parts)
            case ast.NamedExpr(ast.Name(name), value):
                node = self.read(value)
                self.state.bind(name, node)
                return node
            case ast.JoinedStr() | ast.FormattedValue():
                return self._opaque(code)
            case ast.Await() | ast.Yield() | ast.YieldFrom():
                return self.state.effect("suspend", self._opaque(code))
        return self._opaque(code)

    def read_maybe(self, code: ast.expr) -> Node:
        """Read an expression that Python may skip."""
        ranks = self.state.ranks
        self.state.maybe += 1
        try:
            return self.read(code)
        finally:
            self.state.maybe -= 1
            self.state.ranks = ranks  # what is proven there may not have been computed

    def _opaque(self, code: ast.expr | ast.stmt) -> Node:
        """Return code that is not looked into, with the values of the names it reads."""
        inside = list(walk(code))
        names = {n.id for n in inside if isinstance(n, ast.Name)}
        free = [self.state.value_of(name) for name in sorted(names) if name in self.state.env]
        node = self.state.op(
            Op.OPAQUE, *free, value=f"{self.state.names.home} {ast.dump(code)}".lstrip()
        )
        if any(isinstance(n, _CALLS) for n in inside):
            self.state.effect("opaque", node)
        for later in inside:  # what is evaluated when other values may have the names
            if isinstance(later, (ast.Lambda, ast.GeneratorExp)):
                self.state.captured |= {n.id for n in walk(later) if isinstance(n, ast.Name)}
        for name in _assigns(code):
            self.state.bind(name, self.state.op(Op.OPAQUE, node, value=(self.state.unique(), name)))
        return node

    def _attribute(self, code: ast.Attribute) -> Node:  # noqa: PLR0911 - one case an attribute
        dotted = self.state.dotted(code)
        if dotted in torch_names.DTYPES:
            return self.state.graph.node(Op.DTYPE, value=dotted)
        if dotted is not None:
            return self.state.graph.node(Op.GLOBAL, value=dotted)
        base = self.read(code.value)
        if (base, code.attr) in self.state.stored:
            return self.state.stored[base, code.attr]
        match code.attr:
            case "dtype":
                return dtype_of(
                    self.state.graph, base, self.state.epoch if self.state.reshapes else 0
                )
            case "shape":
                return self.state.about(Op.SHAPE, base)
            case "ndim":
                return self.state.about(Op.RANK, base)
            case "T":
                return self.state.op("t", base)
            case "mT":
                dims = map(self.state.graph.constant, (-2, -1))
                return self.state.op("transpose", base, *dims)
            case "data" | "grad" | "real" | "imag":
                return self.state.op(code.attr, base)
        return field_of(self.state.graph, base, code.attr) or self.state.attribute_of(
            base, code.attr
        )

    def _subscript(self, base: Node, index: Node) -> Node:
        if index.op == Op.CONST and isinstance(index.value, int):
            return self.item(base, index.value)
        added = new_axis(self.state.graph, base, index, self.state.epoch)
        if added is not None:
            return added
        if not self.state.reshapes:
            half = chunks.subscript(
                self.state.graph, base, index, self.state.ranks, self.state.epoch
            )
            if half is not None:
                return half
        return self.state.op(Op.GETITEM, base, index)

    def item(self, base: Node, index: int) -> Node:
        """Return element ``index`` of a pair, a shape, a tuple or a tensor."""
        if base.op in operators.PAIRS or base.op in {"chunk", "split", "unbind"}:
            half = (
                None
                if self.state.reshapes
                else chunks.part(self.state.graph, base, index, self.state.ranks)
            )
            return half or self.state.graph.node(Op.ITEM, base, value=index)
        if base.op == Op.SHAPE:
            number = self.state.graph.constant(index)
            return self.state.graph.node(Op.SIZE, base.args[0], number, epoch=base.epoch)
        if base.op == "einops.rearrange" and not self.state.reshapes:
            half = chunks.leading(self.state.graph, base, index)
            if half is not None:
                return half
        fits = base.op == Op.TUPLE and -len(base.args) <= index < len(base.args)
        if fits and all(arg.op != Op.STAR for arg in base.args):
            return base.args[index]
        return self.state.op(Op.GETITEM, base, self.state.graph.constant(index))

    def arguments(self, code: ast.Call) -> tuple[list[Node], dict[str, Node]]:
        """Read the arguments of a call."""
        args = [self.read(arg) for arg in code.args]
        return args, {k.arg or "**": self.read(k.value) for k in code.keywords}

    def unknown(self, code: ast.Call) -> Node:
        """Read a call that may do anything."""
        target = self.read(code.func)
        args, keywords = self.arguments(code)
        value = (self.state.unique(), *keywords)
        return self.state.effect(
            "call", self.state.op(Op.CALL, target, *args, *keywords.values(), value=value)
        )


def _assigns(code: ast.expr | ast.stmt) -> list[str]:
    """Return the names that ``:=`` assigns somewhere in an expression, sorted."""
    return sorted({n.target.id for n in walk(code) if isinstance(n, ast.NamedExpr)})
