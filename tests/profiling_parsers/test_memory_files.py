from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest
from damage import check_any_bytes, check_every_column, check_every_cut, check_nothing_to_read

from npufix.profiling_parsers.signals import SCHEMAS
from npufix.profiling_parsers.text.side_tables import read_memory_record, read_operator_memory

if TYPE_CHECKING:
    from pathlib import Path

RECORD = b"""\
Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,\
Device Type\r
APP,1736412474607990.247\t,,2109.5,,,NPU:0\r
PTA,1736412474773953.530\t,954.5,1452.0,954.06787109375,1162636336,NPU:0\r
GE,1736412474773954.530\t,0.0625,242.0,,,NPU:1\r
"""
OLD_RECORD = b"""\
Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device Type
PTA,1695115378714622.8,4599.5,8664.0,NPU:0
PTA+GE,1.69512E+15,4599.5,8664.0,NPU:0
"""
OPERATOR = b"""\
Name,Size(KB),Allocation Time(us),Release Time(us),Active Release Time(us),Duration(us),\
Active Duration(us),Allocation Total Allocated(MB),Allocation Total Reserved(MB),\
Allocation Total Active(MB),Release Total Allocated(MB),Release Total Reserved(MB),\
Release Total Active(MB),Stream Ptr,Device Type
aten::empty_strided,0.5,1736412474726623.061\t,,,,,954.4,1452.0,954.4,,,,1162636336,NPU:0
aten::max_pool2d,5979.5,1736412474729403.330\t,1736412474761273.200\t,1736412474761272.850\t,\
31869.870\t,31869.520\t,984.6,1452.0,984.6,1010.6,1452.0,1010.6,1162636336,NPU:0
aten::add,-16.5,,1736412474761273.200\t,,,,,,,1010.6,1452.0,1010.6,1162636336,NPU:0
"""
OLD_OPERATOR = b"""\
Name,Size(KB),Allocation Time(us),Release Time(us),Duration(us),Allocation Total Allocated(MB),\
Allocation Total Reserved(MB),Release Total Allocated(MB),Release Total Reserved(MB),Device Type
cann::Graph_70,192,1695115378723902.5,1695115378723939.2,36.73,0.25,242.0,0.0625,242.0,NPU:0
"""
MEGABYTE = 1024**2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.csv"


def test_the_memory_over_time(path: Path) -> None:
    path.write_bytes(RECORD)
    memory, problems = read_memory_record(path)
    assert problems == []
    assert memory.dtypes.astype(str).to_dict() == SCHEMAS["memory"]
    assert memory.to_numpy().tolist() == [
        ["APP", "NPU:0", 1736412474607990247, -1, int(2109.5 * MEGABYTE)],
        ["PTA", "NPU:0", 1736412474773953530, int(954.5 * MEGABYTE), 1452 * MEGABYTE],
        ["GE", "NPU:1", 1736412474773954530, MEGABYTE // 16, 242 * MEGABYTE],
    ]


def test_the_memory_over_time_of_an_old_version_that_a_spreadsheet_saved(path: Path) -> None:
    path.write_bytes(OLD_RECORD)
    memory, problems = read_memory_record(path)
    assert problems == []
    assert memory["time_ns"].tolist() == [1695115378714622800, 1695120000000000000]


def test_msprof_counts_in_kilobytes(path: Path) -> None:
    header = b"Component,Timestamp(us),Total Allocated(KB),Total Reserved(KB),Device\n"
    path.write_bytes(header + b"GE,1695115378714622.8,1.5,2,NPU:0\n")
    memory, problems = read_memory_record(path)
    assert problems == []
    assert memory.iloc[0, 3:].tolist() == [1536, 2048]


def test_the_blocks_and_who_asked_for_them(path: Path) -> None:
    path.write_bytes(OPERATOR)
    blocks, problems = read_operator_memory(path)
    assert problems == []
    assert blocks.dtypes.astype(str).to_dict() == SCHEMAS["allocations"]
    assert blocks.to_numpy().tolist() == [
        ["aten::empty_strided", 512, 1736412474726623061, -1],
        ["aten::max_pool2d", 5979 * 1024 + 512, 1736412474729403330, 31_869_870],
        ["aten::add", -16 * 1024 - 512, -1, -1],
    ]


def test_the_blocks_of_an_old_version(path: Path) -> None:
    path.write_bytes(OLD_OPERATOR)
    blocks, problems = read_operator_memory(path)
    assert problems == []
    assert blocks.iloc[0].tolist() == ["cann::Graph_70", 192 * 1024, 1695115378723902500, 36_730]


def test_a_time_that_is_none_is_told(path: Path) -> None:
    path.write_bytes(RECORD.replace(b"1736412474773953.530", b"yesterday"))
    memory, (problem,) = read_memory_record(path)
    assert len(memory) == 2
    assert problem.damaged


@pytest.mark.parametrize("content", [RECORD, OLD_RECORD])
def test_damage_of_the_record(path: Path, content: bytes) -> None:
    check_every_cut(read_memory_record, path, content)
    check_every_column(read_memory_record, path, content)
    check_nothing_to_read(read_memory_record, path, content)


@pytest.mark.parametrize("content", [OPERATOR, OLD_OPERATOR])
def test_damage_of_the_blocks(path: Path, content: bytes) -> None:
    check_every_cut(read_operator_memory, path, content)
    check_every_column(read_operator_memory, path, content)
    check_nothing_to_read(read_operator_memory, path, content)


def test_any_bytes(path: Path) -> None:
    check_any_bytes(read_memory_record, path, RECORD)
    check_any_bytes(read_operator_memory, path, OPERATOR)


def test_real_ones(megatron: Path) -> None:
    output = megatron / "ASCEND_PROFILER_OUTPUT"
    memory, problems = read_memory_record(output / "memory_record.csv")
    assert problems == []
    theirs = pd.read_csv(output / "memory_record.csv")
    assert memory["reserved_bytes"].max() == theirs["Total Reserved(MB)"].max() * MEGABYTE
    assert (memory["allocated_bytes"] < 0).sum() == theirs["Total Allocated(MB)"].isna().sum()
    blocks, problems = read_operator_memory(output / "operator_memory.csv")
    assert problems == []
    theirs = pd.read_csv(output / "operator_memory.csv")
    assert blocks["size_bytes"].sum() == theirs["Size(KB)"].sum() * 1024
