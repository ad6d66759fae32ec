from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from damage import check_any_bytes, check_every_column, check_nothing_to_read, read_damaged
from hypothesis import given, settings
from hypothesis import strategies as st

from npufix.profiling_parsers.profile import DumpError, Problem
from npufix.profiling_parsers.text.kernel_details import read_kernel_details

SHAPES = '"""4,128;128"""'
MIDDLE = "Model ID,Task ID,Stream ID"
IO = (
    "Input Shapes,Input Data Types,Input Formats,"
    "Output Shapes,Output Data Types,Output Formats,Context ID"
)
TIMES = "Start Time(us),Duration(us),Wait Time(us)"
HEADERS = {
    "level 0": f"Step Id,Name,Type,Accelerator Core,{TIMES},Block Dim",
    "level 1": f"Step Id,{MIDDLE},Name,Type,OP State,Accelerator Core,{TIMES},Block Dim,"
    f"Mix Block Dim,HF32 Eligible,{IO},aicore_time(us),cube_utilization(%)",
    "CANN 8.3": f"Step Id,Device_id,{MIDDLE},Name,Type,OP State,Accelerator Core,{TIMES},"
    f"Block Dim,Mix Block Dim,HF32 Eligible,{IO},aicore_time(us)",
    "newest level 0": f"Device_id,Name,Type,Accelerator Core,{TIMES},Block Num,{IO}",
    "no schedule": f"{MIDDLE},Name,Type,OP State,Accelerator Core,{TIMES},Block Num,"
    f"Mix Block Num,HF32 Eligible,{IO}",
    "memory": f"Step Id,{MIDDLE},Name,Type,Accelerator Core,{TIMES},Block Dim,Mix Block Dim,{IO},"
    "aicore_time(us),aic_total_cycles,aic_l0a_read_bw(GB/s),aic_l0a_write_bw(GB/s),aiv_time(us)",
    "2023": f"Step Id,{MIDDLE},Name,Type,Accelerator Core,{TIMES},Block Dim,Mix Block Dim,{IO},"
    "aicore_time(us),aic_total_cycles,aic_mac_fp16_ratio",
    "op_summary": f"Device_id,{MIDDLE},Op Name,OP Type,OP State,Task Type,Task Start Time(us),"
    f"Task Duration(us),Task Wait Time(us),Block Num,Mix Block Num,HF32 Eligible,{IO}",
    "hybrid": f"Step Id,Op Name,OP Type,Task Type,{TIMES}",
    "db converter": "op_name,block_dim,op_type,task_type,input_shapes,input_data_types,"
    "output_shapes,task_start_time,task_duration,task_wait_time",
}
CELLS = {
    "Step Id": "50",
    "Device_id": "3",
    "Stream ID": "2",
    "OP State": "dynamic",
    "HF32 Eligible": "YES",
    "Name": "aclnnMul_Mul",
    "Op Name": "aclnnMul_Mul",
    "op_name": "aclnnMul_Mul",
    "Type": "Mul",
    "OP Type": "Mul",
    "op_type": "Mul",
    "Accelerator Core": "AI_VECTOR_CORE",
    "Task Type": "AI_VECTOR_CORE",
    "task_type": "AI_VECTOR_CORE",
    "Start Time(us)": "1736408883704801.156\t",
    "Task Start Time(us)": "1736408883704801.156\t",
    "task_start_time": "1736408883704801.156",
    "Duration(us)": "6.54",
    "Task Duration(us)": "6.54",
    "task_duration": "6.54",
    "Wait Time(us)": "104.202000",
    "Task Wait Time(us)": "104.202000",
    "task_wait_time": "104.202000",
    "Input Shapes": SHAPES,
    "input_shapes": SHAPES,
    "Output Shapes": SHAPES,
    "output_shapes": SHAPES,
    "Input Data Types": "DT_BF16;FLOAT",
    "input_data_types": "DT_BF16;FLOAT",
}


