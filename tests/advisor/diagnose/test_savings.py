"""All findings together: nothing saved twice, never more than the step."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from npufix.advisor.diagnose.savings import total_saving
from npufix.advisor.evidence.item import Item, rank_items
from npufix.reports.report import Finding, Saving, StepSplit

FINDING = Finding(
    rule="NPU999", name="x", summary="", path="", line=0, function="", code="", replacement="",
    safety="advice", conditions=[], problem="", fingerprint="", kernels=[], calls=0, device_ns=0,
    share=0.0, saving=None, kind="run",
)  # fmt: skip


def found(low: int, high: int, kernels: set[int] | None = None, *, is_idle: bool = False) -> Item:
    finding = msgspec.structs.replace(FINDING, saving=Saving(low, high, ""), device_ns=high)
    return Item(finding=finding, kernels=frozenset(kernels or ()), is_idle=is_idle)


def test_kernels_that_two_findings_free_count_once() -> None:
    total = total_saving([found(10, 20, {1, 2}), found(6, 8, {2, 3})], None)
    assert (total.low_ns, total.high_ns) == (10 + 3, 20 + 4)


def test_waiting_is_removed_once_and_no_more_than_there_is() -> None:
    split = StepSplit(1, 100, 80, 5, 15)
    waits = [found(0, 40, is_idle=True), found(5, 12, is_idle=True)]
    assert total_saving(waits, split).high_ns == 15
    assert total_saving(waits[1:], split).low_ns == 5


def test_the_most_rewarding_comes_first() -> None:
    small, large = found(1, 2), found(0, 9)
    assert rank_items([small, large]) == [large, small]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 50), st.integers(50, 500), st.sets(st.integers(0, 9)), st.booleans()
        )
    ),
    st.tuples(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200)),
)
def test_the_total_is_never_more_than_the_step(
    drawn: list[tuple[int, int, set[int], bool]], parts: tuple[int, int, int]
) -> None:
    everything = [found(low, high, rows, is_idle=idle) for low, high, rows, idle in drawn]
    computing, exposed, free = parts
    total = total_saving(everything, StepSplit(1, sum(parts), computing, exposed, free))
    assert 0 <= total.low_ns <= total.high_ns <= sum(parts)
