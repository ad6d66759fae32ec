"""The first elements of rows that are copied to the same places, each row as many as it has.

::

    for i in range(b):                 known = torch.arange(w) < n.reshape(-1, 1)
        out[i, : n[i]] = x[i, : n[i]]  out[:] = torch.where(known, x[:, :w], out)
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.filling import compare, rows_written
from npufix.rewriters.edit.loops.indexing import flatten, spell_items, trim
from npufix.rewriters.edit.loops.values import (
    LENGTHS,
    NO_TENSOR,
    UNKNOWN_RANK,
    CannotBatchError,
    everything,
    parse,
    subscript,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.loops.indexing import Place
    from npufix.rewriters.edit.loops.statements import Body

_SHARED = "what it writes to may share memory with what it reads"


def read_copied(body: Body, written: list[ast.expr], code: ast.expr) -> ast.expr | None:
    """Return ``x`` of ``out[i, :n[i]] = x[i, :n[i]]``: both sides have one index."""
    if not isinstance(code, ast.Subscript):
        return None
    base, index = flatten(code)
    if not isinstance(base, ast.Name | ast.Attribute) or body.of.depends(base):
        return None
    read = spell_items(index, body.facts.rank(base))
    return base if _texts(read) == _texts(written) else None


def copy_rows(body: Body, base: ast.expr, place: Place, source: ast.expr) -> Iterator[ast.stmt]:
    """Yield what copies the first elements of all rows.

    Raises:
        CannotBatchError: both may be one tensor, or it is not known where the elements are.

    """
    facts = body.facts
    if facts.is_tensor(source) is False:
        raise CannotBatchError(NO_TENSOR)
    if facts.is_tensor(source) is None:
        body.of.ask_for_tensor(source)
    nodes = facts.node(base), facts.node(source)
    shares = True if nodes[0] is None or nodes[1] is None else facts.may_share(nodes[0], nodes[1])
    if shares:
        raise CannotBatchError(_SHARED)
    if shares is None:
        body.of.conditions["separate-memory"] = None
    plain = all(isinstance(item, ast.Slice) for item in place.items)
    bounds = [b for part in place.ragged for b in (part.lower, part.upper) if b is not None]
    if not plain or not place.is_view or any(isinstance(b.code, ast.UnaryOp) for b in bounds):
        raise CannotBatchError(LENGTHS)  # ``x[i, :-n[i]]`` of another width is another part
    ranks = facts.rank(base), facts.rank(source)
    if all(isinstance(rank, int) for rank in ranks) and ranks[0] != ranks[1]:
        raise CannotBatchError(UNKNOWN_RANK)
    if not all(isinstance(rank, int) for rank in ranks):
        body.of.conditions["no-broadcasting"] = None
    statements, mask = compare(body, base, place)
    yield from statements
    written = rows_written(base, place)
    target = written if isinstance(written, ast.Subscript) else subscript(written, [everything()])
    assert isinstance(target, ast.Subscript)  # noqa: S101 - it was made so
    stored = ast.Subscript(target.value, target.slice, ast.Store())
    new = ast.Call(parse("torch.where"), [mask, _read(body, base, place, source), written], [])
    yield ast.Assign([stored], new, lineno=0)


def _read(body: Body, base: ast.expr, place: Place, source: ast.expr) -> ast.expr:
    """Return what is read for all rows, as wide as what it is written to: ``x[:, :out.shape[1]]``.

    What was made with the shape of the other one is as wide anyway.
    """
    facts = body.facts
    items: list[ast.expr] = list(place.items)
    rows, wide = facts.node(source), facts.node(base)
    assert rows is not None  # noqa: S101 - asked before
    assert wide is not None  # noqa: S101 - same
    at = items[place.source_dim]
    if isinstance(at, ast.Slice) and facts.spans(body.of.domain.stop_node, rows, place.source_dim):
        items[place.source_dim] = everything()
    elif isinstance(at, ast.Slice) and at.lower is None and at.upper is None:
        items[place.source_dim] = ast.Slice(None, body.of.domain.stop, None)
    if not facts.is_alike(wide, rows):
        for part in place.ragged:
            width = parse(f"{ast.unparse(base)}.shape[{part.source}]")
            items[part.source] = ast.Slice(None, width, None)
        body.of.conditions["as-wide"] = None
        body.of.shown.setdefault("wide", parse(f"{ast.unparse(base)}.shape"))
        body.of.shown.setdefault("read", parse(f"{ast.unparse(source)}.shape"))
    index = trim(items)
    return subscript(source, index) if index else source


def _texts(items: list[ast.expr]) -> list[str]:
    return [ast.unparse(item) for item in trim(items)]
