from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest
from damage import as_csv, check_any_bytes, check_every_column, plain

from npufix.profiling_parsers.discover import find_dumps
from npufix.profiling_parsers.msprof.files import is_exported
from npufix.profiling_parsers.msprof.reader import read_msprof
from npufix.profiling_parsers.profile import DumpError, Problem, Profile
from npufix.profiling_parsers.reader import read_profile
from npufix.profiling_parsers.text.kernel_details import read_kernel_details

if TYPE_CHECKING:
    from pathlib import Path

AT = "20250109123456"
SHAPES = '"4,128;128"'
START = 1_736_408_883_704_000_000
HEADER = [
    "Device_id",
    "Model ID",
    "Task ID",
    "Stream ID",
    "Op Name",
    "OP Type",
    "OP State",
    "Task Type",
    "Task Start Time(us)",
    "Task Duration(us)",
    "Task Wait Time(us)",
    "Block Num",
    "Mix Block Num",
    "HF32 Eligible",
    "Input Shapes",
    "Input Data Types",
    "Input Formats",
    "Output Shapes",
    "Output Data Types",
    "Output Formats",
    "Context ID",
    "aicore_time(us)",
    "aiv_vec_time(us)",
    "aiv_vec_ratio",
    "aiv_mte2_time(us)",
    "aiv_mte2_ratio",
]


def kernel(index: int, *, device: int = 0, kind: str = "Mul", duration: float = 30.5) -> list[str]:
    start = START + index * 100_000
    return (
        f"{device}|4294967295|{index}|2|aclnn{kind}_{kind}_{kind}|{kind}|dynamic|AI_VECTOR_CORE|"
        f"{start // 1000}.{start % 1000:03d}\t|{duration}|0|8|0|NO|{SHAPES}|FLOAT|ND|{SHAPES}|"
        "FLOAT|ND|N/A|0.0|1.0|0.2|5.0|0.9"
    ).split("|")


def statistic(**totals: tuple[int, float]) -> bytes:
    whole = sum(total for _, total in totals.values())
    header = [
        "Device_id",
        "OP Type",
        "Core Type",
        "Count",
        "Total Time(us)",
        "Min Time(us)",
        "Avg Time(us)",
    ]
    rows = [
        ["0", kind, "AI_VECTOR_CORE", str(n), str(us), "1", "1", "1", f"{us / whole * 100:.3f}"]
        for kind, (n, us) in totals.items()
    ]
    return as_csv([[*header, "Max Time(us)", "Ratio(%)"], *rows])


ONE_CORE = (
    "Model Name,Model ID,Task ID,Stream ID,Infer ID,Op Name,OP Type,Task Type,"
    "Task Start Time(us),Task Duration(us),Task Wait Time(us),Block Dim,Input Shapes,"
    "Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats,"
    "aicore_time(us),total_cycles,vec_ratio,mac_ratio,scalar_ratio,mte1_ratio,mte2_ratio,"
    "mte3_ratio,icache_miss_rate,memory_bound"
)
HYBRID = (
    "Step Id,Model ID,Task ID,Stream ID,Op Name,OP Type,Task Type,Start Time(us),"
    "Task Duration(us),Task Wait Time(us),Block Dim,Mix Block Dim,HF32 Eligible,Input Shapes,"
    "Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats,mac_ratio"
)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    output = folder / "mindstudio_profiler_output"
    output.mkdir(parents=True)
    for name, content in files.items():
        (output / name).write_bytes(content)
    return folder


def damaged(profile: Profile) -> list[str]:
    return [problem.what for problem in profile.problems if problem.damaged]


FOUR = as_csv([HEADER, *(kernel(i) for i in range(4))])


