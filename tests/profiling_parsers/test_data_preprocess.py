from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from damage import check_any_bytes, check_every_column, check_every_cut, check_nothing_to_read

from npufix.profiling_parsers.signals import SCHEMAS
from npufix.profiling_parsers.text.data_preprocess import read_data_preprocess

if TYPE_CHECKING:
    from pathlib import Path

TASKS = b"""\
Device_id,Timestamp(us),Node,Compute_time(us),Memcpy_time(us),Task_time(us),Dispatch_time(us),\
Total_time(us),Stream ID,Task ID
0,1736412474729403.330\t,aclnnNonzero_NonZero,12.5,0.25,20,3.125,31.5,2,11062
0,1736412474729503.331\t,aclnnIndex,1.0,0,2,N/A,4,2,11063
"""
OLD_TASKS = b"""\
Timestamp,Node,Compute_time(ms),Memcpy_time(us),Task_time(ms),Dispatch_time(ms),Total_time(ms),\
Stream ID,Task ID
{start},NonZero,0.0125,0.25,0.02,0.003125,0.0315,2,11062
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data_preprocess.csv"


def test_where_the_time_goes(path: Path) -> None:
    path.write_bytes(TASKS)
    tasks, problems = read_data_preprocess(path)
    assert problems == []
    assert tasks.dtypes.astype(str).to_dict() == SCHEMAS["aicpu"]
    start = 1736412474729403330
    assert tasks.to_numpy().tolist() == [
        ["aclnnNonzero_NonZero", start, 12_500, 250, 20_000, 3_125, 31_500],
        ["aclnnIndex", start + 100_001, 1_000, 0, 2_000, -1, 4_000],
    ]


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ("1736412474729403.330", 1736412474729403330),
        ("1736412474729.403", 1736412474729403000),
        ("729403.33", -1),
    ],
)
def test_milliseconds_and_microseconds_of_an_old_version(
    path: Path, written: str, start: int
) -> None:
    path.write_bytes(OLD_TASKS.replace(b"{start}", written.encode()))
    tasks, problems = read_data_preprocess(path)
    assert problems == []
    assert tasks.iloc[0].tolist() == ["NonZero", start, 12_500, 250, 20_000, 3_125, 31_500]


def test_damage(path: Path) -> None:
    check_every_cut(read_data_preprocess, path, TASKS)
    check_every_column(read_data_preprocess, path, TASKS)
    check_nothing_to_read(read_data_preprocess, path, TASKS)
    check_any_bytes(read_data_preprocess, path, TASKS)
