from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from small_kineto import (
    ADD,
    ALL_REDUCE,
    BASE,
    FOOTER,
    HEADER,
    event,
    gpu,
    new_events,
    trace,
    write_new,
    write_old,
    write_trace,
)

from npufix.profiling_parsers.kineto.file import is_kineto
from npufix.profiling_parsers.kineto.reader import read_kineto
from npufix.profiling_parsers.schema import complete_kernels

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.profiling_parsers.profile import Profile


@pytest.fixture
def new(tmp_path: Path) -> Profile:
    return read_kineto(write_new(tmp_path / "new.pt.trace.json"))


@pytest.fixture
def old(tmp_path: Path) -> Profile:
    return read_kineto(write_old(tmp_path / "old.pt.trace.json.gz"))


def frames(profile: Profile, kernel: int) -> list[tuple[str, int]]:
    stack = profile.kernels["stack"][kernel]
    return [(site.path, site.line) for site in profile.stacks[stack]] if stack >= 0 else []


def test_every_device_task_is_a_kernel(new: Profile) -> None:
    kernels = new.kernels
    assert new.format == "kineto"
    assert kernels["name"].tolist()[0] == ADD
    assert kernels["core"].tolist() == ["GPU", "Memcpy", "GPU", "GPU", "Memset"]
    assert kernels["duration_ns"].tolist() == [10_375, 20_000, 50_000, 30_000, 1_000]
    assert kernels["device"].tolist() == [0] * 5
    assert new.problems == ()


def test_a_launch_that_compiles_first_is_one_when_it_ends(tmp_path: Path) -> None:
    events = [
        event("cpu_op", "aten::add", 100.0, 6600.0, External_id=2),
        event("cuda_runtime", "hipLaunchKernel", 120.0, 6500.0, External_id=2, correlation=501),
        gpu("kernel", ADD, 6630.0, 10.0, 501),
    ]
    read = read_kineto(write_new(tmp_path / "late.pt.trace.json", events))
    assert read.kernels["launch_ns"][0] - read.host_ops["start_ns"][0] == 6_520_000
    assert "the 6.53 ms before are left out" in read.problems[-1].what


def test_the_type_is_the_operator_an_engineer_knows(new: Profile) -> None:
    types = ["aten::add", "Memcpy HtoD", "aten::mul", "nccl:all_reduce", "Memset"]
    assert new.kernels["type"].tolist() == types
    asked = [new.host_ops["name"][row] if row >= 0 else "" for row in new.kernels["host_op"]]
    assert asked == ["aten::add", "aten::copy_", "aten::mul", "", ""]


def test_a_kernel_without_a_known_operator_has_its_own_short_name(tmp_path: Path) -> None:
    events = [e for e in new_events() if e.get("cat") != "user_annotation"]
    profile = read_kineto(write_new(tmp_path / "x.json", events))
    assert profile.kernels["type"][3] == "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    compiled = [
        event("cpu_op", "triton_poi_fused_0", 10, 90),
        gpu("kernel", "triton_poi", 50, 9, 1),
    ]
    compiled.append(event("cuda_driver", "cuLaunchKernel", 20, 5, correlation=1))
    profile = read_kineto(write_new(tmp_path / "y.json", compiled))
    assert profile.kernels["type"].tolist() == ["triton_poi"]
    assert profile.host_ops["name"][profile.kernels["host_op"][0]] == "triton_poi_fused_0"


def test_collectives_are_communication(new: Profile) -> None:
    assert new.kernels["communication"].tolist() == [False, False, False, True, False]
    assert new.kernels["name"][3] == ALL_REDUCE


