"""Sums over the rows of a frame by the values of a few columns, without copying the frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_LARGEST_CODE = 1 << 62
_FEW_GROUPS = 32


@dataclass(frozen=True, slots=True)
class Group:
    """The rows with one value of each key."""

    key: tuple[str, ...]
    rows: Integers
    """Positions in the frame."""
    total: int


def rows_where(mask: NDArray[np.bool_]) -> Integers:
    """Return the positions at which a mask holds."""
    return np.flatnonzero(mask).astype(np.int64)


def hottest(
    frame: pd.DataFrame, rows: Integers, keys: Sequence[str], top: int, of: str = "duration_ns"
) -> Iterator[Group]:
    """Yield the ``top`` groups of ``rows`` with the largest sums of the column ``of``.

    Of equal sums the one that comes first in the frame comes first.
    """
    if not len(rows):
        return
    numbers, firsts, sums = _sums(frame, rows, keys, of)
    members = _members(numbers, len(sums), top)
    for number in np.argsort(-sums, kind="stable")[:top]:
        at = int(rows[firsts[number]])
        yield Group(
            tuple(str(frame[key].array[at]) for key in keys),
            rows[members(int(number))],
            int(sums[number]),
        )


def _members(numbers: Integers, groups: int, top: int) -> Callable[[int], Integers]:
    """Return what tells the members of a group: for few groups a search, for many one sort."""
    if min(top, groups) <= _FEW_GROUPS:
        return lambda number: rows_where(numbers == number)
    order = np.argsort(numbers, kind="stable").astype(np.int64)
    ends = np.cumsum(np.bincount(numbers, minlength=groups))
    return lambda number: order[ends[number - 1] if number else 0 : ends[number]]


def number_groups(
    frame: pd.DataFrame, rows: Integers, keys: Sequence[str]
) -> tuple[Integers, Integers]:
    """Return the number of each row's group, and of each group the position of its first row."""
    numbers, firsts, _ = _sums(frame, rows, keys, keys[0])
    return numbers, rows[firsts]


def count_groups(frame: pd.DataFrame, rows: Integers, keys: Sequence[str]) -> int:
    """Return how many different values the keys have in ``rows``."""
    return len(_sums(frame, rows, keys, keys[0])[1]) if len(rows) else 0


def _sums(
    frame: pd.DataFrame, rows: Integers, keys: Sequence[str], of: str
) -> tuple[Integers, Integers, Integers]:
    """Return the group of each row, and of each group its first row and its sum."""
    combined = np.zeros(len(rows), np.int64)
    largest = 1
    for key in keys:
        codes, count = _codes(frame[key], rows)
        if largest * count > _LARGEST_CODE:
            combined = pd.factorize(combined)[0]
            largest = int(combined.max()) + 1
        combined = combined * count + codes + 1  # -1 stands for no value
        largest *= count
    numbers, found = pd.factorize(combined)
    firsts = np.full(len(found), -1, np.int64)
    firsts[numbers[::-1]] = np.arange(len(rows) - 1, -1, -1)
    sums = np.zeros(len(found), np.int64)
    if of not in keys:
        np.add.at(sums, numbers, frame[of].to_numpy()[rows])
    return numbers, firsts, sums


def _codes(column: pd.Series[str], rows: Integers) -> tuple[Integers, int]:
    if isinstance(column.array, pd.Categorical):
        texts = column.array
        return texts.codes[rows].astype(np.int64), len(texts.categories) + 2
    numbers, found = pd.factorize(column.to_numpy()[rows])
    return numbers.astype(np.int64), len(found) + 2
