from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from small_db import MAIN, api, small_tables, split_tables, task, write_database, write_db_dump
from small_dump import START, write_dump

from npufix.profiling_parsers.discover import DumpLocation, find_dumps
from npufix.profiling_parsers.profile import CallSite
from npufix.profiling_parsers.reader import read_profile

if TYPE_CHECKING:
    from pathlib import Path

    from small_db import Tables

    from npufix.profiling_parsers.profile import Problem, Profile


def read(root: Path, tables: Tables | None = None, split: Tables | None = None) -> Profile:
    return read_profile(write_db_dump(root / "host_1_ascend_pt", tables, split))


def without(table: str, *columns: str) -> Tables:
    tables = small_tables()
    for row in tables[table]:
        for column in columns:
            del row[column]
    return tables


def problem(profile: Profile) -> Problem:
    (only,) = profile.problems
    assert "\n" not in only.what
    assert only.remedy
    return only


def as_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame whose categories compare by text, whatever their order."""
    texts = frame.select_dtypes("category").columns
    return frame.astype(dict.fromkeys(texts, object))


def test_the_same_run_gives_the_same_profile_as_its_text_export(tmp_path: Path) -> None:
    text = read_profile(write_dump(tmp_path / "text_ascend_pt"))
    profile = read(tmp_path)
    assert profile.problems == ()
    assert profile.stacks == text.stacks
    assert profile.modules == text.modules
    for name in ("kernels", "host_ops", "steps"):
        mine, theirs = getattr(profile, name), getattr(text, name)
        assert mine.dtypes.astype(str).to_dict() == theirs.dtypes.astype(str).to_dict(), name
        # The small text makes up its waiting times, and says no device, no stream, nor where a step
        # begins.
        unsaid = ["wait_ns", "device", "stream", "free_ns", "preparing_ns"]
        stated = theirs.drop(columns=unsaid, errors="ignore")
        pd.testing.assert_frame_equal(as_text(mine)[list(stated)], as_text(stated))
    (step,) = profile.steps[["computing_ns", "communication_exposed_ns", "free_ns"]].to_numpy()
    assert step.sum() == 500_000, "as STEP_TIME says"
    assert profile.kernels["wait_ns"].tolist() == [0, 99_500, 109_750]
    assert profile.kernels["device"].tolist() == [0, 0, 0]
    assert profile.steps["device"].tolist() == [0]


def test_a_db_dump_is_found_in_its_folder_and_bare(tmp_path: Path) -> None:
    dump = write_db_dump(tmp_path / "host_1_ascend_pt")
    assert find_dumps(tmp_path) == [DumpLocation(dump, "ascend")]
    bare = tmp_path / "copied" / "files"
    bare.parent.mkdir()
    (dump / "ASCEND_PROFILER_OUTPUT").rename(bare)
    assert find_dumps(tmp_path / "copied") == [DumpLocation(bare, "ascend")]
    assert len(read_profile(bare).kernels) == 3


def test_with_both_exports_the_database_is_read_alone(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "host_1_ascend_pt")
    tables = small_tables()
    del tables["COMMUNICATION_OP"]
    write_db_dump(dump, tables)
    profile = read_profile(dump)
    assert len(profile.kernels) == 2
    assert profile.op_statistic.empty


def test_a_path_with_the_signs_of_an_address(tmp_path: Path) -> None:
    assert len(read(tmp_path / "a?mode=rwc#%41 ü").kernels) == 3


def test_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    dump = write_db_dump(tmp_path / "host_1_ascend_pt")
    before = {path: path.stat().st_mtime_ns for path in dump.rglob("*")}
    read_profile(dump)
    assert {path: path.stat().st_mtime_ns for path in dump.rglob("*")} == before


@pytest.mark.parametrize("info", ["{}", '{"cann_version": "8.3.RC1"}'])
def test_the_core_of_collectives_is_that_of_the_version(tmp_path: Path, info: str) -> None:
    dump = write_db_dump(tmp_path / "host_1_ascend_pt")
    (dump / "profiler_info.json").write_text(info)
    core = read_profile(dump).kernels["core"].iloc[2]
    assert core == ("COMMUNICATION" if "cann" in info else "HCCL")


def test_the_names_of_the_driver_become_those_of_the_hardware(tmp_path: Path) -> None:
    tables = small_tables()
    for row in tables["STRING_IDS"]:
        if row["value"] == "AI_VECTOR_CORE":
            row["value"] = "KERNEL_AIVEC"
    assert read(tmp_path, tables).kernels["core"].iloc[0] == "AI_VECTOR_CORE"


def test_shapes_in_the_column_of_their_name(tmp_path: Path) -> None:
    tables = small_tables()
    for row in tables["PYTORCH_API"]:
        row["inputShapes"], row["inputDtypes"] = row["inputDtypes"], row["inputShapes"]
    first = read(tmp_path, tables).host_ops.iloc[0]
    assert first[["input_dims", "input_types"]].tolist() == ["4,128;128;", "float;float"]


def test_frames_come_by_depth_and_what_is_no_frame_is_left_out(tmp_path: Path) -> None:
    tables = small_tables()
    tables["STRING_IDS"][tables["PYTORCH_CALLCHAINS"][1]["stack"]]["value"] = "<built-in>"
    (stack,) = read(tmp_path, tables).stacks
    assert stack == (
        CallSite("/home/me/model.py", 12, "forward"),
        CallSite("<string>", 1, "<module>"),
    )


def test_a_connection_of_two_operators_is_the_inner_one(tmp_path: Path) -> None:
    tables = small_tables()
    tables["PYTORCH_API"][4]["connectionId"] = 41
    profile = read(tmp_path, tables)
    assert profile.host_ops["name"].iloc[profile.kernels["host_op"].iloc[1]] == "aten::mul"
    assert profile.kernels["basis"].iloc[1] == "forward"


def test_a_step_on_the_device_goes_from_its_first_launch_to_its_last_end(tmp_path: Path) -> None:
    tables = small_tables()
    # The second step starts on the host while the device still computes the first.
    tables["STEP_TIME"] = [
        {"id": 50, "startNs": START, "endNs": START + 50_000},
        {"id": 51, "startNs": START + 50_001, "endNs": START + 160_000},
        {"id": 52, "startNs": START + 160_001, "endNs": START + 200_000},
    ]
    assert read(tmp_path, tables).kernels["step"].tolist() == [50, 51, pd.NA]


def test_without_links_a_step_is_its_time_on_the_host(tmp_path: Path) -> None:
    tables = small_tables()
    del tables["PYTORCH_API"]
    tables["STEP_TIME"] = [{"id": 3, "startNs": START, "endNs": START + 170_000}]
    assert read(tmp_path, tables).kernels["step"].tolist() == [3, 3, pd.NA]


@pytest.mark.parametrize("table", ["STEP_TIME", "COMMUNICATION_OP"])
def test_tables_that_not_every_run_has(tmp_path: Path, table: str) -> None:
    tables = small_tables()
    del tables[table]
    profile = read(tmp_path, tables)
    assert profile.problems == ()
    assert profile.kernels["basis"].tolist()[:2] == ["call-stack", "forward"]
    assert profile.kernels.dtypes.astype(str).tolist() == [
        *read(tmp_path / "whole").kernels.dtypes.astype(str)
    ]


@pytest.mark.parametrize(
    ("table", "remedy"),
    [
        ("PYTORCH_API", "ProfilerActivity.CPU"),
        ("PYTORCH_CALLCHAINS", "with_stack=True"),
        ("CONNECTION_IDS", "ProfilerActivity.CPU"),
    ],
)
def test_what_was_not_collected_is_a_problem(tmp_path: Path, table: str, remedy: str) -> None:
    tables = small_tables()
    del tables[table]
    profile = read(tmp_path, tables)
    assert table in problem(profile).what
    assert remedy in problem(profile).remedy
    assert not problem(profile).damaged
    assert len(profile.kernels) == 3
    assert not profile.kernels["basis"].isin(["call-stack", "forward"]).any()
    assert profile.kernels["name"].iloc[0] == "aclnnMul_Mul"


def test_columns_of_level0_and_of_other_versions(tmp_path: Path) -> None:
    columns = ("blockDim", "inputShapes", "inputDataTypes", "outputShapes")
    tables = without("COMPUTE_TASK_INFO", *columns)
    for row in tables["COMPUTE_TASK_INFO"]:
        row["blockNum"], row["opState"] = 8, 0
    profile = read(tmp_path, tables)
    assert profile.problems == ()
    assert profile.kernels["input_shapes"].tolist() == ["", "", ""]
    assert profile.kernels["type"].tolist() == ["Mul", "Mul", "hcom_allReduce_"]


def test_times_of_any_declared_type(tmp_path: Path) -> None:
    tables = small_tables()
    for row in (*tables["TASK"], *tables["COMMUNICATION_OP"], *tables["STEP_TIME"]):
        row["startNs"], row["endNs"] = str(row["startNs"]), str(row["endNs"]).encode()
    for row in tables["PYTORCH_API"]:
        row["startNs"], row["endNs"] = int(row["startNs"]), int(row["endNs"])
    pd.testing.assert_frame_equal(
        as_text(read(tmp_path, tables).kernels), as_text(read(tmp_path / "whole").kernels)
    )


def test_names_that_are_null(tmp_path: Path) -> None:
    tables = small_tables()
    for row in (*tables["COMPUTE_TASK_INFO"], *tables["PYTORCH_API"]):
        row["name"] = None
    tables["STRING_IDS"][0]["value"] = None
    profile = read(tmp_path, tables)
    assert profile.kernels["name"].tolist()[:2] == ["", ""]
    assert profile.kernels["basis"].iloc[0] == "call-stack"


def test_kernels_and_operators_without_a_time_are_counted(tmp_path: Path) -> None:
    tables = small_tables()
    tables["TASK"] = [task(5, 60_000, 10_500, 900), task(6, 170_000, -1, 901)]
    tables["PYTORCH_API"].append(api(None, 10, -START, 0))
    profile = read(tmp_path, tables)
    assert [each.what for each in profile.problems] == [
        "1 of 3 kernels have no time and are left out",
        "1 of 7 host operators have no time and are left out",
    ]
    assert all(each.damaged for each in profile.problems)


def test_a_split_that_is_missing_or_says_nothing(tmp_path: Path) -> None:
    dump = write_db_dump(tmp_path / "host_1_ascend_pt", split={"Other": [{"a": 1}]})
    assert "StepTraceTime" in problem(read_profile(dump)).what
    (dump / "ASCEND_PROFILER_OUTPUT" / "analysis.db").unlink()
    profile = read_profile(dump)
    assert "missing" in problem(profile).what
    assert profile.steps.dtypes.tolist() == read(tmp_path / "whole").steps.dtypes.tolist()


@pytest.mark.parametrize("factor", [1000, 0.001])
def test_a_split_in_another_unit_is_not_believed(tmp_path: Path, factor: float) -> None:
    split = split_tables()
    for row in split["StepTraceTime"]:
        row |= {key: value * factor for key, value in row.items() if key != "step"}
    profile = read(tmp_path, split=split)
    assert profile.steps["computing_ns"].tolist() == [30_750]
    assert problem(profile).damaged
    assert "computed from the kernels" in problem(profile).what


def test_a_split_without_a_schedule(tmp_path: Path) -> None:
    split = split_tables()
    split["StepTraceTime"] += [{**split["StepTraceTime"][0], "step": None, "free": "x"}]
    split["StepTraceTime"] += [{**split["StepTraceTime"][0], "free": None}]
    steps = read(tmp_path, split=split).steps
    assert steps["step"].tolist() == [50, pd.NA]
    assert steps["free_ns"].tolist() == [500_000 - 30_750 - 100_000, 0]


def test_a_file_that_was_not_closed_is_a_problem(tmp_path: Path) -> None:
    dump = write_db_dump(tmp_path / "host_1_ascend_pt")
    output = dump / "ASCEND_PROFILER_OUTPUT"
    (output / f"{MAIN}-wal").write_bytes(b"x")
    assert "-wal is not read" in problem(read_profile(dump)).what


def test_views_and_virtual_tables_are_not_read(tmp_path: Path) -> None:
    dump = tmp_path / "host_1_ascend_pt"
    path = dump / "ASCEND_PROFILER_OUTPUT" / MAIN
    tables = small_tables()
    apis = tables.pop("PYTORCH_API")
    write_database(path, {**tables, "Hidden": apis})
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE VIEW PYTORCH_API AS SELECT * FROM Hidden")
        connection.commit()
    write_database(path.with_name("analysis.db"), split_tables())
    assert "holds no host operators" in problem(read_profile(dump)).what