@pytest.mark.parametrize(
    ("name", "is_collective"),
    [
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(int)", True),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(int)", True),
        ("void deep_ep::internode::cached_notify<false>(int, int)", True),
        ("void deep_ep::internode_ll::combine<true, 7168>(void*)", True),
        ("void sort_dispatch<internode::Layout>(int)", False),
        ("void at::native::reduce_kernel<512, 1>(at::native::all_reduce_of<float>)", False),
        ("triton_poi_fused_all_reduce_wait_tensor_0", False),
    ],
)
def test_ranks_exchange_without_a_library_as_well(
    tmp_path: Path, name: str, *, is_collective: bool
) -> None:
    profile = read_kineto(write_new(tmp_path / "x.json", [gpu("kernel", name, 50, 9, 1)]))
    assert profile.kernels["communication"].tolist() == [is_collective]


@pytest.mark.parametrize(("launched", "kept"), [(22.0, 2), (490_000.0, 3)])
def test_what_ran_before_the_recording_is_no_part_of_it(
    tmp_path: Path, launched: float, kept: int
) -> None:
    # A kernel that was launched 490 ms before it begins, while nothing that was recorded runs.
    moments = ((10.0, 20.0), (launched, 490_010.0), (490_020.0, 500_000.0))
    tasks = [gpu("kernel", f"k{n}", start, 9, n) for n, (_, start) in enumerate(moments)]
    launches = [
        event("cuda_runtime", "cudaLaunchKernel", moment, 5, correlation=n)
        for n, (moment, _) in enumerate(moments)
    ]
    profile = read_kineto(write_new(tmp_path / "x.json", [*tasks, *launches]))
    assert len(profile.kernels) == kept
    told = any("its first tasks (1) are left out" in p.what for p in profile.problems)
    assert told == (kept < len(tasks))


def test_times_are_exact_and_since_the_epoch(new: Profile) -> None:
    kernels = new.kernels
    assert kernels["start_ns"][0] == BASE + 200_125
    assert kernels["launch_ns"].tolist()[:2] == [BASE + 120_000, BASE + 165_000]
    assert kernels["launch_ns"][4] == -1
    assert kernels["wait_ns"].tolist() == [0, 10_000, 359_500, 0, 30_000]
    (added,) = new.host_ops[new.host_ops["name"] == "aten::add"].itertuples()
    assert added.start_ns == BASE + 110_250


def test_more_digits_than_a_float_holds_are_kept(tmp_path: Path) -> None:
    text = trace(new_events(), HEADER, {}).replace("200.125", "1712195495519689.047")
    profile = read_kineto(write_trace(tmp_path / "x.json", text))
    assert 1_712_195_495_519_689_047 in profile.kernels["start_ns"].tolist()


def test_shapes_are_those_of_the_tensors(new: Profile) -> None:
    assert new.kernels["input_shapes"].tolist() == ["4,128;128", "", "", "", ""]
    assert new.kernels["input_dtypes"].tolist() == ["FLOAT;FLOAT16", "", "", "", ""]
    (added,) = new.host_ops[new.host_ops["name"] == "aten::add"].itertuples()
    assert added.input_dims == "4,128;128;"
    assert added.input_types == "float;c10::Half;Scalar"


def test_python_functions_lead_to_functions_and_modules(new: Profile) -> None:
    assert frames(new, 0) == [("model.py", 10), ("train.py", 5)]
    assert new.kernels["basis"].tolist() == ["function", "function", "forward-function", "", ""]
    assert frames(new, 2) == frames(new, 0)
    assert new.modules[new.kernels["module"][0]] == "Linear_0"


def test_modules_of_torch_script(tmp_path: Path) -> None:
    hierarchy = "TOP(Net)::forward.SELF(Net)::run.layer1(__torch__.Block)::forward."
    events = [
        event("cpu_op", "aten::linear", 10, 50, Module_Hierarchy=hierarchy),
        event("cpu_op", "aten::addmm", 15, 30, Module_Hierarchy=""),
        event("cpu_op", "aten::relu", 70, 20),
    ]
    profile = read_kineto(write_new(tmp_path / "x.json", events))
    assert profile.modules == ("Net/layer1",)
    assert profile.kernels["module"].tolist() == [0, 0, -1]