DTYPES = {
    "step": "Int64",
    "name": "category",
    "type": "category",
    "core": "category",
    "start_ns": "int64",
    "duration_ns": "int64",
    "wait_ns": "int64",
    "communication": "bool",
    "device": "int32",
    "state": "category",
    "hf32": "category",
    "bound": "category",
    "bound_ratio": "float32",
}


def read(text: str | bytes) -> pd.DataFrame:
    return read_with_count(text)[0]


def read_with_count(text: str | bytes) -> tuple[pd.DataFrame, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel_details.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        kernels = read_kernel_details(path)
    return kernels.frame, kernels.malformed


def level_0(*rows: str) -> str:
    return "\n".join([HEADERS["level 0"], *rows, ""])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_every_header(header: str, end: str) -> None:
    row = ",".join(CELLS.get(column, "N/A") for column in header.split(","))
    frame = read(header + end + row + end)
    (kernel,) = frame.to_dict("records")
    kernel["step"] = "none" if pd.isna(kernel["step"]) else str(kernel["step"])
    assert np.isnan(kernel.pop("bound_ratio"))
    has_shapes = "nput" in header or "input" in header
    expected = {
        "step": "50" if "Step Id" in header else "none",
        "name": "aclnnMul_Mul",
        "type": "Mul",
        "core": "AI_VECTOR_CORE",
        "start_ns": 1736408883704801156,
        "duration_ns": 6_540,
        "wait_ns": 104_202,
        "input_shapes": "4,128;128" if has_shapes else "",
        "input_dtypes": "DT_BF16;FLOAT" if has_shapes else "",
        "output_shapes": "4,128;128" if has_shapes else "",
        "communication": False,
        "device": 3 if "Device_id" in header else -1,
        "stream": 2 if "Stream ID" in header else -1,
        "state": "dynamic" if "OP State" in header else "",
        "hf32": "YES" if "HF32" in header else "",
        "bound": "",
    }
    assert expected.items() <= kernel.items()
    assert DTYPES.items() <= frame.dtypes.astype(str).to_dict().items()


@pytest.mark.parametrize(
    ("core", "communication"),
    [("HCCL", True), ("COMMUNICATION", True), ("AI_CORE", False), ("AI_CPU", False)],
)
def test_collectives_are_known_by_their_core(core: str, communication: bool) -> None:  # noqa: FBT001
    frame = read(level_0(f"1,hcom,hcom_allReduce_,{core},1.000,2,N/A,0"))
    assert frame["communication"].tolist() == [communication]
    assert frame["wait_ns"].tolist() == [0]


def test_rows_come_in_start_order_with_their_values() -> None:
    frame = read(level_0("1,b,T,AI_CORE,2.002,20,0,8", ",a,T,AI_CORE,1.001,10,0,8"))
    assert frame["name"].tolist() == ["a", "b"]
    assert frame["duration_ns"].tolist() == [10_000, 20_000]
    assert frame["step"].isna().tolist() == [True, False]


@pytest.mark.parametrize(
    "bad",
    [
        "1,a,T,AI_CORE,1.000",
        "1,a,T,AI_CORE,1.000,2,0,8,surplus",
        "1,a,T,AI_CORE,N/A,2,0,8",
        "1,a,T,AI_CORE,1.000,N/A,0,8",
        "1,a,T,AI_CORE,1.000,-2,0,8",
        "1,a,T,AI_CORE,1.000,3600000000,0,8",
        "1,a,T,AI_CORE,1.000,1e300,0,8",
        "1,a,T,AI_CORE,1.000,inf,0,8",
        "1,a,T,AI_CORE,99999999999999999999999999,2,0,8",
        "1,a,T,AI_CORE,1736408883704801.156,2,0,8",
        "a,T,AI_CORE,1.000,2,0,8,8",
        "1,T,AI_CORE,1.000,2,0,8,8",
        "1,a,b,T,AI_CORE,1.000,2,8",
        '1,"a,T,AI_CORE,1.000,2,0,8',
        "1,a\0,T",
    ],
)
@pytest.mark.parametrize("at_end", [True, False])
def test_a_malformed_row_is_counted_and_the_others_stay(bad: str, at_end: bool) -> None:  # noqa: FBT001
    good = [f"1,good{i},T,AI_CORE,{i}.000,2,0,8" for i in range(3)]
    rows = [*good, bad] if at_end else [good[0], bad, *good[1:]]
    frame, malformed = read_with_count(level_0(*rows))
    assert frame["name"].tolist() == ["good0", "good1", "good2"]
    assert malformed == 1


def test_bytes_that_are_no_utf8_do_not_stop_the_rest() -> None:
    text = level_0("1,caf\xe9,T,AI_CORE,1.000,2,0,8", "1,b,T,AI_CORE,2.000,2,0,8")
    frame, malformed = read_with_count(text.encode("latin1"))
    assert frame["name"].tolist() == ["caf\ufffd", "b"]
    assert malformed == 0


def test_what_is_damaged_is_told() -> None:
    def told(content: str) -> str:
        return "; ".join(p.what for p in tell(content.encode()) if p.damaged)

    good = level_0("1,a,T,AI_CORE,1.000,2,0,8", "1,b,T,AI_CORE,4.000,2,0,8")
    assert not told(good)
    assert told(good.rstrip()) == "the last line has no end: kernels after it may be missing"
    assert told(good + "1,c,T\n") == "1 of 3 rows are malformed and left out"
    assert "no column Wait Time(us)" in told(good.replace("Wait Time(us)", "Waiting"))


def test_ratios_without_their_column_are_missed() -> None:
    header = f"Name,Type,Accelerator Core,{TIMES},aiv_vec_time(us),aiv_vec_ratio"
    row = "a,T,AI_VECTOR_CORE,1.000,40,0,1.0,0.9"
    assert not tell(f"{header}\n{row}\n".encode())
    (problem,) = tell(f"{header.replace('vec_ratio', 'ratio')}\n{row}\n".encode())
    assert "no column aiv_vec_ratio" in problem.what


@pytest.mark.parametrize("start", ["1.69512E+15", "1.69512e15"])
def test_a_start_that_a_spreadsheet_rounded_is_told_and_kept(start: str) -> None:
    rows = [f"1,k{i},T,AI_CORE,{start},2,0,8" for i in range(3)]
    frame, malformed = read_with_count(level_0(*rows))
    assert malformed == 0
    assert frame["start_ns"].tolist() == [1_695_120_000_000_000_000] * 3
    (problem,) = tell(level_0(*rows).encode())
    assert "3 start times are in scientific notation" in problem.what
    assert problem.damaged


def test_a_header_among_the_rows_is_no_rounded_start() -> None:
    good = level_0("1,a,T,AI_CORE,1.000,2,0,8", "1,b,T,AI_CORE,4.000,2,0,8")
    (problem,) = tell((good + good).replace("a,T", "c,T", 1).replace("4.0", "5.0", 1).encode())
    assert problem.what == "1 of 5 rows are malformed and left out"


def test_rows_that_stand_twice_count_once_and_are_told() -> None:
    rows = [f"1,k{i},T,AI_CORE,{i}.000,2,0,8" for i in range(3)]
    assert read(level_0(*rows, *rows))["name"].tolist() == ["k0", "k1", "k2"]
    (problem,) = tell(level_0(*rows, *rows).encode())
    assert problem.what == "3 of 6 rows repeat an earlier one and are left out"
    assert problem.damaged
    others = ["1,k0,T,AI_CORE,0.000,3,0,8", "1,other,T,AI_CORE,0.000,2,0,8"]
    assert not tell(level_0(*rows, *others).encode())
    assert len(read(level_0(*rows, *others))) == 5


def test_a_start_on_the_second_was_not_rounded() -> None:
    assert not tell(level_0("1,a,T,AI_CORE,1695120000000000.000\t,2,0,8").encode())


@pytest.mark.parametrize(
    ("start", "duration", "start_ns", "duration_ns"),
    [
        ("1736410576404465.5", "53.761", 1736410576404465500, 53_761),
        ("1695115378713661", "496.8508", 1695115378713661000, 496_851),
        ('"1736413971558972.912\t"', "0", 1736413971558972912, 0),
        ("1736413971558972.9126", "1", 1736413971558972913, 1_000),
        ("12.345", "1e2", 12_345, 100_000),
    ],
)
def test_times(start: str, duration: str, start_ns: int, duration_ns: int) -> None:
    (kernel,) = read(level_0(f"1,a,T,AI_CORE,{start},{duration},0,8")).to_dict("records")
    assert (kernel["start_ns"], kernel["duration_ns"]) == (start_ns, duration_ns)


@pytest.mark.parametrize(
    ("names", "cells", "bound", "ratio"),
    [
        ("aic_mac_ratio,aic_mte2_ratio,aiv_vec_ratio", "0.8,0.7,0", "cube", 0.8),
        ("aic_mac_ratio,aic_mte2_ratio,aiv_vec_ratio", "0.1,0.2,0.9", "vector", 0.9),
        ("aic_mac_ratio,aic_mte2_ratio,aiv_vec_ratio", "N/A,N/A,N/A", "", np.nan),
        ("aic_mac_ratio,aic_mte2_ratio,aiv_vec_ratio", "0.8,garbage,0", "cube", 0.8),
    ],
)
def test_bound(names: str, cells: str, bound: str, ratio: float) -> None:
    header = f"Name,Type,Accelerator Core,{TIMES},{names}"
    (kernel,) = read(f"{header}\na,T,MIX_AIC,1.0,40,0,{cells}\n").to_dict("records")
    assert kernel["bound"] == bound
    assert kernel["bound_ratio"] == pytest.approx(ratio, nan_ok=True)


def test_a_type_that_is_not_recorded_is_told_by_the_name() -> None:
    names = {
        "aclnnMul_MulAiCore_Mul": "Mul",
        "aclnnFlashAttentionScore_FlashAttentionScore_FlashAttentionScore_varlen": "FlashAttentionScore",  # noqa: E501
        "trans_TransData_12": "TransData",
        "Conv2D7": "Conv2D",
        "GatherV282": "GatherV2",
        "RealDiv132": "RealDiv",
        "Conv2DBackpropFilter6_MemSet": "MemSet",
        "atomic_memset-1_69_2208226_1_0": "MemSet",
        "hcom_allReduce__586_0_1": "hcom_allReduce_",
        "triton_poi_fused_add_0": "triton_poi_fused_add_0",
    }
    rows = [f"1,{name},N/A,N/A,{i}.000,2,0,8" for i, name in enumerate(names)]
    frame = read(level_0(*rows, "1,aclnnMul_MulAiCore_Mul,Known,N/A,99.000,2,0,8"))
    assert frame["type"].tolist() == [*names.values(), "Known"]
    assert frame["core"].unique().tolist() == [""]


def test_blocks_of_a_large_file_are_joined() -> None:
    rows = [f"{i % 3},k{i % 700},T{i % 5},AI_CORE,{i}.000,2.5,0,8" for i in range(200_000)]
    frame = read(level_0(*rows))
    assert len(frame) == 200_000
    assert frame["start_ns"].tolist() == [i * 1000 for i in range(200_000)]
    assert frame["name"].astype(str).tolist() == [f"k{i % 700}" for i in range(200_000)]
    assert frame["step"].tolist() == [i % 3 for i in range(200_000)]


def test_a_malformed_row_leaves_other_names_as_they_are() -> None:
    frame, malformed = read_with_count(level_0("1,算子,T,AI_CORE,1.000,2,0,8", '1,"b,T'))
    assert frame["name"].tolist() == ["算子"]
    assert malformed == 1


def test_blank_lines_are_not_malformed() -> None:
    frame, malformed = read_with_count(level_0("1,a,T,AI_CORE,1.000,2,0,8", "", "", ""))
    assert len(frame) == 1
    assert malformed == 0


def test_a_byte_order_mark_and_a_repeated_column_do_no_harm() -> None:
    header = "Name,Type,Accelerator Core,Start Time(us),Duration(us),Name"
    frame = read(f"\ufeff{header}\na,T,AI_CORE,1.000,2,other\n")
    assert frame["name"].tolist() == ["a"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no column Name"),
        ("\0\1\2\3" * 100, "binary file"),
        ('{"not": "csv"}', "no column Name"),
        (HEADERS["level 0"], "no kernels"),
        (HEADERS["level 0"] + "\n\n", "no kernels"),
        (HEADERS["level 0"].replace("Duration(us)", "Dur") + "\n1,a,T,C,1,2,3,4\n", "Duration(us)"),
    ],
)
def test_nothing_to_read_is_an_error_that_says_what_to_do(text: str, says: str) -> None:
    with pytest.raises(DumpError) as caught:
        read(text)
    assert says in caught.value.message
    assert "kernel_details.csv" in caught.value.message
    assert "analyse(" in caught.value.remedy


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(DumpError) as caught:
        read_kernel_details(tmp_path)  # opening a folder fails as a file without rights does
    assert "readable" in caught.value.remedy


