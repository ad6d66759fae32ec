"""A step lasts from its mark to the next one."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from npufix.profiling_parsers.kernels.launch_order import launches_in_order, stream_numbers
from npufix.profiling_parsers.kernels.steps import steps_from_kernels
from npufix.profiling_parsers.kernels.whole_steps import host_marks, steps_between, whole_steps

EPOCH = 1_736_408_883_704_000_000


def kernels(*rows: tuple[int, int, int]) -> pd.DataFrame:
    """Return kernels of (step, start, duration)."""
    return pd.DataFrame(
        [
            {"step": step, "device": 0, "start_ns": EPOCH + start, "duration_ns": duration,
             "communication": False}
            for step, start, duration in rows
        ]
    ).astype({"step": "Int64"})  # fmt: skip


def lengths(frame: pd.DataFrame) -> list[int]:
    return (frame["computing_ns"] + frame["communication_exposed_ns"] + frame["free_ns"]).tolist()


def marks(**spans: tuple[int, int]) -> dict[int, tuple[int, int]]:
    return {int(k[1:]): (EPOCH + begin, EPOCH + end) for k, (begin, end) in spans.items()}


def test_loading_before_the_first_kernel_is_a_part_of_the_step() -> None:
    own = kernels((7, 44, 70), (7, 116, 2), (8, 163, 70), (8, 235, 1))
    found = whole_steps(steps_from_kernels(own), own, marks(s7=(0, 119), s8=(119, 240)))
    assert lengths(found) == [119, 121]
    assert found["preparing_ns"].tolist() == [44, 44]
    assert found["computing_ns"].tolist() == [72, 71]


def test_no_time_counts_twice_where_the_device_lags_behind() -> None:
    # The host is done with step 7 at 50, while the device runs it until 110.
    own = kernels((7, 10, 100), (8, 112, 100))
    found = whole_steps(steps_from_kernels(own), own, marks(s7=(0, 50), s8=(50, 100)))
    assert lengths(found) == [110, 102]
    assert sum(lengths(found)) == 212
    assert found["preparing_ns"].tolist() == [10, 2]


def test_steps_that_do_not_follow_each_other_begin_at_their_marks() -> None:
    own = kernels((7, 10, 10), (9, 212, 10))
    found = whole_steps(steps_from_kernels(own), own, marks(s7=(0, 20), s9=(200, 230)))
    assert lengths(found) == [20, 30]


def test_a_mark_behind_the_first_kernel_takes_nothing_away() -> None:
    own = kernels((7, 10, 10))
    found = whole_steps(steps_from_kernels(own), own, marks(s7=(12, 15)))
    assert lengths(found) == [10]
    assert found["preparing_ns"].tolist() == [0]


def stated(*preparing: int) -> pd.DataFrame:
    own = kernels(*((n, 100 * n, 10) for n in range(len(preparing))))
    return steps_from_kernels(own).assign(preparing_ns=preparing)


def test_the_column_preparing_stands_for_a_mark() -> None:
    own = kernels((0, 30, 10), (1, 100, 10))
    steps = steps_from_kernels(own).assign(preparing_ns=[20, 70])
    assert lengths(whole_steps(steps, own)) == [30, 70]


@pytest.mark.parametrize(("preparing", "expected"), [((20, 5), [30, 10]), ((-1, 5), [10, 10])])
def test_without_kernels_only_the_first_step_of_a_row_is_known(
    preparing: tuple[int, ...], expected: list[int]
) -> None:
    assert lengths(whole_steps(stated(*preparing))) == expected


def test_a_run_without_steps_stays_as_it_is() -> None:
    own = kernels((1, 10, 10)).assign(step=pd.array([None], "Int64"))
    assert lengths(whole_steps(steps_from_kernels(own), own, marks(s1=(0, 90)))) == [10]


def operator(name: str, start: int, duration: int) -> dict[str, Any]:
    return {"name": name, "start_ns": EPOCH + start, "duration_ns": duration}


def test_marks_are_operators_of_the_host() -> None:
    ops = [operator("ProfilerStep#7", 3, 9), operator("aten::add", 4, 1)]
    found = host_marks(pd.DataFrame(ops).astype({"name": "category"}))
    assert found == marks(s7=(3, 12))


def test_collectives_say_how_far_steps_are_apart_where_no_kernels_are_read() -> None:
    own = kernels((7, 25, 17), (8, 67, 17), (9, 109, 17))
    steps = steps_from_kernels(own).assign(preparing_ns=[25, 25, 300])
    reached = pd.DataFrame(
        {"step": ["7", "8", "9"], "start_ns": [EPOCH + n for n in (40, 82, 124)]}
    )
    found = whole_steps(steps, collectives=reached)
    assert found["preparing_ns"].tolist() == [25, 25, 25]
    assert lengths(found) == [42, 42, 42]
    # Without them nothing says whether the device still ran the step before.
    assert whole_steps(steps)["preparing_ns"].tolist() == [25, 0, 0]


def test_a_batch_copied_while_the_step_before_computes_is_not_counted_twice() -> None:
    # Step 7 computes until 110; meanwhile, from 60 to 70, the batch of step 8 is copied.
    own = kernels((7, 10, 100), (8, 60, 10), (8, 110, 80))
    found = steps_between(own, marks(s7=(0, 50), s8=(50, 100)))
    assert lengths(found) == [110, 80]
    assert found["computing_ns"].tolist() == [100, 80]
    assert found["free_ns"].tolist() == [10, 0]


def test_a_launch_that_was_not_recorded_is_that_of_the_kernel_before() -> None:
    # By its start the second kernel is of step 8: the device is behind.
    own = kernels((7, 40, 10), (7, 60, 10), (8, 70, 10)).assign(
        stream=2, launch_ns=[EPOCH + 5, -1, EPOCH + 55]
    )
    assert (launches_in_order(own) - EPOCH).tolist() == [5, 5, 55]


def test_a_stream_runs_in_the_order_of_its_launches() -> None:
    own = kernels((7, 40, 10), (7, 60, 10)).assign(stream=2, launch_ns=[EPOCH + 30, EPOCH + 20])
    assert (launches_in_order(own) - EPOCH).tolist() == [20, 20]
    assert launches_in_order(own.assign(launch_ns=-1)).tolist() == [-1, -1]


def test_collectives_that_run_beside_each_other_are_on_streams_of_their_own() -> None:
    own = kernels((7, 0, 90_000), (7, 10_000, 90_000), (7, 95_000, 50_000), (7, 144_500, 9_000))
    own = own.assign(stream=9)
    assert stream_numbers(own.assign(communication=True)).tolist() == [0, 1, 0, 0]
    # Kernels are what their stream says, and so are collectives of one stream after the other.
    assert stream_numbers(own).tolist() == [0] * 4
