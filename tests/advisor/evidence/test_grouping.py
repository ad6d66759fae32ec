"""Sums over groups of rows, held against pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from npufix.advisor.evidence.grouping import count_groups, hottest

ROWS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers(0, 3), st.integers(0, 99)),
    max_size=30,
)


def frame_of(rows: list[tuple[str, str, int, int]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["type", "core", "line", "duration_ns"])
    return frame.astype({"type": "category", "core": "category"})


@given(ROWS, st.integers(1, 5), st.data())
def test_groups_are_those_of_pandas(
    rows: list[tuple[str, str, int, int]], top: int, data: st.DataObject
) -> None:
    frame = frame_of(rows)
    keys = ["type", "core", "line"]
    chosen = np.array(data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True))
                      if rows else [], np.int64)  # fmt: skip
    chosen.sort()
    own = frame.iloc[chosen]
    expected = own.groupby(keys, observed=True)["duration_ns"].sum()
    found = list(hottest(frame, chosen, keys, top))
    assert [g.total for g in found] == sorted(expected.tolist(), reverse=True)[:top]
    for group in found:
        kind, core, line = group.key
        assert group.total == expected[(kind, core, int(line))]
        assert set(group.rows) <= set(chosen)
        assert group.total == frame["duration_ns"].to_numpy()[group.rows].sum()
    assert count_groups(frame, chosen, keys) == len(expected)


def test_of_equal_sums_the_first_in_the_frame_comes_first() -> None:
    frame = frame_of([("b", "x", 0, 5), ("a", "x", 0, 5)])
    assert [g.key for g in hottest(frame, np.arange(2), ["type"], 2)] == [("b",), ("a",)]


def test_a_missing_value_is_a_group_of_its_own() -> None:
    frame = frame_of([("a", "x", 0, 1), ("b", "y", 0, 2)])
    frame["type"] = frame["type"].cat.remove_categories("b")
    assert [g.total for g in hottest(frame, np.arange(2), ["core", "type"], 9)] == [2, 1]
