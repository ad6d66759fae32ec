"""What the numbers of an exported SQLite file stand for: texts, and rows of other tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from npufix.profiling_parsers.tables.columns import NONE, category

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Rows = NDArray[np.int32]
    Columns = dict[str, NDArray[Any]]

_SPREAD = 4
"""How many times its keys a table of positions may be long."""


class Texts:
    """The strings of a file by the number that stands for them."""

    def __init__(self, known: dict[int, str | None]) -> None:
        """Take the texts by number; one may be NULL."""
        self._known = known

    def __getitem__(self, number: int) -> str:
        return self._known.get(number) or ""

    def __iter__(self) -> Iterator[str]:
        return (text or "" for text in self._known.values())

    def category(
        self, numbers: Integers, clean: Callable[[str], str] = str.strip
    ) -> pd.Categorical[str]:
        """Return a column of numbers as a category of the texts, each through ``clean``."""
        codes, distinct = pd.factorize(numbers)
        cleaned: dict[str, int] = {}
        merged = [
            cleaned.setdefault(clean(self[number]), len(cleaned)) for number in distinct.tolist()
        ]
        return category(np.array(merged, np.int32)[codes], list(cleaned))

    def where(self, wanted: Callable[[str], bool]) -> Integers:
        """Return the numbers of the texts that are ``wanted``."""
        found = [number for number, text in self._known.items() if text and wanted(text.strip())]
        return np.array(found, np.int64)


class Lookup:
    """Where keys first stand in ``among``: from a table if they are close together.

    Rows are int32: no file has more of them, and fresh memory is what most of the time goes into.
    """

    def __init__(self, among: Integers) -> None:
        """Take the keys to look among, in any order."""
        self._first = int(among.min()) if len(among) else 0
        self._sorted: Integers | None = None
        span = int(among.max()) - self._first + 1 if len(among) else 0
        if span <= _SPREAD * len(among):
            self._rows = np.full(span + 1, -1, np.int32)  # the last one is for "no such key"
            self._rows[(among - self._first)[::-1]] = np.arange(len(among), dtype=np.int32)[::-1]
            self.unique = np.count_nonzero(self._rows >= 0) == len(among)
        else:
            self._rows = np.argsort(among, kind="stable").astype(np.int32)
            self._sorted = among[self._rows]
            self.unique = not (self._sorted[1:] == self._sorted[:-1]).any()
        """Whether no key is there twice."""

    def __call__(self, keys: Integers) -> Rows:
        """Return the position of each key, -1 if nowhere; ``NONE`` stands nowhere."""
        if self._sorted is None:
            at = np.subtract(keys, self._first, dtype=np.int64)  # NumPy 1 would keep int32
            # What is too small becomes larger than any other, and so does what wraps around.
            unsigned = at.view(np.uint64)
            np.minimum(unsigned, len(self._rows) - 1, out=unsigned)
            found = self._rows[at]
        else:
            at = np.searchsorted(self._sorted, keys).clip(max=len(self._sorted) - 1)
            found = np.where(self._sorted[at] == keys, self._rows[at], np.int32(-1))
        found[keys == NONE] = -1
        return np.asarray(found, np.int32)


def find_positions(keys: Integers, among: Integers) -> Rows:
    """Return where each key first stands in ``among``, -1 if nowhere; ``NONE`` matches nothing."""
    return Lookup(among)(keys)


def in_start_order(columns: Columns, usable: NDArray[np.bool_]) -> Columns:
    """Return the rows that are usable in the order of ``start_ns``; ``columns`` loses them."""
    start = columns["start_ns"]
    if usable.all() and (start[1:] >= start[:-1]).all():
        return columns
    order = np.argsort(start, kind="stable")
    order = order[usable[order]]
    return {key: columns.pop(key)[order] for key in list(columns)}
