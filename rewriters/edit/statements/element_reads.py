"""Elements of a tensor that a loop reads on the host one by one, which one read can bring."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.edit.statements.invariants import is_left_alone
from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.edit.statements.surroundings import COMPREHENSIONS
from npufix.rewriters.graph.modules.syntax import stored_names, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)


class _Element(NamedTuple):
    """``x[i].item()`` and ``int(x[i])``: what becomes ``values[i]`` is ``code``."""

    code: ast.expr
    base: ast.expr
    place: ast.expr


def read_before(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return the read of all elements before the loop, for the first of those in it.

    ::

        for i in range(n):              values = starts.tolist()
            k = starts[i].item()        for i in range(n):
                                            k = values[i]
    """
    first = _element(code)
    at = None if first is None else _place(here, code, first)
    if first is None or at is None:
        return None
    base = here.text(first.base)
    every = [e for n in walk(at) if (e := _element(n)) is not None and here.text(e.base) == base]
    if not all(_is_plain(here, e.place) for e in every):
        return None
    name = _new_name(here, first.base)
    line = (at.lineno, 0, at.lineno, 0)
    changes = [Change(here.span(e.code), f"{name}[{here.text(e.place)}]") for e in every]
    head = f"{name} = {base}.tolist()"
    return _proposal(
        here, code, first.base, at, (Change(line, f"{here.indent(at)}{head}\n"), *changes), head
    )


def is_covered(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether an element before this one brings all of them: it is said there."""
    own = _element(code)
    at = None if own is None else _place(here, code, own)
    if own is None or at is None:
        return False
    same = [
        n
        for n in walk(at)
        if (e := _element(n)) is not None and ast.dump(e.base) == ast.dump(own.base)
    ]
    first = min(same, key=lambda n: (getattr(n, "lineno", 0), getattr(n, "col_offset", 0)))
    return (
        first is not code and isinstance(first, ast.Call) and read_before(here, first) is not None
    )


def _proposal(  # noqa: PLR0913, PLR0917 - all that is known of it
    here: Surroundings,
    code: ast.Call,
    base: ast.expr,
    at: ast.stmt,
    changes: tuple[Change, ...],
    shown: str,
) -> Proposal:
    proven = {"is-tensor"} if here.is_tensor(base) else set[str]()
    value = here.value(base)
    if value is not None and here.facts(here.evaluations[id(base)], x=value).ndim("x") == 1:
        proven.add("vector")
    if not isinstance(at, (ast.For, ast.While)) or is_left_alone(here, at, {_root(base)}):
        proven.add("not-written-to")
    return Proposal(
        code,
        form="element_by_element",
        changes=changes,
        shown=shown,
        asked=(("x", here.text(base)),),
        asked_at=at,
        proven=frozenset(proven),
    )


def _element(code: ast.AST) -> _Element | None:
    match code:
        case ast.Call(ast.Attribute(ast.Subscript(base, index), "item"), [], []):
            return _Element(code, base, index) if _has_root(base) else None
        case ast.Call(ast.Name("int" | "float"), [ast.Subscript(base, index) as part], []):
            return _Element(part, base, index) if _has_root(base) else None
    return None


def _has_root(base: ast.expr) -> bool:
    return isinstance(base, ast.Name) or (
        isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name)
    )


def _root(base: ast.expr) -> str:
    while isinstance(base, ast.Attribute):
        base = base.value
    return base.id if isinstance(base, ast.Name) else ""


def _place(here: Surroundings, code: ast.Call, element: _Element) -> ast.stmt | None:
    """Return the outermost loop, or the statement with a comprehension, that may read it before."""
    root = _root(element.base)
    found: ast.stmt | None = None
    for outer in here.around(code):
        match outer:
            case ast.If(test) | ast.IfExp(test) if root in _named(test):
                break  # ``if lengths is not None:``
            case ast.For() | ast.While():
                if is_left_alone(here, outer, {root}) is False:
                    break
                found = outer
            case ast.stmt() if found is None and here.loop_of(outer) is None:
                found = outer if isinstance(outer, _SIMPLE) else None
                break
            case _ if isinstance(outer, COMPREHENSIONS) and any(
                root in stored_names(g.target) for g in outer.generators
            ):
                break
    alone = found is not None and not here.lines[found.lineno - 1][: here.span(found)[1]].strip()
    return found if alone else None


def _named(code: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(code) if isinstance(n, ast.Name)}


def _is_plain(here: Surroundings, index: ast.expr) -> bool:
    """Tell whether an index is a Python number: a counter, and sums of it."""
    match index:
        case ast.Constant(value):
            return type(value) is int
        case ast.UnaryOp(ast.USub(), inner):
            return _is_plain(here, inner)
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            return _is_plain(here, left) and _is_plain(here, right)
        case ast.Name(name):
            return all(_counts(target, items, name) for target, items in _bound(here, name))
    return False


def _bound(here: Surroundings, name: str) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield where a name gets its values; without any loop what it is is not known."""
    found = False
    for node in here.nodes:
        match node:
            case ast.For(target, items) | ast.comprehension(target, items):
                if name in stored_names(target):
                    found = True
                    yield target, items
            case ast.Name(own, ast.Store()) if own == name:
                inside = any(
                    isinstance(o, (ast.For, ast.comprehension)) and node in ast.walk(o.target)
                    for o in here.around(node)
                )
                if not inside:
                    yield node, None
    if not found:
        yield ast.Name(name), None


def _counts(target: ast.expr, items: ast.expr | None, name: str) -> bool:
    match target, items:
        case ast.Name(), ast.Call(ast.Name("range")):
            return True
        case ast.Tuple([ast.Name(first), *_]), ast.Call(ast.Name("enumerate")):
            return first == name
    return False


def _new_name(here: Surroundings, base: ast.expr) -> str:
    name = base.attr if isinstance(base, ast.Attribute) else _root(base)
    name, taken = f"{name.lstrip('_')}_list", _named(here.flow.names.tree or here.flow.function)
    while name in taken:
        name += "_"
    return name
