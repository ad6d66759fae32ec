"""Sums over groups of rows, exact as no float is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


class Groups:
    """Rows that have the same key, as positions; groups are in the order of their keys."""

    def __init__(self, *keys: NDArray[np.integer]) -> None:
        """``keys`` are columns of equal length."""
        self._order = np.lexsort(keys[::-1])
        sorted_keys = [key[self._order] for key in keys]
        new = np.ones(len(self._order), np.bool_)
        if len(new):
            new[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in sorted_keys])
        self._starts = np.flatnonzero(new)
        self.first = self._order[self._starts]
        """A row of each group."""

    def __len__(self) -> int:
        return len(self._starts)

    def count(self) -> Integers:
        """Return the number of rows of each."""
        return np.diff(np.append(self._starts, len(self._order)))

    def total(self, values: NDArray[np.int64]) -> Integers:
        """Return the sum of each; -1 where one of its rows does not say."""
        if not len(self):
            return values[:0]
        sums: Integers = np.add.reduceat(values[self._order], self._starts)
        return np.where(np.minimum.reduceat(values[self._order], self._starts) < 0, -1, sums)

    def largest(self, values: NDArray[np.int64]) -> Integers:
        """Return the largest of each."""
        if not len(self):
            return values[:0]
        found: Integers = np.maximum.reduceat(values[self._order], self._starts)
        return found

    def average(
        self, values: NDArray[np.float64], weights: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the mean of each by weight, 0 where nothing has any."""
        if not len(self):
            return values[:0]
        sums = np.add.reduceat((values * weights)[self._order], self._starts)
        whole = np.add.reduceat(weights[self._order], self._starts)
        mean: NDArray[np.float64] = sums / np.maximum(whole, 1)
        return mean


def number_texts(texts: Sequence[str]) -> tuple[list[str], NDArray[np.int32]]:
    """Return the distinct texts, and the position of each text in them."""
    known: dict[str, int] = {}
    codes = [known.setdefault(text, len(known)) for text in texts]
    return list(known), np.array(codes, np.int32)
