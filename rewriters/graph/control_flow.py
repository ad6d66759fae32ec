"""Branches, loops and other blocks: what the names may be after them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph.calls import CallReader
from npufix.rewriters.graph.dataflow import Observable
from npufix.rewriters.graph.modules.syntax import names_bound_in, walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.rewriters.graph.modules.names import ModuleNames
    from npufix.rewriters.graph.nodes import Graph, Node


class BlockReader(CallReader):
    """Reads compound statements; ``FunctionReader`` adds the simple ones."""

    def __init__(
        self,
        names: ModuleNames,
        cls: ast.ClassDef | None,
        graph: Graph,
        declared: Mapping[str, str] | None = None,
    ) -> None:
        """Start with nothing read."""
        super().__init__(names, cls, graph, declared)
        self.carried: list[tuple[Node, str, Node]] = []

    def statement_of(self, code: ast.stmt) -> bool:
        """Read one statement; return whether control leaves there."""
        raise NotImplementedError

    def assign(self, target: ast.expr, node: Node, code: ast.stmt) -> None:
        """Give a target a value."""
        raise NotImplementedError

    def read_block(self, body: list[ast.stmt]) -> bool:
        """Read statements in order; return whether control leaves before the end."""
        outer = self.statement, self.block, self.before
        ended = False
        for statement in body:
            self.statement, self.block, self.before = statement, body, dict(self.env)
            if self.statement_of(statement):
                ended = True
                break
        self.statement, self.block, self.before = outer
        return ended

    def observe_carried(self) -> None:
        """Make visible what loops carry: it matters only if somebody reads it there."""
        for read, name, written in self.carried:
            if read in self.touched:
                node = self.graph.node(Op.CARRY, read, written, value=name)
                self.observables.append(Observable("carry", node, ()))

    def read_if(self, code: ast.If) -> bool:
        """Read both branches; return whether control leaves in both."""
        test = self.read(code.test)
        path, epoch = self.path, self.epoch
        start = (dict(self.env), self.ranks, dict(self.stored))
        self.path = (*path, (test, True))
        then_ended = self.read_block(code.body)
        then = (self.env, self.ranks, self.stored, self.epoch)
        self.env, self.ranks, self.stored = start
        self.epoch = epoch
        self.path = (*path, (test, False))
        else_ended = self.read_block(code.orelse)
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
            unset = self.graph.node(Op.UNSET, value=name)
            joined = self.phi(test, env.get(name, unset), self.env.get(name, unset))
            self.env[name] = joined
            if joined.op == Op.PHI:
                self.record(joined, code)
        self.ranks = {node: n for node, n in ranks.items() if self.ranks.get(node) == n}
        for key in {*stored, *self.stored}:
            unset = self.op(Op.ATTR, key[0], value=key[1])
            self.stored[key] = self.phi(test, stored.get(key, unset), self.stored.get(key, unset))

    def read_loop(self, code: ast.For | ast.AsyncFor | ast.While) -> None:
        """Read a loop once, with the names that it binds unknown."""
        source = code.test if isinstance(code, ast.While) else code.iter
        counted = ""
        if not isinstance(code, ast.While):
            items = self.read(source)
            counted = _counted(code.target, items)
            self.effect("loop", self.op(Op.LOOP, items))
        before = dict(self.env)
        entered = self._forget(assigned_in([code]), Op.CARRIED)
        if isinstance(code, ast.While):
            self.effect("loop", self.op(Op.LOOP, self.read(source)))
        else:
            for name in _targets_of(code.target):
                kind = "counter" if name == counted else "element"
                self.bind(name, self.op(kind, value=(self.unique(), name)))
        ranks = self.ranks
        self.read_block(code.body)
        self._carry(entered, before)
        self._carry(entered, self.env)
        self._carry(self._forget(assigned_in([code]), Op.AFTER), self.env)
        self.read_block(code.orelse)
        self.ranks = ranks
        self.effect("loop end", self.graph.constant(None))

    def _forget(self, assigned: list[str], kind: str) -> dict[str, Node]:
        """Make the names that some path may have assigned unknown; return what they were."""
        # One number for all: it must not depend on how many temporaries there are.
        mark = self.unique()
        own = [name for name in assigned if name not in self.outside]
        fresh = {name: self.graph.node(kind, value=(mark, name)) for name in own}
        old = {name: self.env.get(name, self.graph.node(Op.UNSET, value=name)) for name in fresh}
        self.env.update(fresh)
        for name, node in fresh.items():
            self.carried.append((node, name, old[name]))
        self.stored.clear()
        return fresh

    def _carry(self, fresh: dict[str, Node], env: dict[str, Node]) -> None:
        for name, node in fresh.items():
            if name in env and env[name] is not node:
                self.carried.append((node, name, env[name]))

    def read_with(self, code: ast.With | ast.AsyncWith) -> bool:
        """Read a block in a context; return whether control leaves in it."""
        for item in code.items:
            node = self.effect("with", self.op(Op.WITH, self.read(item.context_expr)))
            if item.optional_vars is not None:
                self.assign(item.optional_vars, node, code)
        ranks = self.ranks
        ended = self.read_block(code.body)
        if not all(self._passes_errors_on(item.context_expr) for item in code.items):
            # ``contextlib.suppress``: any part of the block may not have run.
            self._forget(assigned_in([code]), Op.AFTER)
            self.ranks = ranks
            ended = False
        self.effect("with end", self.graph.constant(None))
        return ended

    def _passes_errors_on(self, context: ast.expr) -> bool:
        function = context.func if isinstance(context, ast.Call) else context
        return (self.dotted(function) or "").startswith("torch.")

    def read_try(self, code: ast.Try) -> None:
        """Read all parts; in each, any statement of the first may have run or not."""
        self.effect("try", self.graph.constant(None))
        ranks = self.ranks
        self.read_block(code.body)
        for handler in code.handlers:
            self._forget(assigned_in([code]), Op.CAUGHT)
            self.ranks = ranks
            self.effect("except", self.graph.constant(None))
            if handler.name:
                caught = self.op(Op.CAUGHT, value=(self.unique(), handler.name))
                self.bind(handler.name, caught)
            self.read_block(handler.body)
        self.read_block(code.orelse)
        self._forget(assigned_in([code]), Op.AFTER)
        self.ranks = ranks
        self.read_block(code.finalbody)
        self.effect("try end", self.graph.constant(None))

    def read_match(self, code: ast.Match) -> None:
        """Read the cases of a ``match``: each may run, with names that any pattern has bound."""
        subject = self.effect("match", self.op(Op.MATCH, self.read(code.subject)))
        assigned, path, ranks = assigned_in([code]), self.path, self.ranks
        for case in code.cases:
            self._forget(assigned, Op.CAUGHT)
            self.path = (*path, (self.op(Op.CASE, subject, value=self.unique()), True))
            if case.guard is not None:
                self.effect("guard", self.op(Op.GUARD, self._read_maybe(case.guard)))
            self.read_block(case.body)
            self.path, self.ranks = path, ranks
            self.effect("case", self.graph.constant(None))
        self._forget(assigned, Op.AFTER)


def _targets_of(target: ast.expr) -> list[str]:
    return [n.id for n in walk(target) if isinstance(n, ast.Name)]


def _counted(target: ast.expr, items: Node) -> str:
    """Return the name that counts the rounds of a loop, "" if none does."""
    match items.op, target:
        case ("py:range", ast.Name(name)) | ("py:enumerate", ast.Tuple([ast.Name(name), _])):
            return name
    return ""


def assigned_in(body: list[ast.stmt]) -> list[str]:
    """Return every name that these statements may bind, sorted."""
    return sorted(set[str]().union(*map(names_bound_in, body)))
