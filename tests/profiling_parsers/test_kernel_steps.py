from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npufix.profiling_parsers.kernels.steps import steps_from_kernels
from npufix.profiling_parsers.text.kernel_checks import check_steps
from npufix.profiling_parsers.text.kernel_details import read_kernel_details
from npufix.profiling_parsers.text.step_trace_time import read_step_trace_time

if TYPE_CHECKING:
    from pathlib import Path

EPOCH = 1_736_408_883_704_643_212
Row = tuple["int | None", int, int, int, bool]
SPLIT = ("computing_ns", "communication_exposed_ns", "overlapped_ns", "communication_ns", "free_ns")


def kernels(*rows: Row) -> pd.DataFrame:
    """Return kernels from (step, device, start, duration, communication)."""
    columns = ["step", "device", "start_ns", "duration_ns", "communication"]
    kinds = {"step": "Int64", "device": "int32", "start_ns": "int64", "duration_ns": "int64"}
    frame = pd.DataFrame(list(rows), columns=columns).astype({**kinds, "communication": "bool"})
    frame["start_ns"] += EPOCH
    return frame


def split(*rows: Row) -> list[tuple[object, ...]]:
    steps = steps_from_kernels(kernels(*rows))
    assert steps["step"].dtype == "Int64"
    assert steps["device"].dtype == "int32"
    return [
        (None if pd.isna(step) else step, device, *times)
        for step, device, *times in steps[["step", "device", *SPLIT]].itertuples(index=False)
    ]


def test_compute_communication_and_idle_time() -> None:
    compute, collective = (1, 0, 0, 100, False), (1, 0, 60, 100, True)
    assert split(compute, collective, (1, 0, 200, 10, False)) == [(1, 0, 110, 60, 40, 100, 40)]


def test_kernels_at_the_same_time_count_once() -> None:
    rows = [(1, 0, start, 100, False) for start in (0, 50, 50, 20)]
    assert split(*rows) == [(1, 0, 150, 0, 0, 0, 0)]


def test_each_step_and_device_by_itself() -> None:
    rows: list[Row] = [(2, 1, 500, 5, False), (1, 1, 0, 10, False), (1, 0, 5, 20, True)]
    assert split(*rows) == [
        (1, 0, 0, 20, 0, 20, 0),
        (1, 1, 10, 0, 0, 0, 0),
        (2, 1, 5, 0, 0, 0, 0),
    ]


def test_kernels_outside_of_the_steps_are_left_out() -> None:
    assert split((None, 0, 0, 100, False), (1, 0, 200, 10, False)) == [(1, 0, 10, 0, 0, 0, 0)]


def test_without_a_schedule_the_run_is_one_row() -> None:
    rows: list[Row] = [(None, -1, 0, 10, False), (None, -1, 90, 10, False)]
    assert split(*rows) == [(None, -1, 20, 0, 0, 0, 80)]


def test_no_kernels() -> None:
    assert split() == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2]),
            st.sampled_from([0, 1]),
            st.integers(0, 60),
            st.integers(0, 20),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_as_counted_one_by_one(rows: list[Row]) -> None:
    expected = []
    for step, device in sorted({(row[0], row[1]) for row in rows}, key=lambda key: key[::-1]):
        own = [row for row in rows if row[:2] == (step, device)]
        busy = [
            {
                t
                for _, _, start, long, kind in own
                if kind is wanted
                for t in range(start, start + long)
            }
            for wanted in (False, True)
        ]
        span = max(r[2] + r[3] for r in own) - min(r[2] for r in own)
        compute, collective = busy
        free = span - len(compute | collective)
        times = (len(collective - compute), len(collective & compute), len(collective), free)
        expected.append((step, device, len(compute), *times))
    assert split(*rows) == sorted(expected, key=lambda row: (row[1], row[0]))


def test_the_steps_of_a_dump_are_held_against_its_kernels() -> None:
    frame = kernels((1, 0, 0, 50_000, False), (1, 0, 60_000, 9_000, True))
    steps = steps_from_kernels(frame)
    files = "kernel_details.csv", "step_trace_time.csv"
    assert check_steps(frame, steps, files, "again") == []
    assert check_steps(frame, steps.assign(computing_ns=51_000), files, "again") == []
    (problem,) = check_steps(frame, steps.assign(computing_ns=60_000), files, "again")
    assert problem.what.endswith("(50.000 µs computing against 60.000 µs)")
    assert problem.damaged
    (problem,) = check_steps(frame, steps.assign(step=steps["step"] + 7), files, "again")
    assert "kernels are of steps that" in problem.what
    (problem,) = check_steps(frame.assign(step=pd.NA), steps, files, "again")
    assert "no kernel is of a step" in problem.what


@pytest.mark.parametrize("name", ["alexnet", "megatron"])
def test_real_dumps_say_the_same(name: str, request: pytest.FixtureRequest) -> None:
    output: Path = request.getfixturevalue(name) / "ASCEND_PROFILER_OUTPUT"
    mine = steps_from_kernels(read_kernel_details(output / "kernel_details.csv").frame)
    stated, _ = read_step_trace_time(output / "step_trace_time.csv")
    difference = mine[list(SPLIT)] - stated[list(SPLIT)]
    assert difference.abs().to_numpy().max() < 30  # of 100 ms
