from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_dump import (
    KERNELS,
    STACK,
    START,
    STEP_TRACE_TIME,
    host_op,
    launch,
    microseconds,
    python_call,
    small_trace,
    without_stacks,
    write_dump,
)

from npufix.profiling_parsers.profile import CallSite, DumpError, Problem, Profile
from npufix.profiling_parsers.reader import read_profile

if TYPE_CHECKING:
    from pathlib import Path

FORWARD_LINE = CallSite("/home/me/model.py", 12, "forward")


def read(root: Path, **files: str | None) -> Profile:
    return read_profile(write_dump(root / "host_1_ascend_pt", **files))


def read_events(root: Path, events: list[dict[str, Any]]) -> Profile:
    return read(root, trace_view=json.dumps(events))


def problem(profile: Profile) -> Problem:
    (only,) = profile.problems
    assert "\n" not in only.what
    return only


def test_a_whole_dump_has_no_problem(dump: Path) -> None:
    assert read_profile(dump).problems == ()


def test_a_kernel_leads_to_its_operator_and_line(dump: Path) -> None:
    profile = read_profile(dump)
    forward = profile.kernels.iloc[0]
    assert forward["basis"] == "call-stack"
    assert profile.stacks[forward["stack"]][0] == FORWARD_LINE
    operator = profile.host_ops.iloc[forward["host_op"]]
    assert operator["name"] == "aten::mul"  # around the launch, which has no shapes
    assert operator["input_dims"] == "4,128;128;"


def test_a_backward_kernel_leads_to_its_forward_line(dump: Path) -> None:
    profile = read_profile(dump)
    backward = profile.kernels.iloc[1]
    assert backward["basis"] == "forward"
    assert profile.stacks[backward["stack"]][0] == FORWARD_LINE
    assert profile.host_ops["start_ns"].iloc[backward["host_op"]] == START + 102_000


def test_a_kernel_without_a_flow_leads_nowhere(dump: Path) -> None:
    collective = read_profile(dump).kernels.iloc[2]
    assert collective[["host_op", "stack", "basis"]].tolist() == [-1, -1, ""]


def test_a_stack_of_the_operator_around_counts(tmp_path: Path) -> None:
    events = small_trace()
    del events[2]["args"]["Call stack"]
    profile = read_events(tmp_path, events)
    assert profile.kernels["basis"].iloc[0] == "call-stack"
    assert profile.host_ops["stack"].iloc[profile.kernels["host_op"].iloc[0]] >= 0


def test_an_operator_that_ended_before_is_not_around(tmp_path: Path) -> None:
    events = small_trace()
    events[1]["dur"] = 0.5
    del events[2]["args"]["Call stack"]
    profile = read_events(tmp_path, events)
    assert profile.kernels["basis"].iloc[0] == ""
    assert profile.host_ops["name"].iloc[profile.kernels["host_op"].iloc[0]] == "aclnnMul"


def test_an_operator_that_ended_is_not_around_where_operators_overlap(tmp_path: Path) -> None:
    events = [
        host_op("aten::mul", 10, 1_000, 10, Call_stack=STACK),
        host_op("aten::div", 10, 6_000, 10),
        host_op("aclnnMul", 10, 13_000, 1),
        *launch("aclnnMul_Mul", 60_000, 10, 13_000),
    ]
    assert read_events(tmp_path, events).kernels["basis"].iloc[0] == ""


def test_an_operator_of_another_thread_is_not_around(tmp_path: Path) -> None:
    events = small_trace()
    events[1]["tid"] = 12
    del events[2]["args"]["Call stack"]
    assert read_events(tmp_path, events).kernels["basis"].iloc[0] == ""


def test_the_last_forward_operator_of_a_number_made_the_node(tmp_path: Path) -> None:
    other = "/home/me/model.py(11): forward"
    earlier = host_op("aten::zeros", 10, 500, 0.1, Sequence_number=7, Call_stack=other)
    later = host_op("aten::ones", 10, 900_000, 1, Sequence_number=7, Call_stack=other)
    profile = read_events(tmp_path, [earlier, later, *small_trace()])
    assert profile.stacks[profile.kernels["stack"].iloc[1]][0] == FORWARD_LINE


