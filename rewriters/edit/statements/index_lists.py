"""Columns picked by a list of numbers that are written out."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Change, Proposal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings


def find_index_lists(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``x[:, [0, 2]]`` where the numbers are a slice."""
    for node in here.nodes:
        match node:
            case ast.Subscript(owner, ast.Tuple(items), ast.Load()):
                lists = [item for item in items if isinstance(item, ast.List)]
                others = [item for item in items if item not in lists]
                text = slice_of(lists[0].elts) if len(lists) == 1 else None
                tensor = here.is_tensor(owner)
                if text is None or tensor is False or not all(map(_is_whole, others)):
                    continue
                if not here.is_hot and not tensor:
                    continue
                parts = [text if item is lists[0] else here.text(item) for item in items]
                new = f"{here.text(owner)}[{', '.join(parts)}].clone()"
                proven = frozenset({"is-tensor"} if tensor else ())
                change = Change(here.span(node), new)
                yield Proposal(node, changes=(change,), shown=new, proven=proven)


def slice_of(items: Sequence[ast.expr]) -> str | None:
    """Return ``0:5:2`` for ``0, 2, 4``, ``None`` for what is no slice of two places or more."""
    places = [item.value for item in items if isinstance(item, ast.Constant)]
    numbers = [place for place in places if type(place) is int and place >= 0]
    if len(numbers) != len(items) or len(numbers) < 2:  # noqa: PLR2004 - one may keep a dimension
        return None
    step = numbers[1] - numbers[0]
    if step < 1 or numbers != list(range(numbers[0], numbers[-1] + 1, step)):
        return None
    end = numbers[-1] + 1
    return f"{numbers[0]}:{end}" if step == 1 else f"{numbers[0]}:{end}:{step}"


def _is_whole(code: ast.expr) -> bool:
    """Tell whether a part of a subscript takes all of a dimension."""
    match code:
        case ast.Slice(None, None, None):
            return True
    return isinstance(code, ast.Constant) and code.value is Ellipsis
