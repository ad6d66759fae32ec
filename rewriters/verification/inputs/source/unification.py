"""Whether tensors have the shapes that are said of them, equal names being equal sizes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.verification.inputs.source.shapes import (
    ANY,
    Shape,
    evaluate_size,
    read_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def unify(
    shaped: Sequence[tuple[tuple[Shape, ...], tuple[int, ...]]], known: Mapping[str, int]
) -> Iterator[Mapping[str, int]]:
    """Yield sizes for the names in shapes under which each tensor has one of its shapes."""
    if not shaped:
        yield known
        return
    (alternatives, sizes), *rest = shaped
    for shape in alternatives:
        bound = _bind(shape, sizes, known)
        if bound is not None:
            yield from unify(rest, bound)


def _bind(
    shape: Shape, sizes: tuple[int, ...], known: Mapping[str, int]
) -> Mapping[str, int] | None:
    if ANY in shape:
        at = shape.index(ANY)
        more = len(sizes) - len(shape) + 1
        if more < 0:
            return None
        shape, sizes = (*shape[:at], *shape[at + 1 :]), (*sizes[:at], *sizes[at + more :])
    if len(shape) != len(sizes):
        return None
    bound = dict(known)
    parsed = read_sizes(shape)
    for expression, size in zip(parsed or (), sizes, strict=parsed is not None):
        if isinstance(expression, ast.Name):
            if bound.setdefault(expression.id, size) != size:
                return None
        else:
            value = evaluate_size(expression, bound)
            if value is not None and value != size:
                return None
    return bound
