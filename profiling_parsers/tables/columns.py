"""What numpy and pandas do not have, or not fast enough, for columns of millions of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Integers = NDArray[np.signedinteger[Any]]

NONE = -1
"""A number that the dump does not say, and the row of what is nowhere."""
_SMALL = 1 << 15


def category(codes: NDArray[Any], texts: list[str]) -> pd.Categorical[str]:
    """Return a column of texts given as positions in ``texts``."""
    return pd.Categorical.from_codes(codes, categories=pd.Index(texts, dtype=object))


def find_rows_with(column: pd.Series[str], wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Return the rows of a category column whose text is ``wanted``."""
    found = [wanted(text) for text in column.cat.categories]
    return np.array([*found, False], np.bool_)[column.cat.codes]


def join_categories(parts: list[pd.Series[str]]) -> pd.Categorical[str]:
    """Put category columns below each other; several times as fast as ``union_categoricals``."""
    texts: dict[str, int] = {}
    codes = np.empty(sum(map(len, parts)), np.int32)
    first = 0
    for part in parts:
        known = [texts.setdefault(text, len(texts)) for text in part.cat.categories]
        behind = first + len(part)
        codes[first:behind] = np.array([*known, -1], np.int32)[part.cat.codes]
        first = behind
    return category(codes, list(texts))


def one_line(text: str) -> str:
    """Return a text without its line breaks."""
    return text.replace("\r", "").replace("\n", "") if "\n" in text or "\r" in text else text


def pick(values: NDArray[Any], rows: Integers, missing: int = NONE) -> NDArray[Any]:
    """Return ``values[rows]``, ``missing`` where the row is negative."""
    if not len(values):
        return np.full(len(rows), missing, values.dtype)
    picked = values[rows]
    picked[rows < 0] = missing
    return picked


def find_distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values in order; ``np.unique`` takes ten times as long for millions."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def order_of(numbers: Integers) -> NDArray[np.intp]:
    """Return the stable order of numbers from 0 on, most of which are small.

    Sixteen bits are sorted in time that grows with the rows alone.
    """
    is_small = len(numbers) and int(numbers.max()) < _SMALL
    return np.argsort(numbers.astype(np.int16) if is_small else numbers, kind="stable")
