"""The columns of the kernels that come from other tables than the kernels themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from small_db import api, full_tables, small_tables, write_database, write_db_dump
from small_dump import START

from npufix.profiling_parsers.database import pmu as db_pmu
from npufix.profiling_parsers.profile import CallSite
from npufix.profiling_parsers.reader import read_profile
from npufix.profiling_parsers.signals import LONG_CALL_NS

if TYPE_CHECKING:
    from pathlib import Path

    from small_db import Tables

    from npufix.profiling_parsers.profile import Profile


def read(root: Path, tables: Tables) -> Profile:
    return read_profile(write_db_dump(root / "host_1_ascend_pt", tables))


def text(tables: Tables, value: str) -> int:
    """Return the number of a text, which is added if it is new."""
    known = {row["value"]: row["id"] for row in tables["STRING_IDS"]}
    if value not in known:
        known[value] = max(known.values()) + 1
        tables["STRING_IDS"].append({"id": known[value], "value": value})
    number: int = known[value]
    return number


def test_state_and_bound(tmp_path: Path) -> None:
    kernels = read(tmp_path, full_tables()).kernels
    assert kernels["state"].tolist() == ["dynamic", "dynamic", ""]
    assert kernels["bound"].tolist() == ["vector", "", ""]
    assert kernels["bound_ratio"].iloc[0] == np.float32(0.9)
    assert kernels["bound_ratio"].iloc[1:].isna().all()


def test_a_kernel_is_launched_by_its_node_else_by_its_operator(tmp_path: Path) -> None:
    tables = full_tables()
    launches = read(tmp_path / "whole", tables).kernels["launch_ns"]
    assert launches.tolist() == [START + 40_000, START + 150_000, -1]
    tables["CANN_API"] = tables["CANN_API"][:2]
    assert read(tmp_path / "less", tables).kernels["launch_ns"].tolist()[1] == START + 103_000
    tables["CANN_API"][1]["type"] = 20_000
    tables["CANN_API"].append({**tables["CANN_API"][1], "type": 10_000, "startNs": START + 1})
    assert read(tmp_path / "both", tables).kernels["launch_ns"].iloc[0] == START + 1
    tables["CANN_API"].reverse()
    assert read(tmp_path / "turned", tables).kernels["launch_ns"].iloc[0] == START + 1


def test_the_type_is_that_of_the_name_where_level0_has_none(tmp_path: Path) -> None:
    tables = small_tables()
    for row in tables["COMPUTE_TASK_INFO"]:
        row["opType"] = row["taskType"] = text(tables, "N/A")
    kernels = read(tmp_path, tables).kernels
    assert kernels["core"].tolist() == ["", "", "HCCL"]
    named = next(row for row in tables["STRING_IDS"] if row["value"] == "aclnnMul_Mul")
    named["value"] = "aclnnMul_MulAiCore_Mul"
    assert read(tmp_path / "named", tables).kernels["type"].iloc[0] == "Mul"


def test_several_devices_in_one_file(tmp_path: Path) -> None:
    tables = full_tables()
    tables["TASK"][1]["deviceId"] = 1
    collective = tables["COMMUNICATION_OP"][0]
    tables["TASK"].append({**tables["TASK"][1], "globalTaskId": 8, "connectionId": 950})
    profile = read(tmp_path, tables)
    assert profile.kernels["device"].tolist() == [0, 1, 1]
    # On a device of its own, nothing ran before; the collective waits for the other kernel there.
    assert profile.kernels["wait_ns"].tolist() == [0, 0, 109_750]
    assert profile.steps["device"].tolist() == [-1]
    collective["connectionId"] = None
    assert read(tmp_path / "unknown", tables).kernels["device"].tolist() == [0, 1, -1]


def test_the_machine_is_what_the_file_says(tmp_path: Path) -> None:
    environment = read(tmp_path, full_tables()).environment
    assert environment.chip == "Ascend910B3"
    assert environment.rank == 6
    assert environment.world_size == 8
    assert environment.variables == {"ASCEND_LAUNCH_BLOCKING": "1"}


@pytest.mark.parametrize("value", [None, "x", "[", "[1]", "{}", "[" * 9999])
def test_a_machine_that_is_not_known(tmp_path: Path, value: str | None) -> None:
    tables = full_tables()
    tables["NPU_INFO"] = [{"id": 3, "name": "Ascend910B3"}, {"id": 4, "name": None}]
    tables["RANK_DEVICE_MAP"] = [{"rankId": -1, "deviceId": 0}]
    for row in tables["META_DATA"]:
        row["value"] = value
    environment = read(tmp_path, tables).environment
    assert environment.chip == "Ascend910B3"
    assert environment.rank is None
    assert environment.world_size is None
    assert environment.variables == {}


def test_without_call_chains_functions_lead_to_the_line_of_their_def(tmp_path: Path) -> None:
    tables = small_tables()
    del tables["PYTORCH_CALLCHAINS"]
    names = {"model.py(3): forward": (700, 90_000), "nn.Module: Net_0": (800, 80_000)}
    for name, (start, duration) in names.items():
        event = api(text(tables, name), 10, start, duration, kind=50003)
        tables["PYTORCH_API"].append(event)
    profile = read(tmp_path, tables)
    assert profile.modules == ("Net_0",)
    assert profile.kernels["module"].tolist() == [0, 0, -1]
    assert profile.kernels["basis"].tolist() == ["function", "forward-function", ""]
    stack = profile.stacks[profile.kernels["stack"].iloc[0]]
    assert CallSite("model.py", 3, "forward") in stack
    (problem,) = profile.problems
    assert "only to a function" in problem.what


def test_with_call_chains_functions_only_say_what_took_long(tmp_path: Path) -> None:
    tables = small_tables()
    for name in ("model.py(3): forward", "nn.Module: Net_0", "<built-in function len>"):
        event = api(text(tables, name), 10, 700, LONG_CALL_NS, kind=50003)
        tables["PYTORCH_API"].append(event)
    profile = read(tmp_path, tables)
    assert profile.kernels["basis"].tolist() == ["call-stack", "forward", ""]
    assert profile.modules == ("Net_0",)
    assert not any(frame.path == "model.py" for stack in profile.stacks for frame in stack)
    assert profile.signals.functions["name"].tolist() == ["model.py(3): forward"]


def test_a_step_that_nobody_split_is_computed(tmp_path: Path) -> None:
    dump = write_db_dump(tmp_path / "host_1_ascend_pt")
    (dump / "ASCEND_PROFILER_OUTPUT" / "analysis.db").unlink()
    profile = read_profile(dump)
    (step,) = profile.steps.to_dict("records")
    assert step["step"] == 50
    assert step["computing_ns"] == 30_750
    assert step["communication_exposed_ns"] == step["communication_ns"] == 100_000
    (problem,) = profile.problems
    assert "computed from the kernels" in problem.what


@pytest.mark.parametrize("order", ["name", "task"])
@pytest.mark.parametrize("tasks", [50, 1000, 4000])
def test_of_many_counters_those_of_whole_tasks_are_read(
    tmp_path: Path, order: str, tasks: int
) -> None:
    tables = small_tables()
    tables["TASK"] = [
        {**tables["TASK"][0], "globalTaskId": number, "startNs": START + number * 100_000,
         "endNs": START + number * 100_000 + 90_000}
        for number in range(tasks)
    ]  # fmt: skip
    tables["COMPUTE_TASK_INFO"] = [
        {**tables["COMPUTE_TASK_INFO"][0], "globalTaskId": number} for number in range(tasks)
    ]
    names = [text(tables, name) for name in ("aiv_vec_ratio", "aiv_time", "aiv_mte2_ratio")]
    value = {names[0]: 0.6, names[1]: 7.5, names[2]: 0.8}
    counters: list[dict[str, Any]] = [
        {"globalTaskId": number, "name": name, "value": value[name]}
        for name in names
        for number in range(tasks)
    ]
    if order == "task":
        counters.sort(key=lambda row: row["globalTaskId"])
    tables["TASK_PMU_INFO"] = counters
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(db_pmu, "_MOST_PAGES", 5)
        patch.setattr(db_pmu, "_STRETCHES", 3)
        kernels = read(tmp_path, tables).kernels
    bound = kernels["bound"][~kernels["communication"]]
    known = bound != ""
    assert (bound[known] == "mte").all()
    assert known.all() if tasks == 50 else 0.05 < known.mean() < 0.8


def test_counters_in_no_order_are_not_sampled(tmp_path: Path) -> None:
    tables = full_tables()
    generator = np.random.default_rng(0)
    numbers = [row["name"] for row in tables["TASK_PMU_INFO"]]
    tables["TASK_PMU_INFO"] = [
        {"globalTaskId": int(task), "name": numbers[task % 4], "value": 0.5}
        for task in generator.permutation(4000)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(db_pmu, "_MOST_PAGES", 2)
        assert (read(tmp_path, tables).kernels["bound"] == "").all()


def test_no_file_but_the_main_one_is_needed(tmp_path: Path) -> None:
    write_database(tmp_path / "ascend_pytorch_profiler_3.db", full_tables())
    profile = read_profile(tmp_path)
    assert len(profile.kernels) == 3
    assert profile.format == "ascend-db"
