"""Loops over a tensor whose elements, or those of its rows, are numbers for the host."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.element_reads import (
    has_root,
    is_number_there,
    propose_read,
)
from npufix.rewriters.edit.statements.host.of_host import is_list
from npufix.rewriters.edit.statements.invariants import is_left_alone
from npufix.rewriters.edit.statements.proposal import Change
from npufix.rewriters.graph.modules.syntax import list_names, root_name, walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.proposal import Proposal
    from npufix.rewriters.edit.statements.surroundings import Surroundings

_Loop = ast.For | ast.ListComp | ast.SetComp


def rows_read(here: Surroundings) -> Iterator[tuple[_Loop, ast.expr, Proposal]]:
    """Yield the loops over a tensor whose elements are numbers for the host, and the tensor.

    ``for t, h, w in grid_thw:`` with ``torch.arange(h * w)`` in it becomes a loop over
    ``grid_thw.tolist()``, and ``n.item()`` in ``for n in lengths:`` just ``n``; comprehensions are
    loops as well, ``[names[i.item()] for i in labels]``.
    """
    for loop in here.nodes:
        if not isinstance(loop, _Loop):
            continue
        inside = here.nodes if isinstance(loop, ast.For) else list(walk(loop))
        for target, base in _list_iterated(loop):
            names = list_names(target)
            uses = [n for n in inside if isinstance(n, ast.Name) and n.id in names]
            read = [n for n in uses if isinstance(n.ctx, ast.Load)]
            items = [c for n in read if (c := _item_of(here, n)) is not None]
            sure = bool(items) or here.is_tensor(base) or _is_indexed_like_tensor(here, base)
            if len(uses) - len(read) != len(names) or not sure:
                continue
            parts = [part for n in read if (part := _part_of(here, n)) is not None]
            numbers = [n for n in read if is_number_there(here, n)] + parts
            if not read or len(numbers) + len(items) < len(read) or names & set(here.flow.captured):
                continue
            at = here.statement_of(loop)
            alone = not isinstance(loop, ast.For) or is_left_alone(here, loop, {root_name(base)})
            if alone is False or here.is_tensor(base) is False or is_list(here, base):
                continue
            head = f"{here.text(base)}.tolist()"
            changes = [Change(here.span(base), head)]
            changes += [Change(here.span(c), n.id) for n in read if (c := _item_of(here, n))]
            changes += [Change(here.span(part), _spell(part)) for part in parts]
            code = items[0] if items else base
            found = propose_read(here, code, base, at, tuple(changes), head)
            form = "rows_of_numbers" if isinstance(target, ast.Tuple) else found.form
            form = "parts_of_rows" if parts else form
            yield loop, base, replace(found, form=form)


def _is_indexed_like_tensor(here: Surroundings, base: ast.expr) -> bool:
    """Tell whether a module takes columns of what it goes through, as of no list.

    ``for h, w in grid`` beside ``grid[:, 1:].max()``, ``for h in rows`` of ``rows = grid[:, 1]``.
    """
    value = here.value(base)
    if value is None or here.flow.cls is None or here.is_tensor(base) is False:
        return False
    if value.op == Op.GETITEM and value.args[1].op == Op.TUPLE:
        return True
    return any(
        user.op == Op.GETITEM and user.args[0] is value and user.args[1].op == Op.TUPLE
        for user in here.users(value)
    )


def _list_iterated(loop: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of a loop or a comprehension, each with the tensor it gets elements of."""
    whole: list[tuple[ast.expr, ast.expr]] = []
    match loop:
        case ast.For(target, items):
            whole = [(target, items)]
        case ast.ListComp(generators=[one]) | ast.SetComp(generators=[one]):
            whole = [(one.target, one.iter)]
    for target, items in whole:
        for own, base in _pairs(target, items):
            plain = isinstance(own, ast.Name) or (
                isinstance(own, ast.Tuple) and all(isinstance(e, ast.Name) for e in own.elts)
            )
            if plain and has_root(base):
                yield own, base


def _pairs(target: ast.expr, items: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return what of a target gets the elements of what: of ``zip`` each its own."""
    match target, items:
        case ((ast.Name() | ast.Tuple()), (ast.Name() | ast.Attribute())):
            return [(target, items)]
        case ast.Tuple([_, own]), ast.Call(ast.Name("enumerate"), [base]):
            return [(own, base)]
        case ast.Tuple(targets), ast.Call(ast.Name("zip"), bases) if len(targets) == len(bases):
            return list(zip(targets, bases, strict=True))
    return []


def _part_of(here: Surroundings, name: ast.Name) -> ast.Subscript | None:
    """Return ``box[0, 1]`` where that is a number: all of ``for box in boxes:`` is read at once."""
    match here.parents.get(id(name)):
        case ast.Subscript(ast.Name(), index, ast.Load()) as part if part.value is name:
            places = index.elts if isinstance(index, ast.Tuple) else [index]
            numbers = all(isinstance(i, ast.Constant) and type(i.value) is int for i in places)
            return part if numbers and is_number_there(here, part) else None
    return None


def _spell(part: ast.Subscript) -> str:
    """Return ``box[0][1]``, as lists are indexed, for ``box[0, 1]``."""
    places = part.slice.elts if isinstance(part.slice, ast.Tuple) else [part.slice]
    return ast.unparse(part.value) + "".join(f"[{ast.unparse(i)}]" for i in places)


def _item_of(here: Surroundings, name: ast.Name) -> ast.Call | None:
    """Return ``n.item()``."""
    match here.parents.get(id(name)):
        case ast.Attribute(attr="item") as method:
            call = here.parents.get(id(method))
            return call if isinstance(call, ast.Call) and not call.args else None
    return None