def test_steps_last_as_long_as_on_the_host(new: Profile) -> None:
    assert new.kernels["step"].tolist()[:4] == [3, 3, 4, 4]
    # The last one was launched by nothing that was recorded, and ran while step 4 did.
    assert new.kernels["step"].isna().tolist() == [False] * 5
    steps = new.steps.set_index("step")
    # The copy from the host, 20 µs in the first step, computes nothing.
    assert steps["computing_ns"].tolist() == [10_375, 51_000]
    assert steps["communication_ns"].tolist() == [0, 30_000]
    assert steps["communication_exposed_ns"].tolist() == [0, 20_000]
    assert steps["overlapped_ns"].tolist() == [0, 10_000]
    whole = steps["computing_ns"] + steps["communication_exposed_ns"] + steps["free_ns"]
    # From mark to mark, whenever the device starts on the second step.
    assert whole.tolist() == [400_000, 300_000]


def test_a_step_known_on_the_device_alone(tmp_path: Path) -> None:
    events = [e for e in new_events() if not str(e.get("cat")).startswith("cuda")]
    events.append(event("gpu_user_annotation", "ProfilerStep#4", 590, 200, pid=0, tid=7))
    profile = read_kineto(write_new(tmp_path / "x.json", events))
    assert profile.kernels["launch_ns"].tolist() == [-1] * 5
    assert not profile.kernels["step"].isna().any()
    assert profile.kernels["type"][0] == "aten::add"  # by its External id


def test_the_machine_and_the_settings(new: Profile, old: Profile) -> None:
    environment = new.environment
    assert environment.chip == "NVIDIA A100-SXM4-40GB"
    assert (environment.rank, environment.world_size) == (3, 8)
    assert environment.with_stack is True
    assert environment.record_shapes is True
    assert old.environment.chip is None
    assert old.environment.rank is None
    assert old.environment.with_stack is True  # the events show it


@pytest.mark.parametrize("keys_first", [True, False])
def test_the_settings_may_stand_on_either_side(tmp_path: Path, keys_first: bool) -> None:  # noqa: FBT001
    sides = (HEADER | FOOTER, {}) if keys_first else ({}, HEADER | FOOTER)
    profile = read_kineto(write_trace(tmp_path / "x.json", trace(new_events(), *sides)))
    assert profile.environment.rank == 3
    assert profile.kernels["start_ns"][0] == BASE + 200_125


def test_the_spelling_of_torch_1_9(old: Profile) -> None:
    kernels = old.kernels
    assert kernels["type"].tolist() == ["aten::addmm", "aten::mm", "Memset"]
    assert kernels["core"].tolist() == ["GPU", "GPU", "Memset"]
    assert kernels["launch_ns"].tolist() == [150_000, 320_000, -1]
    assert kernels["step"].tolist()[:2] == [1, 1]
    assert kernels["input_shapes"][0] == "4,128;128"
    asked = old.host_ops["name"].iloc[kernels["host_op"][kernels["host_op"] >= 0]]
    assert not asked.str.startswith("ProfilerStep").any(), "an annotation launches nothing"
    marks = old.host_ops[old.host_ops["name"].str.startswith("ProfilerStep")]
    assert len(marks), "but says when a step began"
    assert old.host_ops["start_ns"].is_monotonic_increasing


def test_call_stacks_on_one_line_lead_to_lines(old: Profile) -> None:
    lines = [("/site-packages/torch/nn/modules/linear.py", 114), ("model.py", 12), ("train.py", 7)]
    assert frames(old, 0) == lines
    assert frames(old, 1) == lines
    assert old.kernels["basis"].tolist()[:2] == ["call-stack", "forward"]