def test_op_summary(tmp_path: Path) -> None:
    dump = write(tmp_path / "PROF_1", {f"op_summary_{AT}.csv": FOUR})
    profile = read_msprof(dump)
    assert profile.format == "msprof"
    assert profile.root == dump
    kernels = profile.kernels
    assert kernels["type"].tolist() == ["Mul"] * 4
    assert kernels["start_ns"].tolist() == [START + i * 100_000 for i in range(4)]
    assert kernels["device"].tolist() == [0] * 4
    assert kernels["bound"].tolist() == ["mte"] * 4
    assert kernels["stack"].tolist() == kernels["launch_ns"].tolist() == [-1] * 4
    assert profile.steps["computing_ns"].tolist() == [4 * 30_500]
    assert not damaged(profile)
    assert any("no kernel is led to a line" in problem.what for problem in profile.problems)


def test_the_folder_of_the_files_is_a_dump_as_well(tmp_path: Path) -> None:
    dump = write(tmp_path / "PROF_1", {f"op_summary_{AT}.csv": FOUR})
    assert len(read_msprof(dump / "mindstudio_profiler_output").kernels) == 4
    assert is_exported(dump)
    assert is_exported(dump / "mindstudio_profiler_output")
    assert not is_exported(tmp_path)


def test_each_prof_folder_is_a_dump(tmp_path: Path) -> None:
    for name in ("PROF_1", "PROF_2"):
        write(tmp_path / name, {f"op_summary_{AT}.csv": FOUR})
    assert [dump.path.name for dump in find_dumps(tmp_path)] == ["PROF_1", "PROF_2"]


def test_slices_are_put_together(tmp_path: Path) -> None:
    parts = [as_csv([HEADER, kernel(i, device=i % 2, kind=f"K{i}")]) for i in range(12)]
    files = {
        f"op_summary_slice_{i}_2025010912345{i % 10}.csv": part for i, part in enumerate(parts)
    }
    kernels = read_msprof(write(tmp_path / "PROF_1", files)).kernels
    assert kernels["type"].astype(str).tolist() == [f"K{i}" for i in range(12)]
    assert kernels["device"].tolist() == [i % 2 for i in range(12)]
    assert kernels["device"].dtype == "int32"


def test_a_missing_and_a_broken_slice_are_told(tmp_path: Path) -> None:
    files = {
        f"op_summary_slice_{i}_{AT}.csv": as_csv([HEADER, *map(kernel, range(4 * i, 4 * i + 4))])
        for i in (0, 2)
    }
    dump = write(tmp_path / "PROF_1", {**files, f"op_summary_slice_3_{AT}.csv": b""})
    profile = read_msprof(dump)
    assert len(profile.kernels) == 8
    told = damaged(profile)
    assert any("slice 1 is missing" in what for what in told)
    assert any("slice_3" in what for what in told)


def test_a_table_alone_is_read_under_any_name(tmp_path: Path) -> None:
    copied = tmp_path / "runs" / "a003 summary (copy).csv"
    copied.parent.mkdir()
    copied.write_bytes(FOUR)
    (copied.parent / "notes.csv").write_text("day,what\n1,fast\n")
    (found,) = find_dumps(tmp_path)
    assert (found.path, found.kind) == (copied, "kernel-table")
    profile = read_profile(copied)
    assert profile.kernels["type"].tolist() == ["Mul"] * 4
    assert [problem.damaged for problem in profile.problems] == [False]
    dump = write(tmp_path / "PROF_1", {f"op_summary_{AT}.csv": FOUR})
    (inside,) = find_dumps(next(dump.rglob("op_summary*.csv")))
    assert inside.kind == "msprof"
    with pytest.raises(DumpError, match=r"notes\.csv: no file of a profiling dump"):
        find_dumps(copied.parent / "notes.csv")


def test_an_earlier_export_is_not_counted_again(tmp_path: Path) -> None:
    early = as_csv([HEADER, *(kernel(i) for i in range(2))])
    files = {"op_summary_20240101000000.csv": early, f"op_summary_{AT}.csv": FOUR}
    assert len(read_msprof(write(tmp_path / "PROF_1", files)).kernels) == 4


