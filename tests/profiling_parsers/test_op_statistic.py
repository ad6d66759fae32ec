from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest
from damage import (
    check_any_bytes,
    check_every_column,
    check_every_cut,
    check_nothing_to_read,
    read_damaged,
)

from npufix.profiling_parsers.kernels.totals import find_disagreements, no_op_statistic
from npufix.profiling_parsers.text.op_statistic import read_op_statistic

if TYPE_CHECKING:
    from pathlib import Path

STATISTIC = b"""\
Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)
0,Mul,AI_VECTOR_CORE,2,30.75,10.5,15.375,20.25,75.460
0,Mul,MIX_AIV,1,10,10,10,10,24.540
1,Mul,AI_VECTOR_CORE,1,5.5,5.5,5.5,5.5,35.484
1,hcom_allReduce_,HCCL,1,10,10,10,10,64.516
"""
WITH_MODEL = b"""\
Model Name,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)
N/A,Mul,AI_CORE,2,30.75,10.5,15.375,20.25,100
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "op_statistic.csv"


def kernels(*rows: tuple[str, str, int, int, bool]) -> pd.DataFrame:
    columns = ["type", "core", "device", "duration_ns", "communication"]
    return pd.DataFrame(rows, columns=columns).astype({"type": "category", "core": "category"})


OF_TWO_DEVICES = (
    ("Mul", "AI_VECTOR_CORE", 0, 10_500, False),
    ("Mul", "AI_VECTOR_CORE", 0, 20_250, False),
    ("Mul", "MIX_AIV", 0, 10_000, False),
    ("Mul", "AI_VECTOR_CORE", 1, 5_500, False),
    ("hcom_allReduce_", "HCCL", 1, 10_000, True),
)


def test_the_totals(path: Path) -> None:
    path.write_bytes(STATISTIC)
    statistic, problems = read_op_statistic(path)
    assert problems == []
    assert statistic.columns.tolist() == no_op_statistic().columns.tolist()
    assert statistic["count"].tolist() == [2, 1, 1, 1]
    assert statistic["count"].dtype == "int64"
    assert statistic["total_ns"].tolist() == [30_750, 10_000, 5_500, 10_000]


def test_the_totals_of_a_model(path: Path) -> None:
    path.write_bytes(WITH_MODEL)
    statistic, problems = read_op_statistic(path)
    assert problems == []
    assert statistic.iloc[0].tolist() == ["Mul", "AI_CORE", 2, 30_750]


def test_kernels_of_several_devices_agree(path: Path) -> None:
    path.write_bytes(STATISTIC)
    statistic, _ = read_op_statistic(path)
    assert find_disagreements(kernels(*OF_TWO_DEVICES), statistic).empty


def test_a_kernel_that_is_missing_disagrees(path: Path) -> None:
    path.write_bytes(STATISTIC)
    statistic, _ = read_op_statistic(path)
    apart = find_disagreements(kernels(*OF_TWO_DEVICES[1:]), statistic)
    assert apart.to_dict("index") == {
        "Mul": {
            "count_kernels": 3,
            "total_ns_kernels": 35_750,
            "count_stated": 4,
            "total_ns_stated": 46_250,
        }
    }


def test_rows_that_are_missing_at_the_end_are_told(path: Path) -> None:
    rows = STATISTIC.splitlines(keepends=True)
    for count in range(2, len(rows)):
        _, told = read_damaged(read_op_statistic, path, b"".join(rows[:count]))
        # The rows of device 0 alone are whole.
        assert told == (count != 3)


@pytest.mark.parametrize("count", [b"N/A", b"1.5", b"-1"])
def test_a_count_that_is_none_is_told(path: Path, count: bytes) -> None:
    path.write_bytes(STATISTIC.replace(b",MIX_AIV,1,", b",MIX_AIV," + count + b","))
    statistic, (problem,) = read_op_statistic(path)
    assert len(statistic) == 3
    assert problem.damaged


def test_damage(path: Path) -> None:
    check_every_cut(read_op_statistic, path, STATISTIC)
    check_every_column(read_op_statistic, path, STATISTIC, optional=["Ratio(%)"])
    check_nothing_to_read(read_op_statistic, path, STATISTIC)
    check_any_bytes(read_op_statistic, path, STATISTIC)


@pytest.mark.parametrize("name", ["alexnet", "megatron"])
def test_real_ones(name: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(name)
    file = root / "ASCEND_PROFILER_OUTPUT" / "op_statistic.csv"
    statistic, problems = read_op_statistic(file)
    assert problems == []
    theirs = pd.read_csv(file)
    assert statistic["count"].sum() == theirs["Count"].sum()
    assert statistic["total_ns"].sum() / 1e3 == pytest.approx(theirs["Total Time(us)"].sum())