def test_an_external_id_that_repeats_the_correlation_is_not_believed(tmp_path: Path) -> None:
    events = [
        event("cpu_op", "aten::add", 100, 50, External_id=7),
        event("cpu_op", "aten::mul", 160, 50, External_id=8),
        event("cuda_runtime", "cudaLaunchKernel", 162, 5, External_id=7, correlation=7),
        gpu("kernel", "k", 300, 5, 7, External_id=7),
    ]
    profile = read_kineto(write_new(tmp_path / "x.json", events))
    assert profile.kernels["type"].tolist() == ["aten::mul"]


def test_flows_number_the_operators_where_nothing_else_does(tmp_path: Path) -> None:
    events = new_events()
    for one in events:
        one.get("args", {}).pop("Sequence number", None)
    flow = {"cat": "fwdbwd", "name": "fwdbwd", "id": 1, "pid": 1}
    events.append({"ph": "s", **flow, "tid": 10, "ts": 110.25})
    events.append({"ph": "f", **flow, "tid": 11, "ts": 511.0, "bp": "e"})
    profile = read_kineto(write_new(tmp_path / "x.json", events))
    assert frames(profile, 2) == [("model.py", 10), ("train.py", 5)]


def test_an_accelerator_that_waits_does_not_work(tmp_path: Path) -> None:
    events = [
        event("mtia_runtime", "runFunction", 10, 5, correlation=1),
        event("cpu_op", "aten::mm", 5, 20),
        event("mtia_ccp_events", "fc-dtype_Float", 30, 40, pid=9, tid=4, correlation=1),
        event("mtia_ccp_events", "dma_request", 75, 3, pid=9, tid=4),
        event("mtia_ccp_events", "event_wait", 80, 900, pid=9, tid=4),
    ]
    profile = read_kineto(write_new(tmp_path / "x.json", events))
    assert profile.kernels["core"].tolist() == ["MTIA", "Memcpy"]
    assert profile.kernels["type"].tolist() == ["aten::mm", "dma_request"]
    assert profile.kernels["device"].tolist() == [9, 9]


def test_without_device_tasks_the_operators_are_the_kernels(tmp_path: Path) -> None:
    events = [
        event("user_annotation", "ProfilerStep#0", 0, 100),
        event("cpu_op", "aten::linear", 10, 50, Input_Dims=[[2, 3]], Input_type=["float"]),
        event("cpu_op", "aten::addmm", 15, 30),
        event("cpu_op", "aten::relu", 70, 20),
        event("cpu_op", "c10d::allreduce_", 20, 5, tid=11),
    ]
    profile = read_kineto(write_new(tmp_path / "x.json", events))
    kernels = profile.kernels
    assert kernels["type"].tolist() == [
        "aten::linear",
        "aten::addmm",
        "c10d::allreduce_",
        "aten::relu",
    ]
    assert kernels["duration_ns"].tolist() == [20_000, 30_000, 5_000, 20_000]
    assert set(kernels["core"]) == {"CPU"}
    assert kernels["input_shapes"][0] == "2,3"
    assert kernels["communication"].tolist() == [False, False, True, False]
    assert profile.steps["computing_ns"].tolist() == [70_000]
    assert profile.steps["free_ns"].tolist() == [30_000]
    assert any("no kernels of a device" in problem.what for problem in profile.problems)


def test_categories_hold_no_missing_value(new: Profile) -> None:
    kernels = complete_kernels(new.kernels)
    columns = ("name", "type", "core", "input_shapes", "output_shapes", "state", "bound", "basis")
    for column in columns:
        assert kernels[column].dtype == "category"
        assert not kernels[column].isna().any()
    times = ("start_ns", "duration_ns", "wait_ns", "launch_ns")
    assert {kernels[column].dtype for column in times} == {np.dtype("int64")}
    rows = ("host_op", "stack", "module")
    assert {kernels[column].dtype for column in rows} == {np.dtype("int32")}
    assert kernels["step"].dtype == "Int64"
    assert kernels["device"].dtype == "int32"
    assert kernels["bound_ratio"].dtype == "float32"


