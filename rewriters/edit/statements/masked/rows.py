"""Rows that a mask selects, changed in some columns, and written back through it.

``v = x[m]``, ``v[..., -2] = 1``, ``x[m] = v`` is ``x[..., -2].masked_fill_(m, 1)``.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.graph import operators

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.facts.site_facts import SourceFacts


def find_changed_columns(here: Surroundings) -> Iterator[Proposal]:
    """Yield rows whose columns get numbers, where nobody else needs the copy of the rows."""
    for node in here.nodes:
        match node:
            case ast.Assign(
                [ast.Subscript(ast.Name() | ast.Attribute() as whole, ast.Name() as mask)],
                ast.Name(rows),
            ):
                proposal = _changed(here, node, whole, mask, rows)
                if proposal is not None:
                    yield proposal


def _changed(
    here: Surroundings, last: ast.Assign, whole: ast.expr, mask: ast.Name, rows: str
) -> Proposal | None:
    """Return the columns written where they are, ``None`` where it is something else."""
    block = here.block_of(last)
    before = block[: block.index(last)]
    columns: list[tuple[ast.Assign, ast.expr, ast.expr]] = []
    while before and (found := _column(before[-1], rows)) is not None:
        columns.insert(0, found)
        before = before[:-1]
    first = before[-1] if before else None
    names = [n for n in here.nodes if isinstance(n, ast.Name) and n.id == rows]
    if not columns or first is None or len(names) != len(columns) + 2:
        return None
    match first:
        case ast.Assign([ast.Name(kept)], ast.Call(ast.Attribute(read, "clone"), [], [])):
            pass
        case ast.Assign([ast.Name(kept)], read):
            pass
        case _:
            return None
    alike = ast.unparse(read) == ast.unparse(last.targets[0]) and kept == rows
    if not isinstance(read, ast.Subscript) or not alike:
        return None
    if here.value(read.slice) is not here.value(mask):
        return None
    return _write(here, first, columns, last, whole, mask)


def _write(  # noqa: PLR0913, PLR0917 - the statements, and what they are about
    here: Surroundings,
    first: ast.stmt,
    columns: list[tuple[ast.Assign, ast.expr, ast.expr]],
    last: ast.Assign,
    whole: ast.expr,
    mask: ast.Name,
) -> Proposal | None:
    """Return the numbers written where they belong, ``None`` if that is no row of a tensor."""
    text, asked = here.text(whole), here.text(mask)
    at, value = here.evaluations.get(id(whole)), here.value(mask)
    spans = [here.whole_lines(statement) for statement in (first, last)]
    if at is None or value is None or None in spans:
        return None
    facts = here.facts(at, x=at.node, mask=value)
    fits = facts.is_tensor("x") is not False and facts.more_dims("x", "mask") in {None, 1}
    if not fits or not _may_be_mask(facts, value.op):
        return None
    new = []
    for _, index, number in columns:
        place = f"{asked}[..., None]" if isinstance(index, ast.Slice) else asked
        new.append(f"{text}[..., {here.text(index)}].masked_fill_({place}, {here.text(number)})")
    changes = [Change(here.span(c[0]), line) for c, line in zip(columns, new, strict=True)]
    changes += [Change(span, "") for span in spans if span is not None]
    return Proposal(
        last,
        form="column_written",
        changes=tuple(changes),
        shown="\n".join(new),
        asked=(("mask", asked), ("x", text)),
        proven=frozenset(_proven(facts, [number for *_, number in columns])),
    )


def _column(statement: ast.stmt, rows: str) -> tuple[ast.Assign, ast.expr, ast.expr] | None:
    """Return what ``rows[..., at] = 1`` writes, and where: one column, or several."""
    match statement:
        case ast.Assign(
            [ast.Subscript(ast.Name(name), ast.Tuple([rest, at]))],
            (ast.Constant() | ast.UnaryOp(ast.USub(), ast.Constant())) as number,
        ) if name == rows and _is_all(rest) and _is_plain(at):
            inner = number.operand if isinstance(number, ast.UnaryOp) else number
            known = isinstance(inner, ast.Constant) and type(inner.value) in {bool, float, int}
            return (statement, at, number) if known else None
    return None


def _is_all(code: ast.expr) -> bool:
    """Tell whether an index leaves all dimensions but the last one of rows as they are."""
    match code:
        case ast.Slice(None, None, None):
            return True
        case ast.Constant(value):
            return value is ...
    return False


def _is_plain(code: ast.expr) -> bool:
    """Tell whether an index is one number, or a range of numbers."""
    match code:
        case ast.Slice(lower, upper, step):
            return all(part is None or _is_plain(part) for part in (lower, upper, step))
        case ast.Constant(value) | ast.UnaryOp(ast.USub(), ast.Constant(value)):
            return type(value) is int
    return False


def _may_be_mask(facts: SourceFacts, made_by: str) -> bool:
    known = facts.is_bool_tensor("mask")
    return known is True or (known is None and made_by in operators.BOOLEAN | {"invert"})


def _proven(facts: SourceFacts, numbers: list[ast.expr]) -> Iterator[str]:
    if facts.is_tensor("x"):
        yield "is-tensor"
    if facts.is_bool_tensor("mask"):
        yield "boolean-mask"
    if facts.more_dims("x", "mask") == 1:
        yield "row-mask"
    if facts.same_device("x", "mask"):
        yield "same-device"
    if facts.dtype("x") in {"float32", "float64", "bfloat16"} or all(
        ast.unparse(n) in {"0", "1", "0.0", "1.0", "True", "False"} for n in numbers
    ):
        yield "value-fits-dtype"