def test_totals_are_held_against_op_statistic(tmp_path: Path) -> None:
    right = {f"op_summary_{AT}.csv": FOUR, f"op_statistic_{AT}.csv": statistic(Mul=(4, 122.0))}
    profile = read_msprof(write(tmp_path / "PROF_1", right))
    assert not damaged(profile)
    assert profile.op_statistic["total_ns"].tolist() == [122_000]
    wrong = {**right, f"op_statistic_{AT}.csv": statistic(Mul=(5, 152.5))}
    (told,) = damaged(read_msprof(write(tmp_path / "PROF_2", wrong)))
    assert "4 kernels, 122.000 µs against 5, 152.500 µs" in told


@pytest.mark.parametrize("name", ["op_summary.csv", "OP_SUMMARY_RANK0.CSV"])
def test_a_table_without_the_time_of_its_export_is_one_by_itself(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FOUR)
    (found,) = find_dumps(tmp_path)
    assert (found.path.name, found.kind) == (name, "kernel-table")


def test_without_op_summary_the_tasks_are_read(tmp_path: Path) -> None:
    content = as_csv(
        [
            ["Device_id", "kernel_name", "kernel_type", "task_time(us)", "task_start(us)"],
            ["0", "aclnnMul_MulAiCore_Mul", "KERNEL_AIVEC", "2.5", "1736408883704801.156\t"],
            ["0", "N/A", "EVENT_WAIT_SQE", "90", "1736408883704809.156\t"],
        ]
    )
    files = {f"task_time_{AT}.csv": content, f"op_statistic_{AT}.csv": statistic(Mul=(4, 122.0))}
    profile = read_msprof(write(tmp_path / "PROF_1", files))
    assert profile.kernels["type"].tolist() == ["Mul"]
    assert not damaged(profile)
    assert any("neither shapes nor collectives" in problem.what for problem in profile.problems)


def test_iterations_are_steps(tmp_path: Path) -> None:
    def microseconds(index: float) -> str:
        return f"{(START + int(index * 100_000)) // 1000}.000\t"

    steps = as_csv(
        [
            ["Device_id", "Iteration ID", "Iteration End(us)", "Iteration Time(us)", "Model ID"],
            ["0", "1", microseconds(1.5), "140", "1"],
            ["0", "2", microseconds(2.5), "100", "1"],
        ]
    )
    files = {f"op_summary_{AT}.csv": FOUR, f"step_trace_{AT}.csv": steps}
    kernels = read_msprof(write(tmp_path / "PROF_1", files)).kernels
    assert kernels["step"].fillna(-1).tolist() == [-1, 1, 2, -1]
    graphs = steps.replace(b",1\r\n", b",7\r\n", 1)
    files = {f"op_summary_{AT}.csv": FOUR, f"step_trace_{AT}.csv": graphs}
    assert read_msprof(write(tmp_path / "PROF_2", files)).kernels["step"].isna().all()


def test_files_beside_the_kernels(tmp_path: Path) -> None:
    apis = b"Device_id,Level,API Name,Time(us),Count,Avg(us),Min(us),Max(us),Variance\r\n"
    apis += b"host,acl,aclnnMul,10.5,2,5.25,5,5.5,0.1\r\n"
    files = {f"op_summary_{AT}.csv": FOUR, f"api_statistic_{AT}.csv": apis}
    profile = read_msprof(write(tmp_path / "PROF_1", files))
    assert profile.signals.apis["name"].tolist() == ["aclnnMul"]
    assert profile.signals.memory.empty


def test_the_device_is_that_of_the_raw_data_where_no_column_has_it(tmp_path: Path) -> None:
    content = as_csv([HEADER[1:], *(kernel(i)[1:] for i in range(2))])
    dump = write(tmp_path / "PROF_1", {f"op_summary_{AT}.csv": content})
    (dump / "device_5").mkdir()
    assert read_msprof(dump).kernels["device"].tolist() == [5, 5]
    (dump / "device_6").mkdir()
    assert read_msprof(dump).kernels["device"].tolist() == [-1, -1]


