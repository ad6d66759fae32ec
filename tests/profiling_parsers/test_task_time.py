from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from damage import check_any_bytes, check_every_column

from npufix.profiling_parsers.msprof.task_tables import read_task_time
from npufix.profiling_parsers.profile import DumpError, Problem

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

HEADER = (
    "Device_id,kernel_name,kernel_type,stream_id,task_id,task_time(us),task_start(us),task_stop(us)"
)
TASKS = f"""\
{HEADER}
2,aclnnMul_MulAiCore_Mul,KERNEL_AIVEC,3,4,1.5,1736408883704801.156\t,1736408883704802.656\t
2,N/A,EVENT_WAIT_SQE,3,5,9999,1736408883704803.000\t,1736408883714802.000\t
2,aclnnMatmul_MatMulCommon_MatMulV2,AI_CORE,3,6,20,1736408883704804.000\t,1736408883704824.000\t
2,Cast7,KERNEL_AICPU,3,7,20,1736408883704834.000\t,1736408883704854.000\t
"""


def read(path: Path) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
    kernels = read_task_time(path)
    return kernels.frame, kernels.problems


def test_kernels_are_told_from_other_tasks(tmp_path: Path) -> None:
    path = tmp_path / "task_time_20250109123456.csv"
    path.write_text(TASKS)
    frame, problems = read(path)
    assert problems == ()
    assert frame["type"].tolist() == ["Mul", "MatMulV2", "Cast"]
    assert frame["core"].tolist() == ["AI_VECTOR_CORE", "AI_CORE", "AI_CPU"]
    assert frame["duration_ns"].tolist() == [1_500, 20_000, 20_000]
    assert frame["start_ns"][0] == 1736408883704801156
    assert frame["device"].tolist() == [2, 2, 2]
    assert not frame["communication"].any()


def test_a_column_that_is_missing_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "task_time_1.csv"
    path.write_text(TASKS.replace("task_start(us)", "task_start"))
    with pytest.raises(DumpError, match=r"no column task_start\(us\)"):
        read(path)


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "task_time_1.csv"
    content = TASKS.replace("\n2,", "\n-1,").encode()
    unused = ("Device_id", "stream_id", "task_id", "task_stop(us)")
    check_every_column(read, path, content, optional=unused)
    check_any_bytes(read, path, content)
