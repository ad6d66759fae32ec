"""Loops over a tensor whose elements, or those of its rows, are numbers for the host."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

from npufix.rewriters.edit.statements.host.element_reads import (
    Element,
    has_root,
    is_number_there,
    is_plain,
    meets_tensor,
    place_before,
    propose_read,
)
from npufix.rewriters.edit.statements.host.of_host import (
    is_list,
    is_of_host,
    is_tensor_elsewhere,
)
from npufix.rewriters.edit.statements.host.seldom import is_seldom
from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.edit.statements.rounds.written import is_left_alone
from npufix.rewriters.facts.kinds.arrays import is_of_numpy
from npufix.rewriters.graph.modules.syntax import (
    find_unused_name,
    list_indexes,
    list_names,
    names_bound_in,
    root_name,
    walk,
)
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_OF_ROWS = {"all": "all", "any": "any", "max": "amax", "min": "amin", "sum": "sum"}
"""What makes one number of a row, and what makes one of each row."""
_OF_ROWS_AND_COLUMNS = 2
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
            sure = sure or is_tensor_elsewhere(here, base)
            again = _named_again(here, loop, target, items[0]) if len(items) == 1 else None
            if len(uses) - len(read) != len(names) + (again is not None) or not sure:
                continue
            parts = [part for n in read if (part := _part_of(here, n)) is not None]
            numbers = [n for n in read if again or is_number_there(here, n)] + parts
            if numbers or items:  # a number of Python meets a tensor as well
                numbers += [n for n in read if n not in numbers and meets_tensor(here, n)]
            if not read or len(numbers) + len(items) < len(read) or names & set(here.flow.captured):
                continue
            at = here.statement_of(loop)
            alone = not isinstance(loop, ast.For) or is_left_alone(here, loop, {root_name(base)})
            if alone is False or here.is_tensor(base) is False or is_list(here, base):
                continue
            head = f"{here.text(base)}.tolist()"
            changes = [Change(here.span(base), head)]
            gone = None if again is None else here.whole_lines(again)
            if gone is not None:
                changes.append(Change(gone, ""))
            else:
                changes += [Change(here.span(c), n.id) for n in read if (c := _item_of(here, n))]
            changes += [Change(here.span(part), _spell(part)) for part in parts]
            code = items[0] if items else base
            found = propose_read(here, code, base, at, tuple(changes), head)
            form = "rows_of_numbers" if isinstance(target, ast.Tuple) else found.form
            form = "parts_of_rows" if parts else form
            yield loop, base, replace(found, form=form)


def read_of_rows(here: Surroundings, code: ast.Call, tensor: ast.expr) -> Proposal | None:
    """Return the read of what is reduced of all rows, for ``mask[i].long().sum().item()``.

    ::

        for i in range(n):                      sums = mask.long().flatten(1).sum(1).tolist()
            k = mask[i].long().sum().item()     for i in range(n):
                                                    k = sums[i]
    """
    match tensor:
        case ast.Call(ast.Attribute(rows, how), [], []) if how in _OF_ROWS:
            pass
        case _:
            return None
    picked = [n for n in ast.walk(rows) if isinstance(n, ast.Subscript)]
    part = picked[0] if len(picked) == 1 else None
    if part is None or not (has_root(part.value) and _keeps_rows(rows, part)):
        return None
    if how == "sum" and not _counts_elements(here, rows):
        return None  # a sum in another order
    element = Element(code, part.value, part.slice)
    at = place_before(here, code, element)
    if not isinstance(at, ast.For) or not is_plain(here, part.slice):
        return None
    others = list_names(rows) - {root_name(part.value)} - list_names(part.slice)
    same = [n for n in walk(at) if isinstance(n, ast.Call) and ast.dump(n) == ast.dump(code)]
    if others & names_bound_in(at) or same[0] is not code or here.is_tensor(part.value) is False:
        return None
    base = here.text(part.value)
    whole = here.text(rows).replace(here.text(part), base, 1)
    plain = isinstance(rows, (ast.Call, ast.Subscript))
    text = f"{whole if plain else f'({whole})'}.flatten(1).{_OF_ROWS[how]}(1).tolist()"
    taken = list_names(here.flow.names.tree or here.flow.function)
    kept = part.value.attr if isinstance(part.value, ast.Attribute) else root_name(part.value)
    name = find_unused_name(f"{kept.lstrip('_')}_{how}s", taken)
    head, line = f"{name} = {text}", (at.lineno, 0, at.lineno, 0)
    changes = [Change(here.span(n), f"{name}[{here.text(part.slice)}]") for n in same]
    found = propose_read(
        here, code, part.value, at, (Change(line, f"{here.indent(at)}{head}\n"), *changes), head
    )
    value = here.value(part.value)
    known = None if value is None else here.facts(here.evaluations[id(part.value)], x=value)
    rank = None if known is None else known.ndim("x")
    proven = {"rows-of-elements"} if rank is not None and rank > 1 else set[str]()
    return replace(found, form="reduced_rows", proven=(found.proven | proven) - {"vector"})


def padded_rows(here: Surroundings) -> Iterator[Proposal]:
    """Yield the loops that go back over rows of zeros, and wait at each of them.

    ::

        while n > 0 and x[n].sum() == 0:        sums = x.flatten(1).sum(1).tolist()
            n -= 1                              while n > 0 and sums[n] == 0:
                                                    n -= 1
    """
    for loop in here.nodes:
        match loop:
            case ast.While(test, [ast.AugAssign(ast.Name(at), ast.Add() | ast.Sub(), by)], []):
                parts = test.values if isinstance(test, ast.BoolOp) else [test]
            case _:
                continue
        sums = [part.left for part in parts if _asks_zero(part)]
        for summed in sums if isinstance(by, ast.Constant) else ():
            base = _summed_row(summed, at)
            value = None if base is None else here.value(base)
            if base is None or value is None or here.is_tensor(base) is False:
                continue
            if is_of_numpy(value) or is_of_host(here, base) or is_seldom(here, loop):
                continue
            rank = here.facts(here.evaluations[id(base)], x=value).ndim("x")
            name = find_unused_name(
                f"{base.id}_sums", list_names(here.flow.names.tree or here.flow.function)
            )
            flat = "" if rank == _OF_ROWS_AND_COLUMNS else ".flatten(1)"
            head = f"{name} = {base.id}{flat}.sum(1).tolist()"
            line = (loop.lineno, 0, loop.lineno, 0)
            changes = (
                Change(line, f"{here.indent(loop)}{head}\n"),
                Change(here.span(summed), f"{name}[{at}]"),
            )
            found = propose_read(here, test, base, loop, changes, head)
            proven = {"rows-of-elements"} if rank is not None and rank > 1 else set[str]()
            yield replace(found, form="last_filled", proven=found.proven | proven)


def _asks_zero(code: ast.expr) -> TypeGuard[ast.Compare]:
    match code:
        case ast.Compare(_, [ast.Eq()], [ast.Constant(value)]):
            return type(value) in {int, float} and value == 0
    return False


def _summed_row(code: ast.expr, at: str) -> ast.Name | None:
    """Return ``x`` of ``x[n].sum()`` and ``torch.sum(x[n])``."""
    match code:
        case ast.Call(ast.Attribute(ast.Name("torch"), "sum"), [row], []):
            pass
        case ast.Call(ast.Attribute(row, "sum"), [], []):
            pass
        case _:
            return None
    match row:
        case ast.Subscript(ast.Name() as base, ast.Name(place)) if place == at != base.id:
            return base
    return None


def _keeps_rows(code: ast.expr, part: ast.Subscript) -> bool:
    """Tell whether nothing is computed of a row but each element for itself, beside numbers."""
    match code:
        case ast.Subscript():
            return code is part
        case ast.Call(ast.Attribute(inner, "long" | "int" | "bool"), [], []):
            return _keeps_rows(inner, part)
        case ast.UnaryOp(ast.Invert(), inner):
            return _keeps_rows(inner, part)
        case ast.Compare(inner, [operator], [ast.Constant() | ast.Attribute() | ast.Name()]):
            return not isinstance(operator, (ast.In, ast.NotIn, ast.Is, ast.IsNot)) and _keeps_rows(
                inner, part
            )
    return False


def _counts_elements(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a sum is one of integers."""
    at = here.evaluations.get(id(code))
    is_bool = at is not None and here.facts(at, x=at.node).is_bool_tensor("x") is True
    return not isinstance(code, ast.Subscript) or is_bool


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
            places = list_indexes(index)
            numbers = all(isinstance(i, ast.Constant) and type(i.value) is int for i in places)
            return part if numbers and is_number_there(here, part) else None
    return None


def _spell(part: ast.Subscript) -> str:
    """Return ``box[0][1]``, as lists are indexed, for ``box[0, 1]``."""
    places = list_indexes(part.slice)
    return ast.unparse(part.value) + "".join(f"[{ast.unparse(i)}]" for i in places)


def _named_again(
    here: Surroundings, loop: _Loop, target: ast.expr, item: ast.Call
) -> ast.Assign | None:
    """Return ``n = n.item()`` with which the rounds of a loop begin: from there on it is a number.

    Another line must be left for the loop.
    """
    match getattr(loop, "body", ()):
        case [ast.Assign([ast.Name(name)], value) as first, _, *_] if value is item:
            own = isinstance(target, ast.Name) and target.id == name
            return first if own and here.whole_lines(first) is not None else None
    return None


def _item_of(here: Surroundings, name: ast.Name) -> ast.Call | None:
    """Return ``n.item()``."""
    match here.parents.get(id(name)):
        case ast.Attribute(attr="item") as method:
            call = here.parents.get(id(method))
            return call if isinstance(call, ast.Call) and not call.args else None
    return None
