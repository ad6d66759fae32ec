"""How many dimensions tensors have, by what the functions around hand in."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.facts.shapes import SAME_SHAPE
from npufix.rewriters.facts.site_facts import SourceFacts
from npufix.rewriters.graph.dataflow import UnsupportedCodeError
from npufix.rewriters.graph.modules.scopes import scopes
from npufix.rewriters.graph.modules.syntax import list_handed, nodes_of
from npufix.rewriters.graph.reader import read_function
from npufix.rewriters.graph.special import Op
from npufix.rewriters.match.matching import Match

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Evaluation, Node


def find_rank(here: Surroundings, code: ast.expr) -> int | None:
    """Return how many dimensions a tensor has, also where only the calls in its module tell.

    ``def attend(self, q): ...`` behind ``self.attend(self.fold(q))``, where ``fold`` ends with
    ``return x.reshape(-1, length, width)``. ``None`` where calls differ or are not known.
    """
    at = here.evaluations.get(id(code))
    if at is None:
        return None
    known = here.facts(at, x=at.node).ndim("x")
    node = at.node
    while node.op in SAME_SHAPE and node.args:
        node = node.args[0]
    if known is not None or node.op != Op.PARAM:
        return known
    ranks = {*_ranks_in_calls(here, str(node.value))}
    return ranks.pop() if len(ranks) == 1 else None


def _ranks_in_calls(here: Surroundings, name: str) -> Iterator[int | None]:
    """Yield the dimensions of what each call of the function hands in under a name."""
    own, tree = here.flow.function, here.flow.names.tree
    is_bound = here.flow.cls is not None and [a.arg for a in own.args.args[:1]] == ["self"]
    called = f"self.{own.name}" if is_bound else own.name
    for scope in () if tree is None else scopes(tree):
        if is_bound and scope.cls is not here.flow.cls:
            continue
        calls = [
            n
            for n in nodes_of(scope.function)
            if isinstance(n, ast.Call) and ast.unparse(n.func) == called
        ]
        if not calls:
            continue
        try:
            flow = read_function(scope.function, here.flow.names, scope.cls, scope=scope)
        except UnsupportedCodeError:
            yield None
            continue
        evaluated = {id(e.code): e for e in flow.evaluations}
        for call in calls:
            yield _rank(flow, evaluated.get(id(list_handed(own.args, call).get(name))))


def _rank(flow: FunctionFlow, at: Evaluation | None) -> int | None:
    known = _ndim(flow, at)
    return _rank_of_returned(flow, at.node) if at is not None and known is None else known


def _ndim(flow: FunctionFlow, at: Evaluation | None) -> int | None:
    if at is None:
        return None
    return SourceFacts(flow, Match(at, {"x": at.node}, frozenset(), {})).ndim("x")


def _rank_of_returned(flow: FunctionFlow, node: Node) -> int | None:
    """Return the dimensions of what ``self.fold(x)`` returns, whatever it is handed."""
    of_self = (
        node.op == Op.CALL and node.args[0].op == Op.ATTR and node.args[0].args[0].op == Op.PARAM
    )
    called = node.args[0].value if of_self and flow.cls is not None else None
    method = flow.names.method(flow.cls, str(called)) if called and flow.cls else None
    if method is None or method is flow.function or method.decorator_list:
        return None
    try:
        inner = read_function(method, flow.names, flow.cls)
    except UnsupportedCodeError:
        return None
    evaluated = {id(e.code): e for e in inner.evaluations}
    returned = (n.value for n in nodes_of(method) if isinstance(n, ast.Return))
    ranks = {_ndim(inner, evaluated.get(id(code))) for code in returned}
    return ranks.pop() if len(ranks) == 1 else None
