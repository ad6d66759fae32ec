"""Statements that only prepare what a rewrite removes: ``x1, x2 = x.chunk(2, -1)``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.match.matching import Match


def dead_statements(
    flow: FunctionFlow, match: Match, removed: Sequence[ast.stmt], texts: Sequence[str]
) -> list[ast.stmt]:
    """Return the statements before the match that nobody needs once ``removed`` are gone.

    ``texts`` are what takes the place of the matched expression. A statement goes if it has no side
    effect and all that reads its names goes.
    """
    gone: list[ast.stmt] = list(removed)
    found: list[ast.stmt] = []
    while True:
        new = list(_unread(flow, match, gone, texts))
        if not new:
            return found
        gone += new
        found += new


def _unread(
    flow: FunctionFlow, match: Match, gone: Sequence[ast.stmt], texts: Sequence[str]
) -> Iterator[ast.stmt]:
    skipped = {id(n) for part in (*gone, match.evaluation.code) for n in walk(part)}
    before = _names(n for part in (*gone, match.evaluation.code) for n in walk(part))
    after = _names(n for n in flow.name_nodes if id(n) not in skipped)
    after -= _find_bound_anew(flow, match, skipped)
    after |= _names(n for t in texts for n in walk(ast.parse(t, mode="eval")))
    after |= flow.captured
    visible = {o.node for o in flow.observables}
    for statement in match.evaluation.block:
        if statement is match.evaluation.statement:
            return
        targets = _targets(statement)
        if targets & before and not targets & after and id(statement) not in skipped:
            inside = {id(n) for n in walk(statement)}
            if not any(e.node in visible for e in flow.evaluations if id(e.code) in inside):
                yield statement


def _find_bound_anew(flow: FunctionFlow, match: Match, skipped: Container[int]) -> set[str]:
    """Return the names whose every use comes after the statement of the match binds them."""
    last = match.evaluation.statement
    rest = [n for n in flow.name_nodes if id(n) not in skipped]
    end = last.end_lineno or last.lineno
    early = {n.id for n in rest if isinstance(n.ctx, ast.Load) and n.lineno <= end}
    return _targets(last) - early


def _targets(statement: ast.stmt) -> set[str]:
    """Return the names that an assignment binds, none if it does anything else."""
    match statement:
        case ast.Assign([ast.Name(name)]):
            return {name}
        case ast.Assign([ast.Tuple(items)]) if all(isinstance(i, ast.Name) for i in items):
            return {i.id for i in items if isinstance(i, ast.Name)}
    return set()


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
