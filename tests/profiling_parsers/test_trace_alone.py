"""A trace without the files that list its kernels."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_dump import START, host_op, launch, microseconds, small_trace, write_dump

from npufix.profiling_parsers.profile import DumpError
from npufix.profiling_parsers.reader import read_profile
from npufix.profiling_parsers.schema import complete_kernels
from npufix.profiling_parsers.text.trace_alone import read_trace_alone
from npufix.profiling_parsers.text.trace_kernels import kernel_type

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.profiling_parsers.profile import Profile

HARDWARE, COLLECTIVES, CANN, OVERLAP = 3170820512, 3170820576, 3170820001, 3170820700


def event(name: str, pid: int, tid: int, start: int, duration_us: float, **args: object) -> Any:
    place = {"pid": pid, "tid": tid, "ts": microseconds(START + start), "dur": duration_us}
    return {"ph": "X", "name": name, **place, "args": args}


def named(kind: str, pid: int, tid: int, name: str, key: str = "name") -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {key: name}}


def whole_trace(collectives: str = "HCCL", task: str = "AI_CORE") -> list[dict[str, Any]]:
    """Return the small trace with all that a real one has beside its kernels."""
    no_kernels = [
        ("EVENT_WAIT", "EVENT_WAIT_SQE"),
        ("MEMCPY_ASYNC", "SDMA_SQE"),
        ("MEMCPY_ASYNC", "Other"),
        ("Notify Wait", "Notify Wait"),
        ("PROFILING_ENABLE", "PLACE_HOLDER_SQE"),
    ]
    return [
        named("process_name", HARDWARE, 0, "Ascend Hardware"),
        named("process_labels", HARDWARE, 0, "NPU 5", "labels"),
        named("process_name", COLLECTIVES, 0, collectives),
        named("process_labels", COLLECTIVES, 0, "NPU 5", "labels"),
        named("thread_name", COLLECTIVES, 0, "Group 0 Communication"),
        named("thread_name", COLLECTIVES, 1, "Plane 0"),
        named("thread_name", COLLECTIVES, 9, "Group 0 Aicpu Communication"),
        host_op("ProfilerStep#7", 10, 500, 200),
        *small_trace(),
        event("Conv2D4", HARDWARE, 2, 80_000, 3.5, **{"Task Type": task}),
        *(event(name, HARDWARE, 2, 1, 9e6, **{"Task Type": kind}) for name, kind in no_kernels),
        event("hcom_allReduce__868_0_1", COLLECTIVES, 0, 300_000, 100, alg_type="RING"),
        event("Reduce_Inline", COLLECTIVES, 1, 300_000, 90, **{"task type": "Reduce_Inline"}),
        event("AllReduceAicpu", COLLECTIVES, 9, 300_000, 100, connection_id=3),
        event("launch", CANN, 12, 50_000, 5, Mode="launch", level="node"),
        {"ph": "X", "name": "Computing", "pid": OVERLAP, "tid": 0, "dur": 9, "ts": "1.000"},
    ]


def read(folder: Path, events: list[dict[str, Any]]) -> Profile:
    path = folder / "trace_view.json"
    path.write_text(json.dumps(events))
    return read_trace_alone(path)


def test_the_kernels_of_a_trace(tmp_path: Path) -> None:
    profile = read(tmp_path, whole_trace())
    kernels = profile.kernels
    assert kernels["name"].tolist() == [
        "aclnnMul_Mul",
        "Conv2D4",
        "aclnnMulGrad_Mul",
        "hcom_allReduce__868_0_1",
    ]
    assert kernels["type"].tolist() == ["Mul", "Conv2D", "Mul", "hcom_allReduce_"]
    assert kernels["core"].tolist() == ["", "AI_CORE", "", "HCCL"]
    assert kernels["communication"].tolist() == [False, False, False, True]
    assert kernels["duration_ns"].tolist() == [1_000, 3_500, 1_000, 100_000]
    assert kernels["step"].tolist()[:3] == [7, 7, 7]
    assert kernels["step"].isna().tolist() == [False, False, False, True]
    assert kernels["basis"].tolist() == ["call-stack", "", "forward", ""]
    assert set(kernels["device"]) == {5}
    assert profile.format == "trace"
    assert profile.steps["computing_ns"].tolist() == [5_500]
    assert "kernels are taken from the trace" in profile.problems[-1].what
    assert not any(problem.damaged for problem in profile.problems)


def test_the_columns_are_those_of_a_dump(tmp_path: Path) -> None:
    alone = read(tmp_path, whole_trace())
    dump = read_profile(write_dump(tmp_path / "dump_ascend_pt"))
    alone = replace(alone, kernels=complete_kernels(alone.kernels))
    for name in ("kernels", "host_ops", "steps", "op_statistic"):
        mine, theirs = (getattr(each, name).dtypes.astype(str) for each in (alone, dump))
        assert mine.to_dict() == theirs.to_dict()


@pytest.mark.parametrize(
    ("process", "task", "cores"),
    [
        # A version that tells vector cores from cube cores, and two that do not.
        ("Communication", "KERNEL_AIVEC", ["AI_CORE", "AI_VECTOR_CORE", "AI_CORE"]),
        ("HCCL", "Other", ["", "", ""]),
        ("HCCL", "AI_CPU", ["", "AI_CPU", ""]),
    ],
)
def test_cores_are_named_where_they_are_certain(
    tmp_path: Path, process: str, task: str, cores: list[str]
) -> None:
    profile = read(tmp_path, whole_trace(process, task))
    collective = {"HCCL": "HCCL", "Communication": "COMMUNICATION"}[process]
    assert profile.kernels["core"].tolist() == [*cores, collective]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aclnnMm_MatMulCommon_MatMulV2", "MatMulV2"),
        (
            "InnerPromptFlashAttention_PromptFlashAttention_PromptFlashAttention",
            "PromptFlashAttention",
        ),
        ("aclnnMul_Mul", "Mul"),
        ("aclnnInplaceRelu_Relu_Relu", "Relu"),
        ("trans_TransData_26", "TransData"),
        ("trans_TransData_3_MemSet", "MemSet"),
        ("Conv2D4", "Conv2D"),
        ("Conv2DBackpropFilter10", "Conv2DBackpropFilter"),
        ("Conv2DBackpropFilter6_MemSet", "MemSet"),
        ("MaxPoolGradWithArgmaxV14", "MaxPoolGradWithArgmaxV1"),
        ("MatMulV2", "MatMulV2"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("", ""),
    ],
)
def test_the_type_that_a_name_says(name: str, expected: str) -> None:
    assert kernel_type(name) == expected


def test_a_dump_without_kernel_details_is_read_from_its_trace(tmp_path: Path) -> None:
    root = write_dump(
        tmp_path / "a_ascend_pt", kernel_details=None, trace_view=json.dumps(whole_trace())
    )
    profile = read_profile(root)
    first = profile.problems[0]
    assert (first.where, first.damaged) == ("kernel_details.csv", False)
    assert "missing; the kernels are taken from the trace: without shapes" in first.what
    assert profile.kernels["basis"].tolist() == ["call-stack", "", "forward", ""]
    # op_statistic.csv lists two kernels of another duration, and no convolution.
    assert any("disagree with the totals" in problem.what for problem in profile.problems)


@pytest.mark.parametrize("broken", ["", "<html>404</html>", "Name,Type\na,b\n"])
def test_broken_kernel_details_are_told_and_the_trace_is_read(tmp_path: Path, broken: str) -> None:
    root = write_dump(
        tmp_path / "a_ascend_pt", kernel_details=broken, trace_view=json.dumps(whole_trace())
    )
    profile = read_profile(root)
    assert (profile.problems[0].where, profile.problems[0].damaged) == ("kernel_details.csv", True)
    assert len(profile.kernels) == 4


@pytest.mark.parametrize("events", [[], [host_op("aten::mul", 1, 0, 5)]])
def test_a_trace_without_kernels_says_nothing(tmp_path: Path, events: list[Any]) -> None:
    with pytest.raises(DumpError, match="no kernels") as raised:
        read(tmp_path, events)
    assert "ProfilerActivity.NPU" in raised.value.remedy


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="missing"):
        read_trace_alone(tmp_path / "trace_view.json")


def test_two_steps_meet_where_the_kernels_of_the_second_begin(tmp_path: Path) -> None:
    kernels = [("aclnnA_A", 1_000, 90_000), ("aclnnB_B", 60_000, 100_000)]
    events = [
        host_op("ProfilerStep#1", 10, 0, 50),
        host_op("ProfilerStep#2", 10, 50_001, 40),
        *(host_op("aten::mul", 10, start, 5) for _, start, _ in kernels),
        *(each for name, start, at in kernels for each in launch(name, at, 10, start)),
        event("aclnnC_C", 3170820512, 2, 95_000, 1, **{"Task Type": "AI_CORE"}),
    ]
    profile = read(tmp_path, events)
    assert profile.kernels["step"].isna().tolist() == [False, True, False]
    assert profile.kernels["step"].dropna().tolist() == [1, 2]


@given(st.data())
@settings(max_examples=40)
def test_a_trace_cut_or_damaged_anywhere(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = json.dumps(whole_trace()).encode()
    packed = data.draw(st.booleans())
    text = gzip.compress(text) if packed else text
    place = data.draw(st.integers(0, len(text)))
    damage = data.draw(st.binary(max_size=30))
    keep = data.draw(st.booleans())
    path = tmp_path_factory.mktemp("cut") / "trace_view.json"
    path.write_bytes(text[:place] + damage + (text[place + len(damage) :] if keep else b""))
    try:
        profile = read_trace_alone(path)
    except DumpError as error:
        assert error.remedy  # noqa: PT017 - one of two outcomes
        return
    assert len(profile.kernels) >= 1
    if not (keep or packed) and place < len(text) and not damage.strip():
        assert any(problem.damaged for problem in profile.problems)


def test_the_kernels_of_a_real_trace_are_those_of_its_kernel_details(alexnet: Path) -> None:
    details = read_profile(alexnet)
    trace = read_trace_alone(alexnet / "ASCEND_PROFILER_OUTPUT" / "trace_view.json")
    assert trace.kernels["name"].tolist() == details.kernels["name"].tolist()
    assert trace.kernels["type"].tolist() == details.kernels["type"].tolist()
    apart = trace.kernels["duration_ns"] - details.kernels["duration_ns"]
    assert apart.abs().max() <= 1
    for column in ("communication", "basis", "module", "launch_ns", "step", "stack"):
        assert trace.kernels[column].tolist() == details.kernels[column].tolist()
    cores = trace.kernels["core"].astype(str)
    known = cores != ""
    assert cores[known].tolist() == details.kernels["core"].astype(str)[known].tolist()
    assert trace.kernels["device"].unique().tolist() == [0]
    assert trace.signals.frequency["mhz"].tolist() == [1800.0, 1800.0]


def test_real_launches_come_before_their_kernels(alexnet: Path) -> None:
    kernels = read_profile(alexnet).kernels
    assert (kernels["launch_ns"] >= 0).all()
    assert (kernels["start_ns"] - kernels["launch_ns"]).min() > -100_000  # two clocks


def test_modules_of_a_real_dump(alexnet: Path) -> None:
    profile = read_profile(alexnet)
    convolutions = profile.kernels[profile.kernels["type"] == "Conv2D"]
    paths = [profile.modules[module] for module in convolutions["module"]]
    assert paths == [
        f"DistributedDataParallel_0/AlexNet_0/Sequential_0/Conv2d_{number}" for number in range(5)
    ]
    backward = profile.kernels[profile.kernels["type"] == "Conv2DBackpropFilter"]
    assert sorted(profile.modules[module] for module in backward["module"]) == paths
