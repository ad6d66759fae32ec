"""Finds the loops of a function that may be over rows, and brings them to one shape."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import last_name, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames

_JOINED = frozenset({"torch.stack", "torch.cat", "torch.concat", "torch.concatenate"})
_NAMES = frozenset(name.rpartition(".")[2] for name in _JOINED)
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)


@dataclass(frozen=True)
class Loop:
    """A loop, and what comes of it."""

    target: ast.expr
    items: ast.expr
    body: Sequence[ast.stmt]
    statement: ast.stmt
    """The statement that it is, or whose last part it is."""
    joined: ast.Call | None = None
    """The ``torch.stack`` or ``torch.cat`` that takes what each round makes."""
    made: ast.expr | None = None
    """What each round makes, where that is joined."""
    removed: tuple[ast.stmt, ...] = ()
    """The statements that go besides: the empty list, the loop that fills it."""

    @property
    def is_statement(self) -> bool:
        """Whether it is a ``for`` that writes."""
        return self.joined is None

    @property
    def first(self) -> ast.stmt:
        """The statement where it begins."""
        return next((s for s in self.removed if isinstance(s, ast.For)), self.statement)


def may_hold_loops(function: FunctionNode) -> bool:
    """Tell whether a function has a loop whose counter or element is an index or joined."""
    for node in walk(function):
        if isinstance(node, ast.Call) and last_name(node.func) in _NAMES and _comprehension(node):
            return True
        if isinstance(node, ast.For) and any(isinstance(n, ast.Subscript) for n in walk(node)):
            return True
    return False


def spelled_out(function: FunctionNode, names: ModuleNames) -> tuple[FunctionNode, list[Loop]]:
    """Return a function with a ``for`` for each comprehension that is joined, and those loops.

    ``y = torch.stack([f(x[i]) for i in r])`` gets ``for i in r: _ = f(x[i])`` in front of it, so
    that the dataflow is read in there as well. It shares all its expressions with the original.
    """
    found: list[Loop] = []

    def block(body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            for call in _joining(statement, names):
                comprehension = _comprehension(call)
                assert comprehension is not None  # noqa: S101 - that is how they were chosen
                over = comprehension.generators[0]
                inner = ast.Assign([ast.Name("_", ast.Store())], comprehension.elt)
                loop = ast.For(over.target, over.iter, [inner], [])
                made.append(ast.fix_missing_locations(ast.copy_location(loop, statement)))
                ast.copy_location(inner, comprehension.elt)
                found.append(Loop(over.target, over.iter, [], statement, call, comprehension.elt))
            made.append(_inside(statement))
        return made

    def _inside(statement: ast.stmt) -> ast.stmt:
        if not isinstance(statement, (ast.If, ast.For, ast.While, ast.With)):
            return statement
        changed = copy.copy(statement)
        changed.body = block(statement.body)
        if isinstance(changed, (ast.If, ast.For, ast.While)):
            changed.orelse = block(changed.orelse)
        return changed

    new = copy.copy(function)
    new.body = block(function.body)
    return (new, found) if found else (function, [])


def loops_in(body: Sequence[ast.stmt], names: ModuleNames) -> Iterator[Loop]:
    """Yield the ``for`` statements of a block and the blocks in it, the outer ones first."""

    @cache
    def uses() -> Counter[str]:
        return Counter(n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name))

    for number, statement in enumerate(body):
        if isinstance(statement, ast.For) and not statement.orelse:
            filled = _filled(body, number, names, uses)
            if filled is not None:
                yield filled
            else:
                yield Loop(statement.target, statement.iter, statement.body, statement)
        for inner in _blocks(statement):
            yield from loops_in(inner, names)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(statement, field, None)
        if block and not isinstance(
            statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
        ):
            yield block
    for handler in getattr(statement, "handlers", ()):
        yield handler.body


def _filled(
    body: Sequence[ast.stmt], number: int, names: ModuleNames, uses: Callable[[], Counter[str]]
) -> Loop | None:
    """Return a loop that fills a list which is joined right after it, and used for nothing else.

    What it reads must still be the same where the list is joined.
    """
    loop = body[number]
    assert isinstance(loop, ast.For)  # noqa: S101 - the caller has looked
    match loop.body[-1]:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"), [made], [])):
            pass
        case _:
            return None
    after = body[number + 1] if number + 1 < len(body) else loop
    calls = list(_joining(after, names, name))
    if len(calls) != 1 or uses()[name] != 3:  # noqa: PLR2004 - made, filled, joined
        return None
    before = [s for s in body[:number] if _is_empty_list(s, name)]
    if len(before) != 1:
        return None
    return Loop(
        loop.target, loop.iter, loop.body[:-1], after, calls[0], made, (before[0], loop)
    )  # fmt: skip


def _is_empty_list(statement: ast.stmt, name: str) -> bool:
    match statement:
        case ast.Assign([ast.Name(found)], ast.List([])):
            return found == name
        case ast.AnnAssign(ast.Name(found), _, ast.List([])):
            return found == name
    return False


def _joining(statement: ast.stmt, names: ModuleNames, of: str = "") -> Iterator[ast.Call]:
    """Yield the calls that join a comprehension, or the list of a name."""
    if not isinstance(statement, _SIMPLE):
        return
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension)):
            continue
        if isinstance(node, ast.Call) and names.dotted(node.func) in _JOINED and node.args:
            first = node.args[0]
            if of and isinstance(first, ast.Name) and first.id == of:
                yield node
            if not of and _comprehension(node) is not None:
                yield node
                continue
        stack.extend(ast.iter_child_nodes(node))


def _comprehension(call: ast.Call) -> ast.ListComp | ast.GeneratorExp | None:
    first = call.args[0] if call.args else None
    if not isinstance(first, (ast.ListComp, ast.GeneratorExp)) or len(first.generators) != 1:
        return None
    only = first.generators[0]
    return None if only.ifs or only.is_async else first


def renamed(loop: Loop, statement: ast.stmt) -> Loop:
    """Return a loop that belongs to another copy of its statement."""
    return replace(loop, statement=statement)