ASCEND: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "Ascend Hardware"}},
    {"ph": "X", "name": "aten::mul", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": "1.0", "dur": 1,
     "args": {"Sequence number": 1}},
]  # fmt: skip


def test_kineto_is_told_from_ascend_and_from_anything_else(tmp_path: Path) -> None:
    assert is_kineto(write_new(tmp_path / "new.json"))
    assert is_kineto(write_old(tmp_path / "old.json.gz"))
    assert not is_kineto(write_trace(tmp_path / "list.json", json.dumps(ASCEND)))
    assert not is_kineto(write_trace(tmp_path / "dict.json.gz", trace(ASCEND, {}, {})))
    browser = [{"ph": "X", "cat": "toplevel", "name": "x", "ts": 1, "dur": 1, "args": {}}]
    assert not is_kineto(write_trace(tmp_path / "browser.json", trace(browser, {}, {})))
    assert not is_kineto(write_trace(tmp_path / "setting.json", '{"schemaVersion": 1}'))
    assert not is_kineto(tmp_path / "missing.json")
    assert not is_kineto(tmp_path)


def test_a_large_file_is_not_read_to_tell_it(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.write(b'{"a": "')
        file.seek(1 << 40)  # a file with a hole: it takes no room
        file.write(b'"}')
    assert not is_kineto(path)


def unmarked(*calls: str, steps: int = 4) -> list[dict[str, object]]:
    """Return a kernel a step of 1 ms and, in each, annotations of 100 us one behind the other."""
    found: list[dict[str, object]] = []
    for step in range(steps):
        at = 1_000.0 * step
        found += [
            event("user_annotation", name, at + 200 * n, 100.0) for n, name in enumerate(calls)
        ]
        found.append(
            event("cuda_runtime", "cudaLaunchKernel", at + 700, 5.0, correlation=900 + step)
        )
        found.append(gpu("kernel", ADD, at + 800, 50.0, 900 + step))
    return found


LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@pytest.mark.parametrize(
    ("calls", "known"),
    [
        ((LOADER,), [0, 1, 2, 3]),
        ((LOADER, "Optimizer.step#AdamW.step"), [1, 2, 3, None]),
        ((LOADER, "Optimizer.step#G.step", "Optimizer.step#D.step"), [1, 2, 3, None]),
        (("forward",), [None] * 4),
    ],
    ids=["loader", "optimizer", "two optimizers", "nothing"],
)
def test_without_marks_the_calls_of_the_loop_say_what_a_step_is(
    tmp_path: Path, calls: tuple[str, ...], known: list[int | None]
) -> None:
    profile = read_kineto(write_new(tmp_path / "x.json", unmarked(*calls)))
    found = [None if step is pd.NA else int(step) for step in profile.kernels["step"]]
    assert found == known
    said = [problem.what for problem in profile.problems if "holds no steps" in problem.what]
    assert len(said) == 1
    assert ("told by the calls" in said[0]) == (known[0] is not None)
    if known[0] is not None:
        # What comes before the first kernel is in the step, from where the loop begins anew.
        whole = profile.steps[["computing_ns", "free_ns"]].sum(axis=1).tolist()
        assert whole[1] == 1_000_000


def test_two_calls_are_no_loop(tmp_path: Path) -> None:
    profile = read_kineto(write_new(tmp_path / "x.json", unmarked(LOADER, steps=2)))
    assert profile.kernels["step"].isna().all()


def test_long_calls_of_the_runtime_are_told_one_by_one(tmp_path: Path) -> None:
    slow = event("cuda_runtime", "cudaLaunchKernel", 130.0, 6_630.0, correlation=777)
    profile = read_kineto(write_new(tmp_path / "slow.pt.trace.json", [*new_events(), slow]))
    (row,) = profile.signals.long_calls.to_dict("records")
    assert (row["level"], row["name"], row["duration_ns"]) == (
        "runtime",
        "cudaLaunchKernel",
        6_630_000,
    )
