"""Calls of helpers without side effects: they are read as if their code stood in the caller."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.names import inlinable
from npufix.rewriters.graph.modules.syntax import list_defaults, walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Callable

    from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
    from npufix.rewriters.graph.nodes import Graph, Node
    from npufix.rewriters.graph.state import Expressions, State

_MAX_INLINE_DEPTH = 3
_CUT = frozenset({"chunk", "split", "unbind"})
"""What returns as many tensors as names take them."""
_ITEM = "<item>"
"""What each value of ``map(f, values)`` is called: no name of the user."""
_OTHER_DEVICES = frozenset({"hpu", "mlu", "mps", "musa", "vulkan", "xla", "xpu"})
"""Devices of other makers; a test for the CPU or CUDA may choose a reference, or be ported."""


class HelperReader:
    """Reads calls of helpers: functions of this module or its package, inner ones, lambdas."""

    def __init__(self, state: State, expressions: Expressions) -> None:
        self.state = state
        self.expressions = expressions

    def inline(
        self,
        code: ast.Call,
        function: FunctionNode,
        bound: tuple[Node, ...] = (),
        home: ModuleNames | None = None,
    ) -> Node:
        """Return what a helper without side effects returns; one that does more stays a call.

        ``home`` is the module of the helper if it is another one.
        """
        rebound = self.state.outside and function in self.state.inner.values()
        if self.state.depth >= _MAX_INLINE_DEPTH or rebound or not inlinable(function):
            return self.expressions.unknown(code)
        result = self._tried(lambda: self._call_inside(code, function, bound, home))
        return self.expressions.unknown(code) if result is None else result

    def mapped(self, code: ast.expr, count: int) -> Node | None:
        """Return ``count`` values that one expression computes, where they get names, as a tuple.

        ``q, k, v = map(lambda t: t.transpose(1, 2), (q, k, v))`` and ``[f(t) for t in parts]`` are
        read as ``f(q), f(k), f(v)``; ``None`` if it is another expression, or does more.
        """
        found = _read_mapping(code)
        if found is None:
            return None
        hidden = (self.state.env, self.state.outside, self.state.names.bound)
        if isinstance(code, ast.Call) and any(ast.unparse(code.func) in names for names in hidden):
            return None
        name, body, values = found
        node = self._tried(lambda: self._map(name, body, values, count))
        if node is not None:
            self.state.record(node, code)
        return node

    def _map(self, name: str, body: ast.expr, values: ast.expr, count: int) -> Node | None:
        """Return what ``body`` is for each of ``values``, which stand for ``name`` in turn."""
        whole = self.expressions.read(values)
        if whole.op in {Op.TUPLE, Op.LIST}:
            parts = list(whole.args)
        elif whole.op in _CUT:
            parts = [self.expressions.item(whole, index) for index in range(count)]
        else:
            return None
        if len(parts) != count or any(part.op == Op.STAR for part in parts):
            return None
        env, frame = self.state.env, self.state.frame
        if self.state.depth == 0:
            self.state.frame = env
        self.state.depth += 1  # a place in ``body`` is no place of one value
        try:
            results = []
            for part in parts:
                self.state.env = {**env, name: part}
                results.append(self.expressions.read(body))
        finally:
            self.state.env, self.state.frame = env, frame
            self.state.depth -= 1
        return self.state.graph.node(Op.TUPLE, *results)

    def _tried(self, read: Callable[[], Node | None]) -> Node | None:
        """Return what ``read`` finds; nothing, and nothing has happened, if it has side effects."""
        saved = (
            self.state.env,
            self.state.ranks,
            self.state.epoch,
            self.state.effects,
            self.state.serial,
            dict(self.state.made),
        )
        observed = len(self.state.observables)
        result = read()
        pure = all(o.kind == "random" for o in self.state.observables[observed:])
        if result is not None and pure and self.state.epoch == saved[2]:
            return result
        (
            self.state.env,
            self.state.ranks,
            self.state.epoch,
            self.state.effects,
            self.state.serial,
            self.state.made,
        ) = saved
        del self.state.observables[observed:]
        return None

    def _call_inside(
        self,
        code: ast.Call,
        function: FunctionNode,
        bound: tuple[Node, ...],
        home: ModuleNames | None,
    ) -> Node | None:
        """Return what a helper returns for the arguments of a call."""
        epoch = self.state.epoch
        args, keywords = self.expressions.arguments(code)
        if self.state.epoch != epoch or "**" in keywords:
            return None
        inner = _bind(self.state.graph, function, [*bound, *args], keywords)
        return None if inner is None else self._inside(function, inner, home)

    def _inside(
        self, function: FunctionNode, env: dict[str, Node], home: ModuleNames | None
    ) -> Node | None:
        """Read the body of a helper where ``env`` are its parameters."""
        caller = (
            self.state.env,
            self.state.frame,
            self.state.names,
            self.state.cls,
            self.state.outside,
        )
        if self.state.depth == 0:
            self.state.frame = self.state.env
        around = self.state.frame if function in self.state.inner.values() else {}
        self.state.env, self.state.depth, self.state.outside = (
            {**around, **env},
            self.state.depth + 1,
            frozenset(),
        )
        if home is not None:
            self.state.names, self.state.cls, self.state.frame = home, None, {}
        try:
            return self._body(function.body)
        finally:
            self.state.depth -= 1
            (
                self.state.env,
                self.state.frame,
                self.state.names,
                self.state.cls,
                self.state.outside,
            ) = caller

    def inner_function(self, node: Node) -> FunctionNode | None:
        """Return the function or lambda of this very function that a value is."""
        return self.state.inner.get(node) if self.state.names.home == "" else None

    def keep_lambda(self, node: Node, value: ast.expr) -> None:
        """Remember that a name stands for a simple lambda."""
        if self.state.depth or not isinstance(value, ast.Lambda):
            return
        if any(isinstance(n, (ast.NamedExpr, ast.Yield, ast.YieldFrom)) for n in walk(value)):
            return
        result = ast.copy_location(ast.Return(value.body), value.body)
        function = ast.FunctionDef("<lambda>", value.args, [result], [])
        self.state.inner[node] = ast.copy_location(function, value)

    def _body(self, body: list[ast.stmt]) -> Node | None:
        """Return what a helper returns, a choice between values where it branches."""
        for number, statement in enumerate(body):
            match statement:
                case ast.Assign([ast.Name(name)], value):
                    self.state.env[name] = self.expressions.read(value)
                case ast.AnnAssign(ast.Name(name), _, value) if value is not None:
                    self.state.env[name] = self.expressions.read(value)
                case ast.Assign([ast.Tuple(targets)], value):
                    node = self.mapped(value, len(targets))
                    self.unpack(targets, node or self.expressions.read(value))
                case ast.Return(value) if value is not None:
                    return self.expressions.read(value)
                case ast.If(test, then, other) if _returns(then) or _returns(other):
                    rest = body[number + 1 :]
                    return self._returning_branches(test, [*then, *rest], [*other, *rest])
                case ast.If(test, then, other):
                    self._branches(self.expressions.read(test), then, other)
        return None

    def _returning_branches(
        self, test: ast.expr, then: list[ast.stmt], other: list[ast.stmt]
    ) -> Node | None:
        """Return what two branches return, each with what follows them."""
        condition = self.expressions.read(test)
        known = _on_other_device(condition)
        if known is not None:
            here = self._body(then if known else other)
            return here if here is None else self.state.on_npu(here)
        told = _truth(condition)
        if told is not None:
            return self._body(then if told else other)
        before, ranks = dict(self.state.env), self.state.ranks
        first = self._body(then)
        self.state.env, self.state.ranks = before, ranks
        second = self._body(other)
        self.state.ranks = ranks
        if first is None or second is None:
            return None
        return self._choice(condition, first, second)

    def _choice(self, test: Node, then: Node, other: Node) -> Node:
        """Return the value that depends on a branch, or the one dropout that it amounts to."""
        dropped = _dropout_under(self.state.graph, test, then, other)
        if dropped is None:
            return self.state.phi(test, then, other)
        for place, seen in enumerate(self.state.observables):
            if seen.node is then:  # these random numbers are drawn
                self.state.observables[place] = replace(seen, node=dropped)
        return dropped

    def _branches(self, test: Node, then: list[ast.stmt], other: list[ast.stmt]) -> None:
        """Read two branches that assign names and join what they assign."""
        told = _truth(test)
        if told is not None:
            self._body(then if told else other)
            return
        before, ranks = dict(self.state.env), self.state.ranks
        self._body(then)
        after, self.state.env, self.state.ranks = self.state.env, before, ranks
        self._body(other)
        self.state.ranks = ranks
        for name in sorted({*after, *self.state.env}):
            unset = self.state.graph.node(Op.UNSET, value=name)
            self.state.env[name] = self.state.phi(
                test, after.get(name, unset), self.state.env.get(name, unset)
            )

    def unpack(self, targets: list[ast.expr], node: Node) -> None:
        """Bind the names of ``a, b = node``."""
        if all(isinstance(t, ast.Name) for t in targets):
            self.state.learn_rank(node, len(targets))
        for index, target in enumerate(targets):
            if isinstance(target, ast.Name):
                self.state.env[target.id] = self.expressions.item(node, index)


def _read_mapping(code: ast.expr) -> tuple[str, ast.expr, ast.expr] | None:
    """Return the name, the expression and the values of ``[expression for name in values]``."""
    match code:
        case ast.ListComp(body, [generator]) | ast.GeneratorExp(body, [generator]):
            match generator:
                case ast.comprehension(ast.Name(name), values, [], 0):
                    found = name, body, values
                case _:
                    return None
        case ast.Call(ast.Name("list" | "tuple"), [ast.GeneratorExp() | ast.Call() as inner], []):
            return _read_mapping(inner)
        case ast.Call(ast.Name("map"), [ast.Lambda(arguments, body), values], []):
            name = ast.unparse(arguments)
            if not name.isidentifier():  # ``*parts``, ``a, b``, ``a=1``
                return None
            found = name, body, values
        case ast.Call(ast.Name("map"), [function, values], []):
            item = ast.copy_location(ast.Name(_ITEM, ast.Load()), code)
            found = _ITEM, ast.copy_location(ast.Call(function, [item], []), code), values
        case _:
            return None
    kept = (ast.Await, ast.NamedExpr, ast.Starred, ast.Yield, ast.YieldFrom)
    return None if any(isinstance(n, kept) for n in walk(found[1])) else found


def _truth(test: Node) -> bool | None:
    """Return what a condition is that a call decides: ``rotate(x, interleaved=False)``."""
    match test.op:
        case Op.CONST:
            return bool(test.value)
        case Op.NOT:
            inner = _truth(test.args[0])
            return None if inner is None else not inner
        case Op.BOOLOP:
            deciding = test.value == "Or"  # one that is true makes ``or`` true
            told = [_truth(arg) for arg in test.args]
            return deciding if deciding in told else None if None in told else not deciding
        case Op.IS | Op.IS_NOT if all(arg.op == Op.CONST for arg in test.args):
            same = test.args[0].value is test.args[1].value
            return same if test.op == Op.IS else not same
        case "eq" | "ne" if all(arg.op == Op.CONST for arg in test.args[:2]):
            same = test.args[0].value == test.args[1].value
            return same if test.op == "eq" else not same
    return None


def _on_other_device(test: Node) -> bool | None:
    """Return what a test for another kind of device says on an NPU, ``None`` for other tests.

    ``if gate.device.type == "mps": return F.gelu(gate.float()).to(gate.dtype)`` of diffusers: a
    helper is read as it runs on the NPU, and code that takes its place runs there alone.
    """
    if test.op == Op.NOT:
        known = _on_other_device(test.args[0])
        return None if known is None else not known
    if test.op not in {"eq", "ne"}:
        return None
    kind, name = test.args if test.args[1].op == Op.CONST else reversed(test.args)
    asked = kind.op == Op.ATTR and kind.value == "type" and kind.args[0].op == Op.ATTR
    if not asked or kind.args[0].value != "device":
        return None
    return test.op == "ne" if name.op == Op.CONST and name.value in _OTHER_DEVICES else None


def _returns(body: list[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Return) for statement in body for n in walk(statement))


def _bind(
    graph: Graph, function: FunctionNode, args: list[Node], keywords: dict[str, Node]
) -> dict[str, Node] | None:
    """Return the parameters of a helper with their values, ``None`` if the call does not fit."""
    spec = function.args
    params = [a.arg for a in (*spec.posonlyargs, *spec.args)]
    if any(arg.op == Op.STAR for arg in args) or len(args) > len(params):
        return None
    env = dict(zip(params, args, strict=False))
    if set(env) & set(keywords):
        return None
    env |= keywords
    for name, default in list_defaults(spec).items():
        if name not in env and isinstance(default, ast.Constant):
            env[name] = graph.constant(default.value)
    wanted = {*params, *(a.arg for a in spec.kwonlyargs)}
    return env if set(env) == wanted else None


def _dropout_under(graph: Graph, test: Node, then: Node, other: Node) -> Node | None:
    """Return one dropout for ``F.dropout(x, p) if training else x``, nothing for other choices."""
    if then.op != "dropout" or len(then.args) != 4 or then.args[0] is not other:  # noqa: PLR2004
        return None
    x, p, training, inplace = then.args
    # A dropout of nothing changes nothing: ``p > 0`` only saves a call.
    tests = [part for part in _conjuncts(test) if not _is_positive(part, p)]
    if training.op != Op.CONST:
        tests.append(training)
    elif training.value is not True:
        return None
    if not tests:
        training = graph.constant(True)  # noqa: FBT003 - a literal
    elif len(tests) == 1:
        training = tests[0]
    else:
        epoch = max(part.epoch for part in tests)
        training = graph.node(Op.BOOLOP, *tests, value="And", epoch=epoch)
    return graph.node("dropout", x, p, training, inplace, value=then.value, epoch=then.epoch)


def _conjuncts(test: Node) -> list[Node]:
    if test.op == Op.BOOLOP and test.value == "And":
        return [part for arg in test.args for part in _conjuncts(arg)]
    return [test]


def _is_positive(test: Node, p: Node) -> bool:
    """Tell whether a test is ``p > 0``."""
    zero = test.args[1] if test.op == "gt" and test.args[0] is p else None
    return zero is not None and zero.op == Op.CONST and zero.value == 0
