"""From a function of the user to its dataflow."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.calls import CallReader
from npufix.rewriters.canonical import arithmetic
from npufix.rewriters.dataflow import FunctionFlow, Observable, UnsupportedCodeError
from npufix.rewriters.expressions import BINARY
from npufix.rewriters.names import FunctionNode
from npufix.rewriters.nodes import Graph, Node
from npufix.rewriters.scopes import MODULE
from npufix.rewriters.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.rewriters.names import ModuleNames
    from npufix.rewriters.scopes import Scope


def read_function(
    function: FunctionNode,
    names: ModuleNames,
    cls: ast.ClassDef | None = None,
    declared: Mapping[str, str] | None = None,
    scope: Scope | None = None,
) -> FunctionFlow:
    """Return the dataflow of ``function``.

    ``scope`` says where it stands: names of the functions around it are values from outside.
    ``declared`` names the parameters of a rule that stand for submodules and activations.

    Raises:
        UnsupportedCodeError: it uses ``global``, ``nonlocal`` or ``match``.

    """
    reader = FunctionReader(names, cls, Graph(), declared)
    if scope is not None:
        reader.env = {name: reader.graph.node("outer", value=name) for name in scope.hidden}
    reader.run(function)
    return FunctionFlow(
        function=function,
        cls=cls,
        names=names,
        graph=reader.graph,
        evaluations=tuple(reader.evaluations),
        observables=tuple(reader.observables),
        lines={node: frozenset(lines) for node, lines in reader.lines.items()},
        captured=frozenset(reader.captured),
        scope=scope,
    )


class FunctionReader(CallReader):
    """Follows the statements of a function, branch by branch."""

    def __init__(
        self,
        names: ModuleNames,
        cls: ast.ClassDef | None,
        graph: Graph,
        declared: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(names, cls, graph, declared)
        self.carried: list[tuple[Node, str, Node]] = []
        self.is_module = False

    def run(self, function: FunctionNode) -> None:
        """Read the whole function."""
        self.is_module = function.name == MODULE
        spec = function.args
        params = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
        params += [a for a in (spec.vararg, spec.kwarg) if a is not None]
        for param in params:
            self.env[param.arg] = self.graph.node("param", value=param.arg)
        self._block(function.body)
        # A value carried out of a loop matters only if somebody reads it there.
        for read, name, written in self.carried:
            if read in self.touched:
                self.observables.append(
                    Observable("carry", self.graph.node("carry", read, written, value=name), ())
                )

    def _block(self, body: list[ast.stmt]) -> bool:
        """Read statements in order; return whether control leaves before the end."""
        outer = self.statement, self.block, self.before
        ended = False
        for statement in body:
            self.statement, self.block, self.before = statement, body, dict(self.env)
            if self._statement(statement):
                ended = True
                break
        self.statement, self.block, self.before = outer
        return ended

    def _statement(self, code: ast.stmt) -> bool:  # noqa: C901, PLR0912 - one case a syntax
        match code:
            case ast.Expr(value):
                self._discard(value)
            case ast.Assign(targets, value):
                node = self.read(value)
                self.keep_lambda(node, value)
                for target in targets:
                    self._assign(target, node, code)
            case ast.AnnAssign(target, _, value) if value is not None:
                self._assign(target, self.read(value), code)
            case ast.AugAssign():
                self._augmented(code)
            case ast.Return(value):
                node = self.read(value) if value else self.graph.constant(None)
                self.observe("return", node)
                return True
            case ast.If():
                return self._if(code)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._loop(code)
            case ast.With() | ast.AsyncWith():
                return self._with(code)
            case ast.Try():
                self._try(code)
            case ast.Raise() | ast.Assert() | ast.Delete():
                parts = [
                    self.read(e) for e in ast.iter_child_nodes(code) if isinstance(e, ast.expr)
                ]
                self.effect(type(code).__name__, self.op("statement", *parts))
                return isinstance(code, ast.Raise)
            case ast.Break() | ast.Continue():
                self.observe(type(code).__name__, self.graph.constant(None))
                return True
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._define(code)
            case ast.Import() | ast.ImportFrom():
                self._local_import(code)
            case ast.Pass() | ast.AnnAssign():
                pass
            case _:
                raise UnsupportedCodeError(type(code).__name__)
        return False

    def _discard(self, code: ast.expr) -> None:
        """Read an expression whose value nobody wants: a call is there for what it changes."""
        observed = len(self.observables)
        node = self.read(code)
        if isinstance(code, ast.Call) and len(self.observables) == observed:
            self.effect("call", node)

    def _define(self, code: FunctionNode | ast.ClassDef) -> None:
        """Read the definition of an inner function, not the function."""
        for inner in walk(code):
            if isinstance(inner, ast.Nonlocal):
                raise UnsupportedCodeError("nonlocal")
            if isinstance(inner, ast.Name):
                self.captured.add(inner.id)
        node = self.op("def", value=(self.unique(), code.name))
        self.env[code.name] = node
        if isinstance(code, ast.FunctionDef) and not code.decorator_list:
            self.inner[node] = code
        self.effect("def", node)

    def _assign(self, target: ast.expr, node: Node, code: ast.stmt) -> None:
        match target:
            case ast.Name(name):
                self.env[name] = node
            case ast.Tuple(items) | ast.List(items):
                if any(isinstance(item, ast.Starred) for item in items):
                    for name in _assigned([code]):
                        self.env[name] = self.op("opaque", node, value=(self.unique(), name))
                    return
                if node.op == "shape" and all(isinstance(item, ast.Name) for item in items):
                    self.ranks = {**self.ranks, node.args[0]: len(items)}
                for index, item in enumerate(items):
                    self._assign(item, self.item(node, index), code)
            case ast.Subscript(base, index):
                written = self.op("setitem", self.read(base), self.read(index), node)
                self.record(written, code)
                self.effect("write", written)
            case ast.Attribute(base, attr):
                owner = self.read(base)
                stored = self.op("setattr", owner, node, value=attr)
                if attr in {"data", "grad"}:  # a tensor holds other values from here on
                    self.effect("write", stored)
                else:
                    self.observe("setattr", stored)
                self._store(owner, attr, node)
            case _:
                raise UnsupportedCodeError(type(target).__name__)

    def _store(self, owner: Node, name: str, node: Node) -> None:
        """Remember what an attribute is; that of any other object may be the same one."""
        self.effects += 1  # a later moment for the attributes of this name, not for tensors
        self.moved[name] = self.moved[""] = self.effects
        self.stored = {key: value for key, value in self.stored.items() if key[1] != name}
        self.stored[owner, name] = node

    def _augmented(self, code: ast.AugAssign) -> None:
        """Read ``x += y``: a write to the tensor that every alias of ``x`` sees."""
        left = self.read(_as_load(code.target))
        right = self.read(code.value)
        node = arithmetic(self.graph, BINARY[type(code.op)], [left, right], self.epoch)
        written = self.op("augment", left, node)
        self.record(written, code)
        self.effect("write", written)
        if isinstance(code.target, ast.Name):
            # The updated tensor is not the value of the expression before the write.
            self.env[code.target.id] = self.op("augmented", node)
        elif isinstance(code.target, ast.Attribute):
            owner = self.read(code.target.value)
            self._store(owner, code.target.attr, self.op("augmented", node))

    def _if(self, code: ast.If) -> bool:
        test = self.read(code.test)
        path, epoch = self.path, self.epoch
        start = (dict(self.env), self.ranks, dict(self.stored))
        self.path = (*path, (test, True))
        then_ended = self._block(code.body)
        then = (self.env, self.ranks, self.stored, self.epoch)
        self.env, self.ranks, self.stored = start
        self.epoch = epoch
        self.path = (*path, (test, False))
        else_ended = self._block(code.orelse)
        self.path = path
        if then_ended and else_ended:
            return True
        if then_ended:
            return False
        if else_ended:
            self.env, self.ranks, self.stored, self.epoch = then
            return False
        if then[3] != self.epoch:
            self.effects += 1
            self.epoch = self.effects
        self._merge(test, then[0], then[1], then[2], code)
        return False

    def _merge(
        self,
        test: Node,
        env: dict[str, Node],
        ranks: Mapping[Node, int],
        stored: dict[tuple[Node, str], Node],
        code: ast.If,
    ) -> None:
        """Join the two branches of ``code``; ``self`` holds those of the ``else`` side."""
        for name in sorted({*env, *self.env}):
            if env.get(name) is self.env.get(name):
                continue
            unset = self.graph.node("unset", value=name)
            joined = self.phi(test, env.get(name, unset), self.env.get(name, unset))
            self.env[name] = joined
            if joined.op == "phi":
                self.record(joined, code)
        self.ranks = {node: n for node, n in ranks.items() if self.ranks.get(node) == n}
        for key in {*stored, *self.stored}:
            unset = self.op("attr", key[0], value=key[1])
            self.stored[key] = self.phi(test, stored.get(key, unset), self.stored.get(key, unset))

    def _loop(self, code: ast.For | ast.AsyncFor | ast.While) -> None:
        source = code.test if isinstance(code, ast.While) else code.iter
        if not isinstance(code, ast.While):
            self.effect("loop", self.op("loop", self.read(source)))
        before = dict(self.env)
        entered = self._forget(_assigned([code]), "carried")
        if isinstance(code, ast.While):
            self.effect("loop", self.op("loop", self.read(source)))
        else:
            for name in _assigned_in(code.target):
                self.env[name] = self.op("element", value=(self.unique(), name))
        ranks = self.ranks
        self._block(code.body)
        self._carry(entered, before)
        self._carry(entered, self.env)
        self._carry(self._forget(_assigned([code]), "after"), self.env)
        self._block(code.orelse)
        self.ranks = ranks
        self.effect("loop end", self.graph.constant(None))

    def _forget(self, assigned: list[str], kind: str) -> dict[str, Node]:
        """Make the names that some path may have assigned unknown; return what they were."""
        # One number for all: it must not depend on how many temporaries there are.
        mark = self.unique()
        fresh = {name: self.graph.node(kind, value=(mark, name)) for name in assigned}
        old = {name: self.env.get(name, self.graph.node("unset", value=name)) for name in fresh}
        self.env.update(fresh)
        for name, node in fresh.items():
            self.carried.append((node, name, old[name]))
        self.stored.clear()
        return fresh

    def _carry(self, fresh: dict[str, Node], env: dict[str, Node]) -> None:
        for name, node in fresh.items():
            if name in env and env[name] is not node:
                self.carried.append((node, name, env[name]))

    def _with(self, code: ast.With | ast.AsyncWith) -> bool:
        for item in code.items:
            node = self.effect("with", self.op("with", self.read(item.context_expr)))
            if item.optional_vars is not None:
                self._assign(item.optional_vars, node, code)
        ranks = self.ranks
        ended = self._block(code.body)
        if not all(self._passes_errors_on(item.context_expr) for item in code.items):
            # ``contextlib.suppress``: any part of the block may not have run.
            self._forget(_assigned([code]), "after")
            self.ranks = ranks
            ended = False
        self.effect("with end", self.graph.constant(None))
        return ended

    def _passes_errors_on(self, context: ast.expr) -> bool:
        function = context.func if isinstance(context, ast.Call) else context
        return (self.dotted(function) or "").startswith("torch.")

    def _try(self, code: ast.Try) -> None:
        self.effect("try", self.graph.constant(None))
        ranks = self.ranks
        self._block(code.body)
        for handler in code.handlers:
            self._forget(_assigned([code]), "caught")
            self.ranks = ranks
            self.effect("except", self.graph.constant(None))
            if handler.name:
                self.env[handler.name] = self.op("caught", value=(self.unique(), handler.name))
            self._block(handler.body)
        self._block(code.orelse)
        self._forget(_assigned([code]), "after")
        self.ranks = ranks
        self._block(code.finalbody)
        self.effect("try end", self.graph.constant(None))

    def _local_import(self, code: ast.Import | ast.ImportFrom) -> None:
        names = [alias.asname or alias.name.split(".")[0] for alias in code.names]
        if self.is_module and set(names) <= set(self.names.imports):
            return  # the imports of the module itself: what they mean is known
        self.observe("import", self.graph.constant(ast.dump(code)))
        for name, alias in zip(names, code.names, strict=True):
            self.env[name] = self.graph.node("global", value=f"{ast.dump(code)}.{alias.name}")


def _as_load(target: ast.Name | ast.Attribute | ast.Subscript) -> ast.expr:
    """Return an assignment target as the expression that reads it."""
    read: ast.expr
    match target:
        case ast.Name(name):
            read = ast.Name(name, ast.Load())
        case ast.Attribute(base, attr):
            read = ast.Attribute(base, attr, ast.Load())
        case ast.Subscript(base, index):
            read = ast.Subscript(base, index, ast.Load())
    return ast.copy_location(read, target)


def _assigned_in(target: ast.expr) -> list[str]:
    return [n.id for n in walk(target) if isinstance(n, ast.Name)]


def _assigned(body: list[ast.stmt]) -> list[str]:
    """Return every name that these statements may bind, sorted."""
    found: set[str] = set()
    for statement in body:
        for node in walk(statement):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, (FunctionNode, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                found |= {a.asname or a.name.split(".")[0] for a in node.names}
    return sorted(found)
