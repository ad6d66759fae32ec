"""What the recorded shapes tell: who reads what another kernel wrote, and what products compute."""

from __future__ import annotations

from functools import cache
from math import prod, sqrt
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.shared.recording.recorded_cells import per_row

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]
    Shape = tuple[int, ...]
    Relation = Callable[[tuple[Shape, ...], tuple[Shape, ...]], bool]

_MATRIX = 2
# Larger numbers are damage; they would not fit the arithmetic of anything below.
_LARGEST = 1 << 40


@cache
def shapes(cell: str) -> tuple[Shape, ...]:
    """Return the shapes of a cell: ``"4,8;;8"`` is ``((4, 8), (), (8,))``."""
    return tuple(_shape(part) for part in cell.split(";"))


def elements(shape: Shape) -> int:
    """Return how many numbers a tensor of this shape holds."""
    return prod(shape)


def count_largest(inputs: str) -> float:
    """Return how many numbers the largest tensor of a cell holds."""
    return max(map(elements, shapes(inputs)), default=0)


def product_operations(rows: pd.DataFrame) -> NDArray[np.float64]:
    """Return the floating-point operations of each product, batched or not; 0 if unknown."""
    return per_row(rows, ["input_shapes", "output_shapes"], _operations)


def _operations(inputs: str, outputs: str) -> float:
    left, right = (*shapes(inputs)[:_MATRIX], (), ())[:_MATRIX]
    if not outputs:  # of a GPU what is read is known, as the operator got it
        fits = len(left) == len(right) >= _MATRIX and left[-1] == right[-2]
        return 2 * elements(left) * right[-1] if fits and left[:-2] == right[:-2] else 0
    out = shapes(outputs)[0]
    if not len(left) == len(right) == len(out) >= _MATRIX or not elements(out):
        return 0
    batch = elements(out[:-_MATRIX])
    if not elements(left[:-_MATRIX]) == elements(right[:-_MATRIX]) == batch:
        return 0
    # Whichever operand is transposed: (M K) (K N) / (M N) is K squared, B times of a batch.
    inner = sqrt(elements(left) * elements(right) / elements(out) / batch)
    return 2 * elements(out) * inner


def holds_square_mask(inputs: str, *, for_all: bool = False) -> float:
    """Tell whether a kernel reads scores of queries by as many keys and a square for all heads.

    ``2,16,512,512;1,1,512,512``: what lies above a diagonal may be masked. ``for_all``: the square
    is one for several sequences as well, whose own lengths it cannot be about.
    """
    scores, *others = sorted(shapes(inputs), key=elements, reverse=True) or [()]
    side = scores[-_MATRIX:]
    alike = len(side) == _MATRIX and side[0] == side[1] > 1
    fewer = elements(scores)
    if for_all:
        alike = alike and len(scores) > _MATRIX + 1 and scores[0] > 1
        fewer = elements(side) + 1
    return float(alike and any(o[-_MATRIX:] == side and elements(o) < fewer for o in others))


def reads(written: pd.DataFrame, reader: pd.DataFrame, relation: Relation) -> Mask:
    """Tell for each pair of rows whether the shapes allow that one reads what the other wrote.

    ``relation`` takes the shapes that the first wrote and those that the second reads. Rows
    without shapes have no relation: what is not recorded proves nothing.
    """
    return _find_paired(written, "output_shapes", reader, "input_shapes", relation)


def share_an_input(one: pd.DataFrame, other: pd.DataFrame, relation: Relation) -> Mask:
    """Tell for each pair of rows whether the shapes that both read are in a relation."""
    return _find_paired(one, "input_shapes", other, "input_shapes", relation)


def same_elements(written: tuple[Shape, ...], read: tuple[Shape, ...]) -> bool:
    """Tell whether a result is as long as one of the tensors that are read."""
    lengths = {elements(shape) for shape in written if shape}
    return any(elements(shape) in lengths for shape in read if shape)


def split_among_ranks(written: tuple[Shape, ...], read: tuple[Shape, ...]) -> bool:
    """Tell whether one of the tensors that are read is an equal part of a result."""
    whole = [elements(shape) for shape in written if shape]
    parts = [elements(shape) for shape in read if shape]
    return any(_is_part(part, total) for total in whole for part in parts)


def is_gathered_from_ranks(written: tuple[Shape, ...], read: tuple[Shape, ...]) -> bool:
    """Tell whether a result is an equal part of one of the tensors that are read."""
    return split_among_ranks(read, written)


def _is_part(part: int, whole: int) -> bool:
    """Tell whether 2 to 64 equal parts make the whole."""
    return part > 1 and whole % part == 0 and whole // part in {2, 4, 8, 16, 32, 64}


def _find_paired(
    left: pd.DataFrame, left_cell: str, right: pd.DataFrame, right_cell: str, relation: Relation
) -> Mask:
    first, second = left[left_cell], right[right_cell]
    texts = ([*map(str, first.cat.categories), ""], [*map(str, second.cat.categories), ""])
    codes = (first.cat.codes.to_numpy(np.int64), second.cat.codes.to_numpy(np.int64))
    # One look at each distinct pair of cells; a code of -1 stands for the "" at the end.
    keys, of_row = np.unique((codes[0] + 1) * len(texts[1]) + codes[1] + 1, return_inverse=True)
    known = [
        (texts[0][int(key) // len(texts[1]) - 1], texts[1][int(key) % len(texts[1]) - 1])
        for key in keys
    ]
    related = [bool(a and b) and relation(shapes(a), shapes(b)) for a, b in known]
    return np.array(related, np.bool_)[of_row]


def _shape(part: str) -> Shape:
    dims = part.split(",")
    if not all(dim.strip().isdecimal() and len(dim) <= len(str(_LARGEST)) for dim in dims):
        return ()
    return tuple(min(int(dim), _LARGEST) for dim in dims)
