"""What the rounds of a loop bind to names, and what code reads through them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import last_name, list_names, list_stored_names, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_DEEPEST = 4
"""Names that are followed: ``part = x[rows]``, ``rows = slice(start, end)``."""


def list_bound(body: Sequence[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a round binds, each with its value; ``a, b = x, y`` binds two."""
    for node in walk(*body):
        match node:
            case ast.Assign([ast.Name(name)], value):
                yield name, value
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                for target, value in zip(targets, values, strict=True):
                    yield from list_bound([ast.Assign([target], value)])


def follow(
    code: Sequence[ast.AST], bound: Mapping[str, ast.expr], depth: int = _DEEPEST
) -> Iterator[ast.AST]:
    """Yield the nodes of code, and of what the names in it are bound to."""
    for node in walk(*code):
        yield node
        if isinstance(node, ast.Name) and node.id in bound and depth:
            yield from follow([bound[node.id]], bound, depth - 1)


def look_up(code: ast.expr, bound: Mapping[str, ast.expr]) -> ast.expr:
    """Return what a name is bound to in the round; code itself, if it is no such name."""
    return bound.get(code.id, code) if isinstance(code, ast.Name) else code


def reads_own_list(body: Sequence[ast.stmt]) -> bool:
    """Tell whether a round reads a list that rounds fill: ``b.append(a[i] / b[-1])``."""
    nodes = list(walk(*body))
    filled = {
        ast.unparse(n.func.value)
        for n in nodes
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
        if last_name(n.func) == "append"
    }
    return any(isinstance(n, ast.Subscript) and ast.unparse(n.value) in filled for n in nodes)


def carries(body: Sequence[ast.stmt], known: frozenset[str]) -> bool:
    """Tell whether a name is read before the round binds it; sums and counts are none.

    ``if begins: h = None`` binds no name of which a later line makes the next value: ``h = f(h)``.
    """
    stored = {name for code in body for name in list_stored_names(code)}
    seen = set(known)
    todo: list[ast.stmt | set[str]] = list(body)
    while todo:
        code = todo.pop(0)
        if isinstance(code, set):
            seen -= code
            continue
        if isinstance(code, ast.For | ast.If | ast.With) and not _summed(code):
            perhaps = _list_perhaps(code, body) - seen if isinstance(code, ast.If) else set[str]()
            todo = [*code.body, *getattr(code, "orelse", ()), perhaps, *todo]
            parts: list[ast.AST] = [
                getattr(code, "test", None) or getattr(code, "iter", None) or ast.Pass()
            ]
            seen |= list_names(code.target) if isinstance(code, ast.For) else set()
        else:
            parts = [code]
        sums = {name for name in _summed(code) if _is_only_summed(name, body)}
        sums |= _list_comprehended(parts)
        reads = {
            n.id
            for part in parts
            for n in walk(part)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        } - sums
        if reads & stored - seen:
            return True
        seen |= {name for part in parts for name in list_stored_names(part)}
    return False


def _list_perhaps(code: ast.If, body: Sequence[ast.stmt]) -> set[str]:
    """Return the names that one arm alone binds, and other lines of the round bind as well."""
    arms = [{n for s in arm for n in list_stored_names(s)} for arm in (code.body, code.orelse)]
    inside = {id(s) for s in walk(code)}
    others = {
        name
        for s in walk(*body)
        if id(s) not in inside and isinstance(s, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for name in list_stored_names(s)
    }
    return (arms[0] ^ arms[1]) & others


def _list_comprehended(parts: Sequence[ast.AST]) -> set[str]:
    """Return the names that live in comprehensions alone."""
    over = (n for part in parts for n in walk(part) if isinstance(n, ast.comprehension))
    return {name for each in over for name in list_names(each.target)}


def _is_only_summed(name: str, body: Sequence[ast.stmt]) -> bool:
    """Tell whether nothing in a round reads a sum but what adds to it."""
    sums = [s for code in body for s in walk(code) if isinstance(s, ast.stmt) and _summed(s)]
    own = {id(n) for s in sums if name in _summed(s) for n in walk(s)}
    return not any(
        isinstance(n, ast.Name)
        and n.id == name
        and isinstance(n.ctx, ast.Load)
        and id(n) not in own
        for code in body
        for n in walk(code)
    )


def _summed(code: ast.stmt) -> set[str]:
    """Return the name of ``total += y``, ``total = total + y`` and ``n += 1``.

    Not so ``w = w - w @ u``, which is computed from what the rounds before have left. The first
    round may begin the sum: ``if total is None: total = y`` with the others as ``else``.
    """
    match code:
        case ast.If(_, [ast.Assign([ast.Name(name)], _)], [other]):
            return {name} & _summed(other)
        case ast.Assign(
            [ast.Name(name)], ast.IfExp(_, _, ast.BinOp(ast.Name(first), ast.Add(), added))
        ):
            return {name} & {first} - list_names(added)
        case ast.AugAssign(ast.Name(name), ast.Add() | ast.Sub(), added):
            return {name} - list_names(added)
        case ast.Assign([ast.Name(name)], ast.BinOp(ast.Name(first), ast.Add() | ast.Sub(), added)):
            return {name} & {first} - list_names(added)
    return set()


def list_moved(body: Sequence[ast.stmt]) -> frozenset[str]:
    """Return what counts along over the rounds: ``at += n``, which only slices read."""
    found: set[str] = set()
    for code in walk(*body):
        match code:
            case ast.AugAssign(ast.Name(name), ast.Add()):
                found.add(name)
            case ast.Assign([ast.Name(name)], ast.Name(end)):  # ``start = end``
                found |= {name} if any(_adds(s, end, name) for s in body) else set()
    slices = [n for code in body for n in walk(code) if isinstance(n, ast.Slice)]
    used = {name for part in slices for name in list_names(part)}
    return frozenset(found & used)


def _adds(code: ast.stmt, end: str, start: str) -> bool:
    match code:
        case ast.Assign([ast.Name(name)], ast.BinOp(ast.Name(left), ast.Add())):
            return name == end and left == start
    return False