def test_same_start_on_two_streams_is_told_apart_by_name(tmp_path: Path) -> None:
    start = microseconds(START + 60_000)
    table = KERNELS.format(start, start, microseconds(START + 300_000))
    other = "/home/me/other.py(3): f"
    events = [
        host_op("aten::mul", 10, 1_000, 5, Call_stack=STACK),
        host_op("aten::div", 10, 9_000, 5, Call_stack=other),
        *launch("aclnnMul_Mul", 60_000, 10, 1_000),
        *launch("aclnnMulGrad_Mul", 60_000, 10, 9_000),
    ]
    for event in events[-3:]:
        event["id"] = 5
        if event["pid"] != 1:
            event["tid"] = 3
    profile = read(tmp_path, kernel_details=table, trace_view=json.dumps(events))
    paths = [profile.stacks[stack][0].path for stack in profile.kernels["stack"][:2]]
    assert paths == ["/home/me/model.py", "/home/me/other.py"]


def test_a_trace_of_another_run_is_a_problem(tmp_path: Path) -> None:
    text = json.dumps(small_trace()).replace("17364088", "17364099")
    profile = read(tmp_path, trace_view=text)
    assert "another run" in problem(profile).what
    assert (profile.kernels["stack"] == -1).all()


def test_without_stacks_the_remedy_is_the_profiler_call(tmp_path: Path) -> None:
    profile = read_events(tmp_path, without_stacks(small_trace()))
    assert "no call stacks" in problem(profile).what
    call = "torch_npu.profiler.profile(..., with_stack=True, record_shapes=True)"
    assert call in problem(profile).remedy
    assert (profile.kernels["host_op"][:2] >= 0).all()


def test_without_stacks_the_functions_around_are_one_and_the_remedy_stays(tmp_path: Path) -> None:
    events = [*without_stacks(small_trace()), python_call("model.py(3): forward", 10, 0, 60)]
    profile = read_events(tmp_path, events)
    assert "functions" in problem(profile).what
    assert "with_stack=True" in problem(profile).remedy
    assert profile.kernels["basis"].tolist() == ["function", "forward-function", ""]


def test_without_host_activity(tmp_path: Path) -> None:
    profile = read_events(tmp_path, [small_trace()[0]])
    assert all("ProfilerActivity.CPU" in each.remedy for each in profile.problems)
    assert [each.what[:20] for each in profile.problems] == [
        "holds no host operat",
        "holds no flows from ",
    ]


@pytest.mark.parametrize(
    ("info", "database", "remedy"),
    [
        ("{}", False, "analyse("),
        ("{}", True, 'export_type=["text"]'),
        ('{"config": {"common_config": {"with_stack": false}}}', False, "with_stack=True"),
    ],
)
def test_without_a_trace(tmp_path: Path, info: str, database: bool, remedy: str) -> None:  # noqa: FBT001
    root = write_dump(tmp_path / "host_1_ascend_pt", trace_view=None)
    (root / "profiler_info.json").write_text(info)
    if database:
        (root / "ASCEND_PROFILER_OUTPUT" / "ascend_pytorch_profiler.db").touch()
    profile = read_profile(root)
    (trace,) = [each for each in profile.problems if each.where == "trace_view.json"]
    assert remedy in trace.remedy
    assert profile.host_ops.empty
    assert profile.stacks == ()
    whole = read(tmp_path / "whole")
    assert (
        profile.host_ops.dtypes.astype(str).tolist() == whole.host_ops.dtypes.astype(str).tolist()
    )
    assert profile.kernels.dtypes.astype(str).tolist() == whole.kernels.dtypes.astype(str).tolist()