def tell(content: bytes) -> tuple[Problem, ...]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel_details.csv"
        path.write_bytes(content)
        return read_kernel_details(path).problems


CRLF = "\r\n".join(
    [
        HEADERS["newest level 0"],
        *(
            f"0,k{i},T,AI_CORE,1736408883704{i}00.123\t,1.5,0.5,8,{SHAPES},FLOAT,ND,"
            f"{SHAPES},FLOAT,ND,N/A"
            for i in range(4)
        ),
        "",
    ]
).encode()


@given(st.integers(0, len(CRLF)))
@settings(max_examples=100)
def test_a_file_cut_at_any_byte_keeps_the_rows_before(cut: int) -> None:
    complete = max(CRLF[:cut].count(b"\r\n") - 1, 0)
    try:
        frame, malformed = read_with_count(CRLF[:cut])
    except DumpError:
        assert complete == 0
        return
    # The cut row counts as whole where only its last, unused cell is short.
    assert frame["name"].tolist() in ([f"k{i}" for i in range(n)] for n in (complete, complete + 1))
    assert len(frame) + malformed - complete in {0, 1}
    assert frame["start_ns"].tolist() == [
        1736408883704000123 + i * 100_000 for i in range(len(frame))
    ]


def rows_and_problems(path: Path) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
    kernels = read_kernel_details(path)
    return kernels.frame, kernels.problems


