"""The small operations on columns, held against the plain ones of pandas and numpy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st
from pandas.api.types import union_categoricals

from npufix.profiling_parsers.tables.columns import (
    category,
    find_distinct,
    join_categories,
    order_of,
    pick,
)

texts = st.lists(st.sampled_from(["", "Mul", "Add", "Cast"]))


@given(st.lists(texts, min_size=1, max_size=4))
def test_joined_columns_are_those_of_pandas(parts: list[list[str]]) -> None:
    columns = [pd.Series(pd.Categorical(part, categories=sorted(set(part)))) for part in parts]
    found = join_categories(columns)
    if any(parts):  # pandas makes floats of nothing
        assert found.tolist() == union_categoricals([c for c in columns if len(c)]).tolist()
    assert len(found) == sum(map(len, parts))


@given(st.lists(st.integers(0, 1 << 20)))
def test_the_order_is_stable_for_small_numbers_and_for_large_ones(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    assert order_of(values).tolist() == np.argsort(values, kind="stable").tolist()
    assert order_of(values % 3).tolist() == np.argsort(values % 3, kind="stable").tolist()
    assert find_distinct(values).tolist() == sorted(set(numbers))


@given(st.lists(st.integers(-1, 2)))
def test_what_is_nowhere_is_picked_as_missing(rows: list[int]) -> None:
    values, at = np.array([10, 20, 30], np.int32), np.array(rows, np.int32)
    picked = pick(values, at, missing=7)
    assert picked.dtype == np.int32
    assert picked.tolist() == [7 if row < 0 else (10, 20, 30)[row] for row in rows]
    assert pick(values[:0], np.minimum(at, -1)).tolist() == [-1] * len(rows)


def test_a_category_has_the_texts_as_given() -> None:
    assert category(np.array([1, 0, 1]), ["", "Mul"]).tolist() == ["Mul", "", "Mul"]