@pytest.mark.parametrize(
    "header",
    [ONE_CORE, HYBRID],
    ids=["one core", "hybrid"],
)
def test_older_headers(tmp_path: Path, header: str) -> None:
    cells = {"Op Name": "Mul7", "OP Type": "Mul", "Task Type": "AI_CORE", "Step Id": "3"}
    times = {"Task Duration(us)": "70.5", "Task Wait Time(us)": "1", "mac_ratio": "0.9"}
    starts = dict.fromkeys(["Task Start Time(us)", "Start Time(us)"], "1736408883704801.156")
    shapes = dict.fromkeys(["Input Shapes", "Output Shapes"], SHAPES)
    known = {**cells, **times, **starts, **shapes, "mte2_ratio": "0.1"}
    names = header.split(",")
    content = as_csv([names, [known.get(name, "N/A") for name in names]])
    profile = read_msprof(write(tmp_path / "PROF_1", {f"op_summary_{AT}.csv": content}))
    (row,) = profile.kernels.to_dict("records")
    assert not damaged(profile)
    assert (row["name"], row["type"], row["core"]) == ("Mul7", "Mul", "AI_CORE")
    assert (row["start_ns"], row["duration_ns"]) == (1736408883704801156, 70_500)
    assert row["input_shapes"] == "4,128;128"
    assert row["bound"] == "cube"
    assert pd.isna(row["step"]) == ("Step Id" not in header)


@pytest.mark.parametrize("content", [b"", b"\0\0", b"a,b\n1,2\n", FOUR[: FOUR.index(b"\n") + 1]])
def test_nothing_to_read_is_an_error_with_a_remedy(tmp_path: Path, content: bytes) -> None:
    dump = write(tmp_path / "PROF_1", {f"op_summary_{AT}.csv": content})
    with pytest.raises(DumpError) as caught:
        read_msprof(dump)
    assert "msprof --export=on" in caught.value.remedy


def test_a_folder_without_kernels(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="no op_summary"):
        read_msprof(write(tmp_path / "PROF_1", {}))


def test_damage(tmp_path: Path) -> None:
    dump = write(tmp_path / "PROF_1", {})
    name = f"op_summary_{AT}.csv"
    path = dump / "mindstudio_profiler_output" / name

    def read(_: Path) -> tuple[pd.DataFrame, list[Problem]]:
        profile = read_msprof(dump)
        return profile.kernels, [problem for problem in profile.problems if problem.damaged]

    content = as_csv([HEADER, *(kernel(i, device=-1) for i in range(3))])
    bound = [column for column in HEADER if "aiv" in column]
    shapes = [column for column in HEADER if "Input" in column or "Output" in column]
    changing = ["Device_id", "HF32 Eligible", "OP State", "Stream ID", "Task Wait Time(us)"]
    check_every_column(read, path, content, optional=[*changing, *bound, *shapes])
    check_any_bytes(read, path, content)


def test_the_same_run_gives_the_same_kernels_as_kernel_details(
    tmp_path: Path, alexnet: Path
) -> None:
    output = alexnet / "ASCEND_PROFILER_OUTPUT"
    renamed = {
        "Name": "Op Name",
        "Type": "OP Type",
        "Accelerator Core": "Task Type",
        "Start Time(us)": "Task Start Time(us)",
        "Duration(us)": "Task Duration(us)",
        "Wait Time(us)": "Task Wait Time(us)",
    }
    table = pd.read_csv(output / "kernel_details.csv", dtype=str, keep_default_na=False)
    table = table.rename(columns=renamed).drop(columns="Step Id")
    files = {
        f"op_summary_slice_{i}_{AT}.csv": part.to_csv(index=False).encode()
        for i, part in enumerate((table[:77], table[77:]))
    }
    files[f"op_statistic_{AT}.csv"] = (output / "op_statistic.csv").read_bytes()
    profile = read_msprof(write(tmp_path / "PROF_1", files))
    expected = read_kernel_details(output / "kernel_details.csv").frame.drop(columns="step")
    pd.testing.assert_frame_equal(plain(profile.kernels[expected.columns]), plain(expected))
    assert not damaged(profile)