@given(st.integers(0, len(json.dumps(small_trace())) - 1))
@settings(max_examples=40)
def test_a_trace_cut_at_any_byte(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    text = json.dumps(small_trace())
    profile = read(tmp_path_factory.mktemp("cut"), trace_view=text[:cut])
    assert "breaks off" in profile.problems[0].what
    first_flow_ends = text.index('"id"', text.index('"ph": "f"')) + 200
    if cut > first_flow_ends:
        assert profile.kernels["basis"].iloc[0] == "call-stack"


@pytest.mark.parametrize("content", [None, "<html>404</html>", "", STEP_TRACE_TIME[:87]])
def test_without_step_times_the_split_is_that_of_the_kernels(
    tmp_path: Path, content: str | None
) -> None:
    profile = read(tmp_path, step_trace_time=content)
    (split,) = [each for each in profile.problems if "computed from its kernels" in each.what]
    assert split.where == "step_trace_time.csv"
    assert split.damaged == (content is not None)
    assert profile.steps["computing_ns"].tolist() == [30_750]
    assert profile.steps["communication_exposed_ns"].tolist() == [100_000]
    whole = read(tmp_path / "whole")
    assert profile.steps.dtypes.tolist() == whole.steps.dtypes.tolist()


def test_step_times(dump: Path) -> None:
    (step,) = read_profile(dump).steps.to_dict("records")
    assert step == {
        "step": 50,
        "device": -1,
        "computing_ns": 30_750,
        "communication_exposed_ns": 100_000,
        "overlapped_ns": 0,
        "communication_ns": 100_000,
        "free_ns": 5_000,
        "bubble_ns": 0,
        "preparing_ns": 0,
    }


def test_totals_that_disagree_are_a_problem(tmp_path: Path) -> None:
    statistic = "OP Type,Core Type,Count,Total Time(us)\nMul,AI_VECTOR_CORE,3,41.25\n"
    profile = read(tmp_path, op_statistic=statistic)
    assert "Mul: 2 kernels, 30.750 µs against 3, 41.250 µs" in problem(profile).what


def test_a_dump_without_totals_is_no_problem(tmp_path: Path) -> None:
    profile = read(tmp_path, op_statistic=None)
    assert profile.problems == ()
    assert profile.op_statistic.empty


@pytest.mark.parametrize("file", ["op_statistic", "step_trace_time"])
def test_an_optional_file_that_is_none_is_a_problem(tmp_path: Path, file: str) -> None:
    profile = read(tmp_path, **{file: "<html>404</html>"})
    assert problem(profile).where == f"{file}.csv"
    assert problem(profile).damaged
    assert "no column" in problem(profile).what


def test_malformed_rows_are_counted_in_a_problem(tmp_path: Path) -> None:
    times = [microseconds(START + offset) for offset in (60_000, 170_000, 300_000)]
    profile = read(
        tmp_path, kernel_details=KERNELS.format(*times) + "50,aclnnMul", op_statistic=None
    )
    assert problem(profile).what == "1 of 4 rows are malformed and left out"
    assert "analyse(" in problem(profile).remedy


def test_without_kernels_of_any_kind_there_is_nothing_to_say(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"no kernel_details\.csv"):
        read(tmp_path, kernel_details=None, trace_view=None)


def test_the_environment(dump: Path) -> None:
    info = {
        "config": {
            "common_config": {"with_stack": True, "record_shapes": False},
            "experimental_config": {"_profiler_level": "Level1"},
        },
        "torch_npu_version": "2.7.1",
        "cann_version": "8.3.RC1",
        "rank_id": "3",
    }
    metadata = {
        "distributed_args": {"world_size": 4},
        "ENV_VARIABLES": {"ASCEND_LAUNCH_BLOCKING": "1"},
        "source_sha256": {"/home/me/model.py": "ab"},
        "simulated": "from a GPU",
    }
    (dump / "profiler_info_3.json").write_text(json.dumps(info))
    (dump / "profiler_metadata.json").write_text(json.dumps(metadata))
    environment = read_profile(dump).environment
    assert (environment.rank, environment.world_size) == (3, 4)
    assert (environment.torch_npu, environment.cann) == ("2.7.1", "8.3.RC1")
    assert environment.profiler_level == "Level1"
    assert (environment.with_stack, environment.record_shapes) == (True, False)
    assert environment.variables == {"ASCEND_LAUNCH_BLOCKING": "1"}
    assert environment.source_sha256 == {"/home/me/model.py": "ab"}
    assert environment.simulated == "from a GPU"


@pytest.mark.parametrize(
    ("name", "recorded", "rank"),
    [("_5", None, 5), ("", -1, None), ("", 0, 0), ("_5", "x", 5), ("", True, None)],
)
def test_the_rank(dump: Path, name: str, recorded: object, rank: int | None) -> None:
    (dump / f"profiler_info{name}.json").write_text(json.dumps({"rank_id": recorded}))
    assert read_profile(dump).environment.rank == rank


@pytest.mark.parametrize("content", ["", "{", "\xff"])
def test_broken_settings_are_a_problem(dump: Path, content: str) -> None:
    (dump / "profiler_info.json").write_text(content, encoding="latin1")
    assert problem(read_profile(dump)).where == "profiler_info.json"


@pytest.mark.parametrize("content", ["[]", "3", '{"config": 3, "rank_id": []}', "null"])
def test_settings_of_another_shape_say_nothing(dump: Path, content: str) -> None:
    (dump / "profiler_info.json").write_text(content)
    (dump / "profiler_metadata.json").write_text(content)
    profile = read_profile(dump)
    assert profile.problems == ()
    assert profile.environment.rank is None


def test_the_types_are_importable_without_pandas() -> None:
    script = (
        "import sys; import npufix.profiling_parsers.profile;"
        "sys.exit(any(name in sys.modules for name in ('pandas', 'pyarrow', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_dump_of_mindspore_is_read_with_its_own_names(tmp_path: Path) -> None:
    """Another header, kernels behind their operators, and those without a category."""
    starts = [microseconds(START + offset) for offset in (60_000, 170_000, 300_000)]
    kernels = KERNELS.format(*starts).replace("Step Id", "Step ID")
    kernels = kernels.replace("50,aclnn", "50,Default/network-Net/Mul-op1/aclnn")
    events = [
        event | {"cat": ""} if event.get("cat") == "cpu_op" else event for event in small_trace()
    ]
    files = {"kernel_details": kernels, "trace_view": json.dumps(events)}
    profile = read_profile(write_dump(tmp_path / "host_1_ascend_ms", **files))
    assert list(profile.kernels["name"]) == ["aclnnMul_Mul", "aclnnMulGrad_Mul", "hcom_allReduce_1"]
    assert list(profile.kernels["step"]) == [50, 50, 50]
    assert list(profile.kernels["basis"])[:2] == ["call-stack", "forward"]
    assert "recorded by MindSpore" in profile.problems[0].what


def test_mindspore_calls_a_recording_without_steps_step_0(tmp_path: Path) -> None:
    starts = [microseconds(START + offset) for offset in (60_000, 170_000, 300_000)]
    kernels = KERNELS.format(*starts).replace("Step Id,", "").replace("\n50,", "\n")
    columns = "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free"
    dump = write_dump(tmp_path / "host_1_ascend_ms", kernel_details=kernels)
    file = dump / "ASCEND_PROFILER_OUTPUT" / "step_trace_time.csv"
    file.write_text(f"{columns}\n0,0.5,0,0,0,9\n")
    profile = read_profile(dump)
    assert not any("no kernel is of a step" in each.what for each in profile.problems)
    assert profile.steps["step"].isna().all()


def test_what_a_dump_of_mindspore_lacks_is_said_in_its_words(tmp_path: Path) -> None:
    files = {"trace_view": json.dumps(without_stacks(small_trace()))}
    profile = read_profile(write_dump(tmp_path / "host_1_ascend_ms", **files))
    assert "mindspore.profiler.profile(" in profile.problems[-1].remedy
    assert not any("torch_npu" in problem.remedy for problem in profile.problems)