OPTIONAL = (
    "Device_id",
    "Wait Time(us)",
    "Block Num",
    "Input Formats",
    "Output Formats",
    "Context ID",
)
"""Columns that exports of some version or level do not have."""


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "kernel_details.csv"
    check_every_column(
        rows_and_problems, path, CRLF.replace(b"0,k", b"-1,k"), optional=(*OPTIONAL, *SHAPE_COLUMNS)
    )
    check_nothing_to_read(rows_and_problems, path, CRLF)
    check_any_bytes(rows_and_problems, path, CRLF)


SHAPE_COLUMNS = ("Input Shapes", "Input Data Types", "Output Shapes", "Output Data Types")


@pytest.mark.parametrize("column", SHAPE_COLUMNS[:3])
def test_one_of_the_shape_columns_renamed_is_told(tmp_path: Path, column: str) -> None:
    content = CRLF.replace(column.encode(), b"Renamed")
    _, told = read_damaged(rows_and_problems, tmp_path / "kernel_details.csv", content)
    assert told


def test_no_cut_goes_unnoticed_but_between_rows(tmp_path: Path) -> None:
    path = tmp_path / "kernel_details.csv"
    for cut in range(len(CRLF)):
        _, told = read_damaged(rows_and_problems, path, CRLF[:cut])
        assert told or CRLF[:cut].endswith(b"\n"), CRLF[:cut]
