"""Calls of helpers without side effects: they are read as if their code stood in the caller."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.graph.dropouts import dropout_under
from npufix.rewriters.graph.expressions import ExpressionReader
from npufix.rewriters.graph.modules.names import inlinable
from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
    from npufix.rewriters.graph.nodes import Graph, Node

_MAX_INLINE_DEPTH = 3


class HelperReader(ExpressionReader):
    """Reads calls of helpers: functions of this module or its package, inner ones, lambdas."""

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
        rebound = self.outside and function in self.inner.values()
        if self.depth >= _MAX_INLINE_DEPTH or rebound or not inlinable(function):
            return self.unknown(code)
        saved = (self.env, self.ranks, self.epoch, self.effects, self.serial, dict(self.made))
        observed = len(self.observables)
        args, keywords = self.arguments(code)
        if self.epoch == saved[2] and "**" not in keywords:
            inner = _bind(self.graph, function, [*bound, *args], keywords)
            if inner is not None:
                start = len(self.observables)
                result = self._inside(function, inner, home)
                pure = all(o.kind == "random" for o in self.observables[start:])
                if result is not None and pure and self.epoch == saved[2]:
                    return result
        self.env, self.ranks, self.epoch, self.effects, self.serial, self.made = saved
        del self.observables[observed:]
        return self.unknown(code)

    def _inside(
        self, function: FunctionNode, env: dict[str, Node], home: ModuleNames | None
    ) -> Node | None:
        """Read the body of a helper where ``env`` are its parameters."""
        caller = (self.env, self.frame, self.names, self.cls, self.outside)
        if self.depth == 0:
            self.frame = self.env
        around = self.frame if function in self.inner.values() else {}
        self.env, self.depth, self.outside = {**around, **env}, self.depth + 1, frozenset()
        if home is not None:
            self.names, self.cls, self.frame = home, None, {}
        try:
            return self._body(function.body)
        finally:
            self.depth -= 1
            self.env, self.frame, self.names, self.cls, self.outside = caller

    def inner_function(self, node: Node) -> FunctionNode | None:
        """Return the function or lambda of this very function that a value is."""
        return self.inner.get(node) if self.names.home == "" else None

    def keep_lambda(self, node: Node, value: ast.expr) -> None:
        """Remember that a name stands for a simple lambda."""
        if self.depth or not isinstance(value, ast.Lambda):
            return
        if any(isinstance(n, (ast.NamedExpr, ast.Yield, ast.YieldFrom)) for n in walk(value)):
            return
        result = ast.copy_location(ast.Return(value.body), value.body)
        function = ast.FunctionDef("<lambda>", value.args, [result], [])
        self.inner[node] = ast.copy_location(function, value)

    def _body(self, body: list[ast.stmt]) -> Node | None:
        """Return what a helper returns, a choice between values where it branches."""
        for number, statement in enumerate(body):
            match statement:
                case ast.Assign([ast.Name(name)], value):
                    self.env[name] = self.read(value)
                case ast.AnnAssign(ast.Name(name), _, value) if value is not None:
                    self.env[name] = self.read(value)
                case ast.Assign([ast.Tuple(targets)], value):
                    self.unpack(targets, self.read(value))
                case ast.Return(value) if value is not None:
                    return self.read(value)
                case ast.If(test, then, other) if _returns(then) or _returns(other):
                    condition, rest = self.read(test), body[number + 1 :]
                    before, ranks = dict(self.env), self.ranks
                    first = self._body([*then, *rest])
                    self.env, self.ranks = before, ranks
                    second = self._body([*other, *rest])
                    self.ranks = ranks
                    if first is None or second is None:
                        return None
                    return self._choice(condition, first, second)
                case ast.If(test, then, other):
                    self._branches(self.read(test), then, other)
        return None

    def _choice(self, test: Node, then: Node, other: Node) -> Node:
        """Return the value that depends on a branch, or the one dropout that it amounts to."""
        dropped = dropout_under(self.graph, test, then, other)
        if dropped is None:
            return self.phi(test, then, other)
        for place, seen in enumerate(self.observables):
            if seen.node is then:  # these random numbers are drawn
                self.observables[place] = replace(seen, node=dropped)
        return dropped

    def _branches(self, test: Node, then: list[ast.stmt], other: list[ast.stmt]) -> None:
        """Read two branches that assign names and join what they assign."""
        before, ranks = dict(self.env), self.ranks
        self._body(then)
        after, self.env, self.ranks = self.env, before, ranks
        self._body(other)
        self.ranks = ranks
        for name in sorted({*after, *self.env}):
            unset = self.graph.node(Op.UNSET, value=name)
            self.env[name] = self.phi(test, after.get(name, unset), self.env.get(name, unset))

    def unpack(self, targets: list[ast.expr], node: Node) -> None:
        """Bind the names of ``a, b = node``."""
        plain = all(isinstance(t, ast.Name) for t in targets)
        if node.op == Op.SHAPE and plain and not self.reshapes:
            self.ranks = {**self.ranks, node.args[0]: len(targets)}
        for index, target in enumerate(targets):
            if isinstance(target, ast.Name):
                self.env[target.id] = self.item(node, index)


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
    defaults = dict(zip(params[::-1], spec.defaults[::-1], strict=False))
    defaults |= {
        a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None
    }
    for name, default in defaults.items():
        if name not in env and isinstance(default, ast.Constant):
            env[name] = graph.constant(default.value)
    wanted = {*params, *(a.arg for a in spec.kwonlyargs)}
    return env if set(env) == wanted else None
