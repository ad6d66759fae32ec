"""Branches, loops and other blocks: what the names may be after them."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Protocol

from npufix.rewriters.graph.modules.syntax import names_bound_in, walk
from npufix.rewriters.graph.nodes import Observable
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.rewriters.graph.expressions import ExpressionReader
    from npufix.rewriters.graph.nodes import Node
    from npufix.rewriters.graph.state import State


SHOWS_PROGRESS = re.compile(r"(^|[._])(tqdm|trange|track|progress_?bar|prange)$")
"""What people see how far a loop is by: its items are those that it is given."""


class Statements(Protocol):
    """What reads the statements in a block."""

    def statement_of(self, code: ast.stmt) -> bool:
        """Read one statement; return whether control leaves there."""

    def assign(self, target: ast.expr, node: Node, code: ast.stmt) -> None:
        """Give a target a value."""


class BlockReader:
    """Reads compound statements."""

    def __init__(self, state: State, expressions: ExpressionReader, statements: Statements) -> None:
        self.state = state
        self.expressions = expressions
        self.statements = statements

    def read_block(self, body: list[ast.stmt]) -> bool:
        """Read statements in order; return whether control leaves before the end."""
        outer = self.state.statement, self.state.block, self.state.before
        ended = False
        for statement in body:
            self.state.statement, self.state.block, self.state.before = (
                statement,
                body,
                dict(self.state.env),
            )
            if self.statements.statement_of(statement):
                ended = True
                break
        self.state.statement, self.state.block, self.state.before = outer
        return ended

    def observe_carried(self) -> None:
        """Make visible what loops carry: it matters only if somebody reads it there."""
        for read, name, written in self.state.carried:
            if read in self.state.touched:
                node = self.state.graph.node(Op.CARRY, read, written, value=name)
                self.state.observables.append(Observable("carry", node, ()))

    def read_if(self, code: ast.If) -> bool:
        """Read both branches; return whether control leaves in both."""
        test = self.expressions.read(code.test)
        path, epoch = self.state.path, self.state.epoch
        start = (dict(self.state.env), self.state.ranks, dict(self.state.stored))
        self.state.path = (*path, (test, True))
        then_ended = self.read_block(code.body)
        then = (self.state.env, self.state.ranks, self.state.stored, self.state.epoch)
        self.state.env, self.state.ranks, self.state.stored = start
        self.state.epoch = epoch
        self.state.path = (*path, (test, False))
        else_ended = self.read_block(code.orelse)
        self.state.path = path
        if then_ended and else_ended:
            return True
        if then_ended:
            return False
        if else_ended:
            self.state.env, self.state.ranks, self.state.stored, self.state.epoch = then
            return False
        if then[3] != self.state.epoch:
            self.state.effects += 1
            self.state.epoch = self.state.effects
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
        for name in sorted({*env, *self.state.env}):
            if env.get(name) is self.state.env.get(name):
                continue
            unset = self.state.graph.node(Op.UNSET, value=name)
            joined = self.state.phi(test, env.get(name, unset), self.state.env.get(name, unset))
            self.state.env[name] = joined
            if joined.op == Op.PHI:
                self.state.record(joined, code)
        self.state.ranks = {node: n for node, n in ranks.items() if self.state.ranks.get(node) == n}
        for key in {*stored, *self.state.stored}:
            unset = self.state.op(Op.ATTR, key[0], value=key[1])
            self.state.stored[key] = self.state.phi(
                test, stored.get(key, unset), self.state.stored.get(key, unset)
            )

    def read_loop(self, code: ast.For | ast.AsyncFor | ast.While) -> None:
        """Read a loop once, with the names that it binds unknown."""
        source = code.test if isinstance(code, ast.While) else code.iter
        counted = ""
        if not isinstance(code, ast.While):
            items = self.expressions.read(source)
            counted = _find_counter(code.target, items)
            self.state.effect("loop", self.state.op(Op.LOOP, items))
        before = dict(self.state.env)
        assigned = list_assigned_in([code])
        entered = self._forget(assigned, Op.CARRIED)
        if isinstance(code, ast.While):
            self.state.effect("loop", self.state.op(Op.LOOP, self.expressions.read(source)))
        else:
            for name in [n.id for n in walk(code.target) if isinstance(n, ast.Name)]:
                kind = "counter" if name == counted else "element"
                self.state.bind(name, self.state.op(kind, value=(self.state.unique(), name)))
        ranks = self.state.ranks
        self.read_block(code.body)
        self._carry(entered, before)
        self._carry(entered, self.state.env)
        self._carry(self._forget(assigned, Op.AFTER), self.state.env)
        self.read_block(code.orelse)
        self.state.ranks = ranks
        self.state.effect("loop end", self.state.graph.constant(None))

    def _forget(self, assigned: list[str], kind: str) -> dict[str, Node]:
        """Make the names that some path may have assigned unknown; return what they were."""
        # One number for all: it must not depend on how many temporaries there are.
        mark = self.state.unique()
        own = [name for name in assigned if name not in self.state.outside]
        fresh = {name: self.state.graph.node(kind, value=(mark, name)) for name in own}
        old = {
            name: self.state.env.get(name, self.state.graph.node(Op.UNSET, value=name))
            for name in fresh
        }
        self.state.env.update(fresh)
        for name, node in fresh.items():
            self.state.carried.append((node, name, old[name]))
        self.state.stored.clear()
        return fresh

    def _carry(self, fresh: dict[str, Node], env: dict[str, Node]) -> None:
        for name, node in fresh.items():
            if name in env and env[name] is not node:
                self.state.carried.append((node, name, env[name]))

    def read_with(self, code: ast.With | ast.AsyncWith) -> bool:
        """Read a block in a context; return whether control leaves in it."""
        for item in code.items:
            node = self.state.effect(
                "with", self.state.op(Op.WITH, self.expressions.read(item.context_expr))
            )
            if item.optional_vars is not None:
                self.statements.assign(item.optional_vars, node, code)
        ranks = self.state.ranks
        ended = self.read_block(code.body)
        if not all(self._passes_errors_on(item.context_expr) for item in code.items):
            # ``contextlib.suppress``: any part of the block may not have run.
            self._forget(list_assigned_in([code]), Op.AFTER)
            self.state.ranks = ranks
            ended = False
        self.state.effect("with end", self.state.graph.constant(None))
        return ended

    def _passes_errors_on(self, context: ast.expr) -> bool:
        function = context.func if isinstance(context, ast.Call) else context
        return (self.state.dotted(function) or "").startswith("torch.")

    def read_try(self, code: ast.Try) -> None:
        """Read all parts; in each, any statement of the first may have run or not."""
        self.state.effect("try", self.state.graph.constant(None))
        ranks = self.state.ranks
        self.read_block(code.body)
        for handler in code.handlers:
            self._forget(list_assigned_in([code]), Op.CAUGHT)
            self.state.ranks = ranks
            self.state.effect("except", self.state.graph.constant(None))
            if handler.name:
                caught = self.state.op(Op.CAUGHT, value=(self.state.unique(), handler.name))
                self.state.bind(handler.name, caught)
            self.read_block(handler.body)
        self.read_block(code.orelse)
        self._forget(list_assigned_in([code]), Op.AFTER)
        self.state.ranks = ranks
        self.read_block(code.finalbody)
        self.state.effect("try end", self.state.graph.constant(None))

    def read_match(self, code: ast.Match) -> None:
        """Read the cases of a ``match``: each may run, with names that any pattern has bound."""
        subject = self.state.effect(
            "match", self.state.op(Op.MATCH, self.expressions.read(code.subject))
        )
        assigned, path, ranks = list_assigned_in([code]), self.state.path, self.state.ranks
        for case in code.cases:
            self._forget(assigned, Op.CAUGHT)
            self.state.path = (
                *path,
                (self.state.op(Op.CASE, subject, value=self.state.unique()), True),
            )
            if case.guard is not None:
                self.state.effect(
                    "guard", self.state.op(Op.GUARD, self.expressions.read_maybe(case.guard))
                )
            self.read_block(case.body)
            self.state.path, self.state.ranks = path, ranks
            self.state.effect("case", self.state.graph.constant(None))
        self._forget(assigned, Op.AFTER)


def _find_counter(target: ast.expr, items: Node) -> str:
    """Return the name that counts the rounds of a loop, "" if none does."""
    match target:
        case ast.Name(name) if _counts(items):
            return name
        case ast.Tuple([ast.Name(name), _]) if items.op == "py:enumerate":
            return name
    return ""


def _counts(items: Node) -> bool:
    """Tell whether all items are those of a range, in whatever order: ``tqdm(list(range(n)))``."""
    args = items.args
    match items.op:
        case "py:range":
            return True
        case "py:list" | "py:tuple" | "py:reversed" | "py:sorted":
            return len(args) == 1 and _counts(args[0])
        case Op.GETITEM:
            return args[1].op == Op.SLICE and _counts(args[0])
        case Op.PHI:
            return all(map(_counts, args[1:]))
        case Op.CALL:
            shown = SHOWS_PROGRESS.search(str(args[0].value)) is not None
            return shown and len(args) > 1 and _counts(args[1])
    return False


def list_assigned_in(body: list[ast.stmt]) -> list[str]:
    """Return every name that these statements may bind, sorted."""
    return sorted(set[str]().union(*map(names_bound_in, body)))
