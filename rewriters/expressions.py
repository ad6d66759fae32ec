"""From an expression of the user to its node."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING

from npufix.rewriters import torch_names
from npufix.rewriters.canonical import PAIRS, arithmetic, dtype_of, field_of, tensor_op
from npufix.rewriters.dataflow import Evaluation, Observable, UnsupportedCodeError
from npufix.rewriters.names import straight_line

if TYPE_CHECKING:
    from collections.abc import Hashable

    from npufix.rewriters.names import FunctionNode, ModuleNames
    from npufix.rewriters.nodes import Graph, Node

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
_MAX_INLINE_DEPTH = 3


class ExpressionReader:
    """Evaluates expressions symbolically; ``FunctionReader`` adds the statements."""

    def __init__(self, names: ModuleNames, cls: ast.ClassDef | None, graph: Graph) -> None:
        self.names = names
        self.cls = cls
        self.graph = graph
        self.env: dict[str, Node] = {}
        self.ranks: dict[Node, int] = {}
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
        self.lines: dict[Node, set[int]] = {}
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
        if kind in {"call", "opaque", "suspend"}:
            self.stored.clear()  # other code may have set the attributes
        return node

    def unique(self) -> int:
        """Return a number that no other call of this function has."""
        self.serial += 1
        return self.serial

    def op(self, op: str, *args: Node, value: Hashable = None) -> Node:
        """Return a node computed now."""
        return self.graph.node(op, *args, value=value, epoch=self.epoch)

    def read(self, code: ast.expr) -> Node:
        """Return the value of an expression and remember where it was computed."""
        node = self._read(code)
        self.record(node, code)
        return node

    def record(self, node: Node, code: ast.expr | ast.stmt) -> None:
        """Remember which code computes a value."""
        if not isinstance(code, ast.Name):  # reading a name computes nothing
            last = code.end_lineno or code.lineno
            self.lines.setdefault(node, set()).update(range(code.lineno, last + 1))
        if self.depth == 0 and self.statement is not None:
            self.evaluations.append(
                Evaluation(
                    node,
                    code,
                    self.statement,
                    self.block,
                    self.before,
                    dict(self.ranks),
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
                return self.op("compare", *map(self.read, [left, *rights]), value=spelled)
            case ast.BoolOp() | ast.IfExp() if _assigns(code):
                return self._opaque(code)  # the assignment may be skipped
            case ast.BoolOp(op, values):
                nodes = [self.read(values[0]), *map(self._read_maybe, values[1:])]
                return self.op("boolop", *nodes, value=type(op).__name__)
            case ast.IfExp(test, body, orelse):
                return self.phi(self.read(test), self._read_maybe(body), self._read_maybe(orelse))
            case ast.Tuple(items) | ast.List(items):
                kind = "tuple" if isinstance(code, ast.Tuple) else "list"
                return self.graph.node(kind, *map(self.read, items))
            case ast.Starred(value):
                return self.op("star", self.read(value))
            case ast.Subscript(value, index):
                return self._subscript(self.read(value), self.read(index))
            case ast.Slice(lower, upper, step):
                parts = [
                    self.read(p) if p else self.graph.constant(None) for p in (lower, upper, step)
                ]
                return self.graph.node("slice", *parts)
            case ast.Call():
                return self._call(code)
            case ast.NamedExpr(ast.Name(name), value):
                self.env[name] = self.read(value)
                return self.env[name]
            case ast.JoinedStr() | ast.FormattedValue():
                return self._opaque(code)
            case ast.Await() | ast.Yield() | ast.YieldFrom():
                return self.effect("suspend", self._opaque(code))
        return self._opaque(code)

    def _read_maybe(self, code: ast.expr) -> Node:
        """Read an expression that Python may skip."""
        self.maybe += 1
        try:
            return self.read(code)
        finally:
            self.maybe -= 1

    def phi(self, test: Node, then: Node, other: Node) -> Node:
        """Return the value that depends on a branch."""
        return then if then is other else self.graph.node("phi", test, then, other)

    def _opaque(self, code: ast.expr | ast.stmt) -> Node:
        """Return code that is not looked into, with the values of the names it reads."""
        free = sorted(
            {n.id for n in ast.walk(code) if isinstance(n, ast.Name) and n.id in self.env}
        )
        node = self.op("opaque", *(self._name(name) for name in free), value=ast.dump(code))
        calls = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
        if any(isinstance(n, calls) for n in ast.walk(code)):
            self.effect("opaque", node)
        for later in ast.walk(code):  # what is evaluated when other values may have the names
            if isinstance(later, (ast.Lambda, ast.GeneratorExp)):
                self.captured |= {n.id for n in ast.walk(later) if isinstance(n, ast.Name)}
        for name in _assigns(code):
            self.env[name] = self.op("opaque", node, value=(self.unique(), name))
        return node

    def _name(self, name: str) -> Node:
        if name in self.env:
            node = self.env[name]
            self.touched.add(node)
            return node
        return self.graph.node("global", value=self.names.imports.get(name, name))

    def _is_local(self, code: ast.expr) -> bool:
        while isinstance(code, ast.Attribute):
            code = code.value
        return isinstance(code, ast.Name) and code.id in self.env

    def dotted(self, code: ast.expr) -> str | None:
        """Return the imported name that an expression spells, local names aside."""
        return None if self._is_local(code) else self.names.dotted(code)

    def _attribute(self, code: ast.Attribute) -> Node:  # noqa: PLR0911 - one case an attribute
        dotted = self.dotted(code)
        if dotted in torch_names.DTYPES:
            return self.graph.node("dtype", value=dotted)
        if dotted is not None:
            return self.graph.node("global", value=dotted)
        base = self.read(code.value)
        if (base, code.attr) in self.stored:
            return self.stored[base, code.attr]
        match code.attr:
            case "dtype":
                return dtype_of(self.graph, base)
            case "shape":
                return self.graph.node("shape", base)
            case "ndim":
                return self.graph.node("rank", base)
            case "T":
                return self.op("t", base)
            case "data" | "grad" | "mT" | "real" | "imag":
                return self.op(code.attr, base)
        return field_of(self.graph, base, code.attr) or self.op("attr", base, value=code.attr)

    def _subscript(self, base: Node, index: Node) -> Node:
        if index.op == "const" and isinstance(index.value, int):
            return self.item(base, index.value)
        return self.op("getitem", base, index)

    def item(self, base: Node, index: int) -> Node:
        """Return element ``index`` of a pair, a shape, a tuple or a tensor."""
        if base.op in PAIRS or base.op in {"chunk", "split", "unbind"}:
            return self.graph.node("item", base, value=index)
        if base.op == "shape":
            return self.graph.node("size", base.args[0], self.graph.constant(index))
        if base.op == "tuple" and -len(base.args) <= index < len(base.args):
            return base.args[index]
        return self.op("getitem", base, self.graph.constant(index))

    def _call(self, code: ast.Call) -> Node:  # noqa: C901, PLR0911 - one case a kind of call
        dotted = self.dotted(code.func)
        if dotted is not None:
            return self._library_call(code, dotted)
        match code.func:
            case ast.Name("locals" | "vars" | "eval" | "exec" as name) if name not in self.env:
                raise UnsupportedCodeError(name)
            case ast.Name(name) if name not in self.env:
                function = self.names.functions.get(name)
                if function is not None and not function.decorator_list:
                    return self._inline(code, function, ())
                if name in torch_names.PURE_BUILTINS and hasattr(builtins, name):
                    return self._python(code, name)
            case ast.Attribute(ast.Name("self"), attr) if self.cls and "self" in self.env:
                method = self.names.method(self.cls, attr)
                if method is not None and not method.decorator_list:
                    return self._inline(code, method, (self.read(code.func.value),))
                return self._unknown(code)
            case ast.Attribute(owner, attr) if attr in torch_names.PURE_METHODS:
                base = self.read(owner)
                # A function of some module (``np.sum``) may do anything.
                unknown = base.op == "global"
                return self._unknown(code) if unknown else self._tensor_call(code, attr, (base,))
            case ast.Attribute(owner, attr) if attr.endswith("_") and not attr.endswith("__"):
                if attr in torch_names.CHANGES_SHAPE:
                    raise UnsupportedCodeError(attr)
                base = self.read(owner)
                node = self._tensor_call(code, attr, (base,))
                fresh = base.op.removesuffix("(*)") in torch_names.FRESH
                return node if fresh and isinstance(owner, ast.Call) else self.effect("write", node)
        return self._unknown(code)

    def _library_call(self, code: ast.Call, dotted: str) -> Node:
        module, _, name = dotted.rpartition(".")
        if module in torch_names.TORCH_FUNCTIONS and not name[:1].isupper():
            changes = {"out", "inplace"} & {k.arg for k in code.keywords}
            node = self._tensor_call(code, name, ())
            if name.endswith("_") or changes or name.startswith(("set_", "manual_seed")):
                return self.effect("write", node)
            return node
        if module.split(".")[0] in torch_names.PURE_MODULES:
            return self._python(code, dotted)
        return self._unknown(code)

    def _arguments(self, code: ast.Call) -> tuple[list[Node], dict[str, Node]]:
        args = [self.read(arg) for arg in code.args]
        return args, {k.arg or "**": self.read(k.value) for k in code.keywords}

    def _python(self, code: ast.Call, name: str) -> Node:
        args, keywords = self._arguments(code)
        if name == "int" and len(args) == 1 and args[0].op == "size":
            return args[0]
        return self.op(f"py:{name}", *args, *keywords.values(), value=tuple(keywords))

    def _tensor_call(self, code: ast.Call, name: str, bound: tuple[Node, ...]) -> Node:
        args, keywords = self._arguments(code)
        args = [*bound, *args]
        if name in torch_names.RANDOM:
            node = self.op(name, *args, *keywords.values(), value=(self.unique(), *keywords))
            self.observe("random", node)
            return node
        if name == "size" and args:
            plain = [arg for arg in args[1:] if arg.op == "const"]
            if len(args) == 1:
                return self.graph.node("shape", args[0])
            if len(plain) == 1 == len(args) - 1:
                return self.graph.node("size", args[0], plain[0])
        if name in {"dim", "ndimension"} and len(args) == 1:
            return self.graph.node("rank", args[0])
        if "**" in keywords or any(arg.op == "star" for arg in args):
            return self.op(f"{name}(*)", *args, *keywords.values(), value=tuple(keywords))
        return tensor_op(self.graph, name, args, keywords, self.epoch)

    def _unknown(self, code: ast.Call) -> Node:
        target = self.read(code.func)
        args, keywords = self._arguments(code)
        value = (self.unique(), *keywords)
        return self.effect("call", self.op("call", target, *args, *keywords.values(), value=value))

    def _inline(self, code: ast.Call, function: FunctionNode, bound: tuple[Node, ...]) -> Node:
        """Return what a simple helper returns; a helper that does more stays a call."""
        body = straight_line(function)
        if body is None or self.depth >= _MAX_INLINE_DEPTH:
            return self._unknown(code)
        saved = (self.env, self.epoch, self.effects, self.serial, len(self.observables))
        args, keywords = self._arguments(code)
        if self.epoch != saved[1] or "**" in keywords:
            inner = None
        else:
            inner = _bind(self.graph, function, [*bound, *args], keywords)
        if inner is not None:
            observed = len(self.observables)
            self.env, self.depth = inner, self.depth + 1
            try:
                result = self._helper_body(body)
            finally:
                self.depth -= 1
            if len(self.observables) == observed and self.epoch == saved[1]:
                self.env = saved[0]
                return result
        self.env, self.epoch, self.effects, self.serial = saved[:4]
        del self.observables[saved[4] :]
        return self._unknown(code)

    def _helper_body(self, body: list[ast.stmt]) -> Node:
        for statement in body:
            match statement:
                case ast.Assign([ast.Name(name)], value):
                    self.env[name] = self.read(value)
                case ast.Assign([ast.Tuple(targets)], value):
                    self.unpack(targets, self.read(value))
                case ast.Return(value) if value is not None:
                    return self.read(value)
        raise UnsupportedCodeError

    def unpack(self, targets: list[ast.expr], node: Node) -> None:
        """Bind the names of ``a, b = node``."""
        if node.op == "shape" and all(isinstance(t, ast.Name) for t in targets):
            self.ranks[node.args[0]] = len(targets)
        for index, target in enumerate(targets):
            if isinstance(target, ast.Name):
                self.env[target.id] = self.item(node, index)


def _assigns(code: ast.expr | ast.stmt) -> list[str]:
    """Return the names that ``:=`` assigns somewhere in an expression, sorted."""
    return sorted({n.target.id for n in ast.walk(code) if isinstance(n, ast.NamedExpr)})


def _bind(
    graph: Graph, function: FunctionNode, args: list[Node], keywords: dict[str, Node]
) -> dict[str, Node] | None:
    """Return the parameters of a helper with their values, ``None`` if the call does not fit."""
    spec = function.args
    params = [a.arg for a in (*spec.posonlyargs, *spec.args)]
    if any(arg.op == "star" for arg in args) or len(args) > len(params):
        return None
    env = dict(zip(params, args, strict=False))
    if set(env) & set(keywords):
        return None
    env |= keywords
    defaults = dict(zip(params[::-1], spec.defaults[::-1], strict=False))
    defaults |= {
        a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None
    }
    for name, default in defaults.items():
        if name not in env and isinstance(default, ast.Constant):
            env[name] = graph.constant(default.value)
    wanted = {*params, *(a.arg for a in spec.kwonlyargs)}
    return env if set(env) == wanted else None
