from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest
from damage import (
    as_csv,
    check_any_bytes,
    check_every_column,
    check_every_cut,
    check_nothing_to_read,
    read_damaged,
)

from npufix.profiling_parsers.kernels.steps import no_steps
from npufix.profiling_parsers.text.step_trace_time import read_step_trace_time

if TYPE_CHECKING:
    from pathlib import Path

HEADER = (
    b"Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,"
    b"Bubble,Communication(Not Overlapped and Exclude Receive),Preparing"
)
STEPS = (
    HEADER
    + b"""
0,12,30.75,100.5,20.25,120.75,5.000000000003,126.25,10,90.5,206.25
0,13,231290.09999999995,420174.2600000001,0.0,420174.2600000001,158558.00000000032,810022.25,0,\
420174.2600000001,206.25
1,12,30.75,100,-20,80,5,135.5,0,100,206.25
"""
)
OLD = b"""\
Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free
50,30.75,100,0.0,100,5.25
51,30.75,100,0.0,100,5.25
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "step_trace_time.csv"


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_the_steps_of_each_device(path: Path, line_end: bytes) -> None:
    path.write_bytes(STEPS.replace(b"\n", line_end))
    steps, problems = read_step_trace_time(path)
    assert problems == []
    assert steps.dtypes.tolist() == no_steps().dtypes.tolist()
    assert steps.columns.tolist() == no_steps().columns.tolist()
    assert steps[["step", "device"]].to_numpy().tolist() == [[12, 0], [13, 0], [12, 1]]
    assert steps["computing_ns"].tolist() == [30_750, 231_290_100, 30_750]
    assert steps["free_ns"].tolist() == [5_000, 158_558_000, 5_000]
    assert steps["bubble_ns"].tolist() == [10_000, 0, 0]
    assert steps["overlapped_ns"].tolist() == [20_250, 0, -20_000]


def test_a_file_that_does_not_name_its_device(path: Path) -> None:
    path.write_bytes(OLD)
    steps, problems = read_step_trace_time(path)
    assert problems == []
    assert steps["device"].tolist() == steps["bubble_ns"].tolist() == [-1, -1]


def test_a_run_without_a_schedule_on_an_unknown_device(path: Path) -> None:
    path.write_bytes(HEADER + b"\n-1,,30.75,100,0,100,5,1,0,100,1\n")
    steps, problems = read_step_trace_time(path)
    assert problems == []
    assert steps["step"].isna().all()
    assert steps["device"].tolist() == [-1]


@pytest.mark.parametrize(
    ("was", "damaged"),
    [
        (b",100.5,20.25,", b",10.5,20.25,"),  # the parts are not the communication
        (b"0,12,30.75,", b"0,12,3000.75,"),  # more than the step
        (b"0,12,30.75,", b"0,12,-30.75,"),
        (b"0,12,", b"0,twelve,"),
        (b",5.000000000003,", b",N/A,"),
        (b",126.25,10,", b",,10,"),
    ],
)
def test_a_row_that_contradicts_itself_is_left_out_and_told(
    path: Path, was: bytes, damaged: bytes
) -> None:
    assert was in STEPS
    path.write_bytes(STEPS.replace(was, damaged))
    steps, (problem,) = read_step_trace_time(path)
    assert steps["step"].tolist() == [13, 12]
    assert "1 of 3 rows" in problem.what
    assert problem.damaged


def test_a_last_row_that_may_be_cut_in_a_number_is_left_out(path: Path) -> None:
    for cut in (b"\n", b"5\n", b"25\n"):
        path.write_bytes(OLD.removesuffix(cut))
        steps, (problem,) = read_step_trace_time(path)
        assert steps["step"].tolist() == [50]
        assert "breaks off" in problem.what


_OPTIONAL = ["Device_id", "Stage", "Bubble", "Preparing"]


def test_damage(path: Path) -> None:
    check_every_cut(read_step_trace_time, path, STEPS)
    check_every_cut(read_step_trace_time, path, OLD)
    check_every_column(read_step_trace_time, path, STEPS, optional=_OPTIONAL)
    check_nothing_to_read(read_step_trace_time, path, STEPS)
    check_any_bytes(read_step_trace_time, path, STEPS)


def test_a_value_for_every_column_of_a_row_that_is_missing_one(path: Path) -> None:
    rows = [line.split(",") for line in STEPS.decode().splitlines()]
    for index in range(len(rows[0])):
        short = [*rows[:2], rows[2][:index] + rows[2][index + 1 :], rows[3]]
        tables, told = read_damaged(read_step_trace_time, path, as_csv(short))
        assert told
        assert tables[0]["device"].tolist() == [0, 1]


@pytest.mark.parametrize("name", ["alexnet", "megatron"])
def test_real_ones(name: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(name)
    file = root / "ASCEND_PROFILER_OUTPUT" / "step_trace_time.csv"
    steps, problems = read_step_trace_time(file)
    assert problems == []
    theirs = pd.read_csv(file)
    assert steps["free_ns"].sum() / 1e3 == pytest.approx(theirs["Free"].sum())
    assert steps["communication_ns"].sum() / 1e3 == pytest.approx(theirs["Communication"].sum())
