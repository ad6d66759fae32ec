"""From an expression of the user to its node."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph import halves, operators, torch_names
from npufix.rewriters.graph.attributes import is_made_once
from npufix.rewriters.graph.canonical import arithmetic, dtype_of, field_of, new_axis
from npufix.rewriters.graph.dataflow import Evaluation, Observable
from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.graph.nodes import Serial
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
    from npufix.rewriters.graph.nodes import Graph, Node

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
    """Evaluates expressions symbolically; ``FunctionReader`` adds the statements."""

    def __init__(
        self,
        names: ModuleNames,
        cls: ast.ClassDef | None,
        graph: Graph,
        declared: Mapping[str, str] | None = None,
    ) -> None:
        self.names = names
        self.cls = cls
        self.graph = graph
        self.declared = declared or {}
        """Parameters of a rule that stand for submodules or activations."""
        self.env: dict[str, Node] = {}
        self.outside: frozenset[str] = frozenset()
        """Names that other functions may bind at any time: ``global``, ``nonlocal``."""
        self.is_module = False
        self.reshapes = False
        """Whether tensors get other shapes in place: then these have moments as values do."""
        self.frame: dict[str, Node] = {}
        """The names of the function itself while a helper is read."""
        self.inner: dict[Node, FunctionNode] = {}
        """Functions and lambdas that the function defines."""
        self.made: dict[Node, int] = {}
        """New tensors, with the number of others of the same contents."""
        self.moved: dict[str, int] = {}
        """When an attribute of this name was set last, under "" any attribute."""
        self.ranks: Mapping[Node, int] = {}
        """Never changed, only exchanged: evaluations keep it."""
        self.stored: dict[tuple[Node, str], Node] = {}
        self.path: tuple[tuple[Node, bool], ...] = ()
        self.epoch = 0
        self.effects = 0
        self.serial = 0
        self.depth = 0
        self.maybe = 0
        self.statement: ast.stmt | None = None
        self.block: list[ast.stmt] = []
        self.before: dict[str, Node] = {}
        self.evaluations: list[Evaluation] = []
        self.observables: list[Observable] = []
        self.places: dict[Node, list[ast.expr | ast.stmt]] = {}
        self.touched: set[Node] = set()
        self.captured: set[str] = set()

    def observe(self, kind: str, node: Node) -> None:
        """Record something that the outside can see."""
        self.observables.append(Observable(kind, node, self.path))

    def effect(self, kind: str, node: Node) -> Node:
        """Record something after which a tensor may hold other values."""
        self.observe(kind, node)
        self.effects += 1
        self.epoch = self.effects
        if kind not in {"write", "def", "try", "Assert"}:
            self.stored.clear()  # other code may have set the attributes
        return node

    def unique(self) -> Serial:
        """Return a number that no other call of this function has."""
        self.serial += 1
        return Serial(self.serial)

    def op(self, op: str, *args: Node, value: Hashable = None) -> Node:
        """Return a node computed now."""
        return self.graph.node(op, *args, value=value, epoch=self.epoch)

    def about(self, op: str, *args: Node) -> Node:
        """Return a length or number of dimensions, which a tensor keeps unless it is reshaped."""
        return self.graph.node(op, *args, epoch=self.epoch if self.reshapes else 0)

    def bind(self, name: str, node: Node) -> None:
        """Give a name a value."""
        if name in self.outside:
            self.effect("rebind", self.op(Op.REBIND, node, value=name))
        else:
            self.env[name] = node

    def read(self, code: ast.expr) -> Node:
        """Return the value of an expression and remember where it was computed."""
        node = self._read(code)
        self.record(node, code)
        return node

    def record(self, node: Node, code: ast.expr | ast.stmt) -> None:
        """Remember which code computes a value."""
        if not (isinstance(code, ast.Name) or self.names.home):  # reading a name computes nothing
            self.places.setdefault(node, []).append(code)
        if self.depth == 0 and self.statement is not None:
            self.evaluations.append(
                Evaluation(
                    node,
                    code,
                    self.statement,
                    self.block,
                    self.before,
                    self.ranks,
                    certain=self.maybe == 0,
                )
            )

    def _read(self, code: ast.expr) -> Node:  # noqa: C901, PLR0911, PLR0912 - one case a syntax
        match code:
            case ast.Constant(value):
                return self.graph.constant(repr(value) if isinstance(value, bytes) else value)
            case ast.Name(name):
                return self._name(name)
            case ast.Attribute():
                return self._attribute(code)
            case ast.UnaryOp(op, operand):
                return arithmetic(self.graph, _UNARY[type(op)], [self.read(operand)], self.epoch)
            case ast.BinOp(left, op, right):
                args = [self.read(left), self.read(right)]
                return arithmetic(self.graph, BINARY[type(op)], args, self.epoch)
            case ast.Compare(left, [op], [right]):
                return self.op(_COMPARE[type(op)], self.read(left), self.read(right))
            case ast.Compare(left, ops, rights):
                spelled = tuple(_COMPARE[type(op)] for op in ops)
                if _assigns(code):
                    return self._opaque(code)
                return self.op(Op.COMPARE, *map(self.read, [left, *rights]), value=spelled)
            case ast.BoolOp() | ast.IfExp() if _assigns(code):
                return self._opaque(code)  # the assignment may be skipped
            case ast.BoolOp(op, values):
                nodes = [self.read(values[0]), *map(self._read_maybe, values[1:])]
                return self.op(Op.BOOLOP, *nodes, value=type(op).__name__)
            case ast.IfExp(test, body, orelse):
                return self.phi(self.read(test), self._read_maybe(body), self._read_maybe(orelse))
            case ast.Tuple(items) | ast.List(items):
                kind = "tuple" if isinstance(code, ast.Tuple) else "list"
                return self.graph.node(kind, *map(self.read, items))
            case ast.Starred(value):
                return self.op(Op.STAR, self.read(value))
            case ast.Subscript(value, index):
                return self._subscript(self.read(value), self.read(index))
            case ast.Slice(lower, upper, step):
                parts = [
                    self.read(p) if p else self.graph.constant(None) for p in (lower, upper, step)
                ]
                return self.graph.node(Op.SLICE, *parts)
            case ast.Call():
                return self.call(code)
            case ast.NamedExpr(ast.Name(name), value):
                node = self.read(value)
                self.bind(name, node)
                return node
            case ast.JoinedStr() | ast.FormattedValue():
                return self._opaque(code)
            case ast.Await() | ast.Yield() | ast.YieldFrom():
                return self.effect("suspend", self._opaque(code))
        return self._opaque(code)

    def _read_maybe(self, code: ast.expr) -> Node:
        """Read an expression that Python may skip."""
        ranks = self.ranks
        self.maybe += 1
        try:
            return self.read(code)
        finally:
            self.maybe -= 1
            self.ranks = ranks  # what is proven there may not have been computed

    def phi(self, test: Node, then: Node, other: Node) -> Node:
        """Return the value that depends on a branch."""
        return then if then is other else self.graph.node(Op.PHI, test, then, other)

    def _opaque(self, code: ast.expr | ast.stmt) -> Node:
        """Return code that is not looked into, with the values of the names it reads."""
        inside = list(walk(code))
        names = {n.id for n in inside if isinstance(n, ast.Name)}
        free = [self._name(name) for name in sorted(names) if name in self.env]
        node = self.op(Op.OPAQUE, *free, value=f"{self.names.home} {ast.dump(code)}".lstrip())
        if any(isinstance(n, _CALLS) for n in inside):
            self.effect("opaque", node)
        for later in inside:  # what is evaluated when other values may have the names
            if isinstance(later, (ast.Lambda, ast.GeneratorExp)):
                self.captured |= {n.id for n in walk(later) if isinstance(n, ast.Name)}
        for name in _assigns(code):
            self.bind(name, self.op(Op.OPAQUE, node, value=(self.unique(), name)))
        return node

    def _name(self, name: str) -> Node:
        names = self.names
        if name in self.outside:
            return self.op(Op.OUTSIDE, value=name)
        if name in self.env:
            node = self.env[name]
            self.touched.add(node)
            again = node.op == Op.OUTSIDE and names.is_rebound(name)
            return self.op(Op.OUTSIDE, value=name) if again else node
        if name in names.imports:
            return self.graph.node(Op.GLOBAL, value=names.imports[name])
        full = f"{names.home}.{name}" if names.home and name in names.bound else name
        epoch = self.epoch if names.is_rebound(name) else 0
        return self.graph.node(Op.GLOBAL, value=full, epoch=epoch)

    def is_self(self) -> bool:
        """Tell whether ``self`` is what it is called: the object that the method belongs to."""
        found = self.env.get("self")
        return found is not None and found.op == Op.PARAM and found.value == "self"

    def _is_local(self, code: ast.expr) -> bool:
        while isinstance(code, ast.Attribute):
            code = code.value
        return isinstance(code, ast.Name) and (code.id in self.env or code.id in self.outside)

    def dotted(self, code: ast.expr) -> str | None:
        """Return the imported name that an expression spells, local names aside."""
        return None if self._is_local(code) else self.names.dotted(code)

    def _attribute(self, code: ast.Attribute) -> Node:  # noqa: PLR0911 - one case an attribute
        dotted = self.dotted(code)
        if dotted in torch_names.DTYPES:
            return self.graph.node(Op.DTYPE, value=dotted)
        if dotted is not None:
            return self.graph.node(Op.GLOBAL, value=dotted)
        base = self.read(code.value)
        if (base, code.attr) in self.stored:
            return self.stored[base, code.attr]
        match code.attr:
            case "dtype":
                return dtype_of(self.graph, base, self.epoch if self.reshapes else 0)
            case "shape":
                return self.about(Op.SHAPE, base)
            case "ndim":
                return self.about(Op.RANK, base)
            case "T":
                return self.op("t", base)
            case "data" | "grad" | "mT" | "real" | "imag":
                return self.op(code.attr, base)
        return field_of(self.graph, base, code.attr) or self.attribute_of(base, code.attr)

    def attribute_of(self, base: Node, name: str) -> Node:
        """Return an attribute; one that only ``__init__`` binds is the same at all times."""
        is_own = self.cls is not None and base.op == Op.PARAM and base.value == "self"
        fixed = is_own and self.cls is not None and is_made_once(self.names, self.cls, name)
        epoch = 0 if fixed else max(self.epoch, self.moved.get(name, 0))
        return self.graph.node(Op.ATTR, base, value=name, epoch=epoch)

    def _subscript(self, base: Node, index: Node) -> Node:
        if index.op == Op.CONST and isinstance(index.value, int):
            return self.item(base, index.value)
        added = new_axis(self.graph, base, index, self.epoch)
        if added is not None:
            return added
        if not self.reshapes:
            half = halves.subscript(self.graph, base, index, self.ranks, self.epoch)
            if half is not None:
                return half
        return self.op(Op.GETITEM, base, index)

    def item(self, base: Node, index: int) -> Node:
        """Return element ``index`` of a pair, a shape, a tuple or a tensor."""
        if base.op in operators.PAIRS or base.op in {"chunk", "split", "unbind"}:
            half = None if self.reshapes else halves.part(self.graph, base, index, self.ranks)
            return half or self.graph.node(Op.ITEM, base, value=index)
        if base.op == Op.SHAPE:
            number = self.graph.constant(index)
            return self.graph.node(Op.SIZE, base.args[0], number, epoch=base.epoch)
        fits = base.op == Op.TUPLE and -len(base.args) <= index < len(base.args)
        if fits and all(arg.op != Op.STAR for arg in base.args):
            return base.args[index]
        return self.op(Op.GETITEM, base, self.graph.constant(index))

    def call(self, code: ast.Call) -> Node:
        """Return the value of a call."""
        return self.unknown(code)

    def arguments(self, code: ast.Call) -> tuple[list[Node], dict[str, Node]]:
        """Read the arguments of a call."""
        args = [self.read(arg) for arg in code.args]
        return args, {k.arg or "**": self.read(k.value) for k in code.keywords}

    def unknown(self, code: ast.Call) -> Node:
        """Read a call that may do anything."""
        target = self.read(code.func)
        args, keywords = self.arguments(code)
        value = (self.unique(), *keywords)
        return self.effect("call", self.op(Op.CALL, target, *args, *keywords.values(), value=value))


def _assigns(code: ast.expr | ast.stmt) -> list[str]:
    """Return the names that ``:=`` assigns somewhere in an expression, sorted."""
    return sorted({n.target.id for n in walk(code) if isinstance(n, ast.NamedExpr)})
