"""Labels are a set: what they say is what a ``frozenset`` of them says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from npufix.rules.shared.labels import Labels

NUMBERS = st.frozensets(st.integers(0, 40))


@given(one=NUMBERS, other=NUMBERS, label=st.integers(-2, 42))
def test_labels_are_a_set(one: frozenset[int], other: frozenset[int], label: int) -> None:
    mine, theirs = Labels(one), Labels(other)
    assert list(mine) == sorted(one)
    assert (label in mine) is (label in one)
    assert mine == one
    assert hash(mine) == hash(one)
    assert (mine <= theirs) is (one <= other)
    for against in (theirs, other):
        assert (mine | against, mine & against, mine - against) == (
            one | other,
            one & other,
            one - other,
        )
