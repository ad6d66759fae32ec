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

from npufix.profiling_parsers.profile import DumpError
from npufix.profiling_parsers.signals import SCHEMAS
from npufix.profiling_parsers.text.side_tables import read_api_statistic

if TYPE_CHECKING:
    from pathlib import Path

APIS = b"""\
Device_id,Level,API Name,Time(us),Count,Avg(us),Min(us),Max(us),Variance
host,acl,aclopCompileAndExecute,411.65,19,21.666,7.87,56.46,154.086
host,node,launch,4295.43,191,22.489,3.84,893.35,9470.753
0,runtime,DeviceSynchronize,3.5E+02,1,350,350,350,0.0
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "api_statistic.csv"


def test_the_calls_of_each_api(path: Path) -> None:
    path.write_bytes(APIS)
    apis, problems = read_api_statistic(path)
    assert problems == []
    assert apis.dtypes.astype(str).to_dict() == SCHEMAS["apis"]
    assert apis["name"].tolist() == ["aclopCompileAndExecute", "launch", "DeviceSynchronize"]
    assert apis["level"].tolist() == ["acl", "node", "runtime"]
    assert apis["count"].tolist() == [19, 191, 1]
    assert apis["total_ns"].tolist() == [411_650, 4_295_430, 350_000]
    assert apis["max_ns"].tolist() == [56_460, 893_350, 350_000]


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf"])
def test_windows_line_ends_a_byte_order_mark_and_tabs(path: Path, prefix: bytes) -> None:
    path.write_bytes(prefix + APIS.replace(b"\n", b"\r\n").replace(b",19,", b",19\t,"))
    apis, problems = read_api_statistic(path)
    assert problems == []
    assert apis["count"].tolist() == [19, 191, 1]


def test_the_unit_is_that_of_the_header(path: Path) -> None:
    path.write_text("API Name,Total Time(ns),Count,Avg Time(ns),Max Time(ns)\nlaunch,7,2,3,4\n")
    apis, problems = read_api_statistic(path)
    assert problems == []
    assert apis.iloc[0].tolist() == ["", "launch", 2, 7, 4]


@pytest.mark.parametrize("count", [b"N/A", b"", b"1.5", b"-3", b"nan", b"1e400", b"12x"])
def test_a_row_without_a_count_is_left_out_and_told(path: Path, count: bytes) -> None:
    path.write_bytes(APIS.replace(b",191,", b"," + count + b","))
    apis, (problem,) = read_api_statistic(path)
    assert len(apis) == 2
    assert problem.damaged
    assert "1 of 3 rows" in problem.what
    assert "analyse(" in problem.remedy


def test_a_name_that_is_no_utf8_is_told(path: Path) -> None:
    path.write_bytes(APIS.replace(b"launch", b"laun\xffh"))
    apis, (problem,) = read_api_statistic(path)
    assert len(apis) == 3
    assert "UTF-8" in problem.what


def test_zero_bytes_from_one_row_into_another_are_told(path: Path) -> None:
    start, end = APIS.index(b"21.666"), APIS.index(b"22.489")
    path.write_bytes(APIS[:start] + b"\0" * (end - start) + APIS[end:])
    apis, (problem,) = read_api_statistic(path)
    assert len(apis) == 2
    assert "zero bytes" in problem.what


def test_two_columns_of_one_name_are_refused(path: Path) -> None:
    path.write_bytes(APIS.replace(b"Variance", b"Count"))
    with pytest.raises(DumpError, match="2 columns Count"):
        read_api_statistic(path)


def test_a_row_that_the_end_of_the_file_may_have_cut_is_left_out(path: Path) -> None:
    head, body = b"API Name,Max(us),Time(us),Count\n", b"launch,1,2,30\nlaunch,1,2,34"
    path.write_bytes(head + body)
    apis, (problem,) = read_api_statistic(path)
    assert apis["count"].tolist() == [30]
    assert "breaks off" in problem.what


def test_a_row_whose_missing_end_is_not_needed_is_used(path: Path) -> None:
    tables, told = read_damaged(read_api_statistic, path, APIS.rstrip())
    assert told
    assert len(tables[0]) == 3


def test_damage(path: Path) -> None:
    check_every_cut(read_api_statistic, path, APIS)
    check_every_cut(read_api_statistic, path, APIS.replace(b"\n", b"\r\n"))
    check_every_column(read_api_statistic, path, APIS, optional=["Level"])
    check_nothing_to_read(read_api_statistic, path, APIS)
    check_any_bytes(read_api_statistic, path, APIS)


def test_a_real_one(alexnet: Path) -> None:
    file = alexnet / "ASCEND_PROFILER_OUTPUT" / "api_statistic.csv"
    apis, problems = read_api_statistic(file)
    theirs = pd.read_csv(file)
    assert problems == []
    assert apis["count"].sum() == theirs["Count"].sum()
    assert apis["total_ns"].sum() / 1e3 == pytest.approx(theirs["Time(us)"].sum())
