"""What one round of a loop does, and whether it can be done without the rounds before."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.advice.rounds import (
    carries,
    list_bound,
    list_moved,
    look_up,
    reads_own_list,
)
from npufix.rewriters.graph.modules.syntax import last_name, list_indexes, list_names, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.edit.loops.given.reading import Loop
    from npufix.rewriters.graph.dataflow import FunctionFlow

_DEEPEST = 3
"""Names that are followed: ``n = lengths[i]``, ``end = n - 1``."""
_ABOUT = frozenset({"device", "dim", "dtype", "ndim", "shape", "size"})
"""What a tensor is asked for that no writing changes."""


@dataclass(frozen=True)
class Round:
    """What one round of a loop does."""

    flow: FunctionFlow
    facts: Facts
    loop: Loop
    code: Sequence[ast.AST]
    own: frozenset[str]
    """The names of the target, and those of the loops inside."""
    bound: Mapping[str, ast.expr]
    moved: frozenset[str]
    """Where the next part begins: ``at += n``."""

    @property
    def body(self) -> list[ast.stmt]:
        """The statements of a round."""
        return [code for code in self.code if isinstance(code, ast.stmt)]

    @cached_property
    def of_round(self) -> frozenset[str]:
        """All names that may differ from round to round."""
        found = set(self.own | self.moved)
        for _ in range(_DEEPEST):
            found |= {n for n, value in list_bound(self.code) if list_names(value) & found}
            for code in walk(*self.code):
                match code:
                    case ast.Assign([ast.Tuple() as names], value) if list_names(value) & found:
                        found |= list_names(names)
        return frozenset(found)

    @cached_property
    def counted(self) -> frozenset[str]:
        """The counter, and what is computed of it alone: ``end = (i + 1) * n``."""
        match self.loop.items, self.loop.target:
            case ast.Call(ast.Name("range")), ast.Name(counter):
                found = {counter}
            case ast.Call(ast.Name("enumerate")), ast.Tuple([ast.Name(counter), _]):
                found = {counter}
            case _:
                found = set[str]()
        for node in walk(*self.code):
            match node:
                case ast.For(ast.Name(counter), ast.Call(ast.Name("range"))):
                    found.add(counter)
        looked_up = (ast.Subscript, ast.Call)
        for name, value in self.bound.items():
            if list_names(value) & found and not any(isinstance(n, looked_up) for n in walk(value)):
                found.add(name)
        return frozenset(found)

    def is_piece(self, item: ast.expr) -> bool:
        """Tell whether an index is ``i * n : (i + 1) * n``, or ``start : end`` of such."""
        match item:
            case ast.Slice(ast.expr() as first, ast.expr()):
                match look_up(first, self.bound):
                    case ast.BinOp(left, ast.Mult(), right):
                        ends = (left, right)
                        return any(isinstance(n, ast.Name) and n.id in self.own for n in ends)
        return False

    def is_window(self, code: ast.Subscript) -> bool:
        """Tell whether code reads a window, high and wide as the round says: ``table[:h, :w]``."""
        known = self.of_round - self.counted
        ends = [i.upper for i in list_indexes(code.slice) if isinstance(i, ast.Slice) and i.upper]
        return not is_stored(code) and sum(bool(list_names(end) & known) for end in ends) > 1

    def shifts(self, pick: ast.Subscript) -> bool:
        """Tell whether a round takes what its number leaves, as in a convolution: ``x[:, i:]``."""
        for index in list_indexes(pick.slice):
            match index:
                case ast.Slice(ast.expr() as bound, None, None) | ast.Slice(
                    None, ast.expr() as bound
                ):
                    of_round = list_names(bound) & self.of_round
                    looked_up = any(isinstance(n, ast.Subscript | ast.Call) for n in walk(bound))
                    if of_round and of_round <= self.counted and not looked_up:
                        return True
        return False

    def calls(self) -> Iterator[ast.Call]:
        """Yield the calls of a round, those that fill lists aside."""
        for node in walk(*self.code):
            if isinstance(node, ast.Call) and last_name(node.func) != "append":
                yield node


def read_round(flow: FunctionFlow, facts: Facts, loop: Loop) -> Round:
    """Return what one round of a loop does."""
    body = loop.statement.body if isinstance(loop.statement, ast.For) else loop.body
    made = [loop.made] if loop.made is not None else [one.made for one in loop.lists]
    inner = {
        n for node in walk(*body) if isinstance(node, ast.For) for n in list_names(node.target)
    }
    own = frozenset(list_names(loop.target) | inner)
    bound = dict(list_bound(body))
    return Round(flow, facts, loop, [*body, *made], own, bound, list_moved(body))


def asks_for_objects(taken: Round, nodes: Sequence[ast.AST]) -> bool:
    """Tell whether a round compares words, fills a dictionary, or counts in parts: ``i % 2``.

    So does one that calls for an effect: ``self.log(i)``.
    """
    effects = [n.value for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
    if not all(last_name(c.func) == "append" or last_name(c.func).endswith("_") for c in effects):
        return True
    own = taken.of_round
    tests = [n for n in nodes if isinstance(n, ast.Compare) and list_names(n.left) & own]
    words = [c for test in tests for c in test.comparators]
    words += [n.slice for n in nodes if isinstance(n, ast.Subscript) and is_stored(n)]
    return any(isinstance(w, ast.Constant) and isinstance(w.value, str) for w in words) or any(
        isinstance(n, ast.BinOp)
        and isinstance(n.op, ast.Mod | ast.FloorDiv)
        and list_names(n.left) & taken.own
        for n in nodes
    )


def needs_others(
    taken: Round,
    nodes: Sequence[ast.AST],
    *,
    known: frozenset[str] = frozenset(),
    inner: bool = True,
) -> bool:
    """Tell whether a round reads what an earlier one has left in a name, or in a row.

    ``known`` is known of all rounds before the loop; the rounds of a loop ``inner`` may count too.
    """
    of_round = taken.own | taken.moved
    loops = [n for n in nodes if isinstance(n, ast.For)] if inner else []
    if (
        carries(taken.body, of_round | known)
        or _changes_others(taken, nodes)
        or reads_own_list(taken.body)
        or any(carries(loop.body, of_round) for loop in loops)
    ):
        return True
    picks = [n for n in nodes if isinstance(n, ast.Subscript)]
    written = {ast.unparse(base_of(n)) for n in picks if is_stored(n)} - taken.bound.keys()
    parts = {id(n.value) for n in nodes if isinstance(n, ast.Subscript)}
    parts |= {id(n.value) for n in nodes if isinstance(n, ast.Attribute) and n.attr in _ABOUT}
    if any(
        isinstance(n, ast.Name | ast.Attribute) and ast.unparse(n) in written and id(n) not in parts
        for n in nodes
    ):
        return True  # all of what is written
    for name in written:
        own = [n for n in picks if ast.unparse(base_of(n)) == name]
        if all(is_stored(n) or _is_inside_store(n, own) for n in own):
            continue
        rows = {tuple(sorted(list_names(_whole_index(n)) & taken.own)) for n in own}
        items = [item for n in own for item in list_indexes(n.slice)]
        if len(rows) > 1 or not min(rows) or any(is_other(item, taken) for item in items):
            return True
        places = {ast.unparse(i) for i in items if isinstance(i, ast.Subscript)}
        if len(places) > 1:
            return True  # x[p[i]] = x[q[i]]: an earlier round may have written there
    return False


def _changes_others(taken: Round, nodes: Sequence[ast.AST]) -> bool:
    """Tell whether a round changes in place what it reads elsewhere: ``x[i].add_(x[i - 1])``."""
    for node in nodes:
        match node:
            case ast.Call(ast.Attribute(ast.Subscript() as owner, method)) if method.endswith(
                "_"
            ) and not method.endswith("__"):
                base = ast.unparse(base_of(owner))
                inside = {id(n) for n in walk(owner)}
                if base not in taken.bound and any(
                    isinstance(n, ast.Name | ast.Attribute)
                    and ast.unparse(n) == base
                    and id(n) not in inside
                    for n in nodes
                ):
                    return True
    return False


def _is_inside_store(pick: ast.Subscript, others: Sequence[ast.Subscript]) -> bool:
    """Tell whether code is ``m[i]`` of ``m[i][:n] = 1``."""
    return any(is_stored(other) and pick in [*ast.walk(other.value)] for other in others)


def _whole_index(code: ast.Subscript) -> ast.expr:
    """Return all indexes of ``x[:, i][mask]``, those of the first alone where they are enough."""
    while isinstance(code.value, ast.Subscript):
        code = code.value
    return code.slice


def is_stored(node: ast.AST) -> bool:
    """Tell whether code is ``x[i]`` that is written to."""
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)


def base_of(code: ast.AST) -> ast.AST:
    """Return ``x`` of ``x[i][j]``."""
    while isinstance(code, ast.Subscript):
        code = code.value
    return code


def is_other(item: ast.expr, taken: Round) -> bool:
    """Tell whether an index is that of another round: ``i - 1``, ``:i``."""
    if isinstance(item, ast.Slice):
        ends = [e for e in (item.lower, item.upper) if isinstance(e, ast.Name)]
        return any(e.id in taken.own for e in ends)
    return isinstance(item, ast.BinOp) and bool(list_names(item) & taken.own)
