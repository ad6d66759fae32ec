from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npufix.profiling_parsers.discover import find_dumps
from npufix.profiling_parsers.reader import read_profile

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.profiling_parsers.profile import Profile


def totals(profile: Profile) -> dict[str, tuple[int, int]]:
    compute = profile.kernels[~profile.kernels["communication"]]
    by_type = compute.groupby("type", observed=True)["duration_ns"]
    return {str(name): (len(rows), int(rows.sum())) for name, rows in by_type}


def stated(profile: Profile) -> dict[str, tuple[int, int]]:
    by_type = profile.op_statistic.groupby("type", observed=True)[["count", "total_ns"]]
    return {str(name): tuple(rows.sum().tolist()) for name, rows in by_type}


@pytest.mark.parametrize(("dump", "types"), [("alexnet", 33), ("megatron", 35)])
def test_totals_per_type_are_those_of_the_dump(
    dump: str, types: int, request: pytest.FixtureRequest
) -> None:
    profile = read_profile(request.getfixturevalue(dump))
    mine, theirs = totals(profile), stated(profile)
    assert mine.keys() == theirs.keys()
    assert len(mine) == types
    for name, (count, total_ns) in mine.items():
        assert count == theirs[name][0]
        # The dump rounds each kernel to a nanosecond, and sums what it had before rounding.
        assert total_ns == pytest.approx(theirs[name][1], abs=count)


def test_alexnet_reads_without_a_problem(alexnet: Path) -> None:
    profile = read_profile(alexnet)
    assert profile.problems == ()
    assert len(profile.kernels) == 191
    assert len(profile.host_ops) == 860
    assert profile.kernels["communication"].sum() == 4
    assert profile.kernels["start_ns"].iloc[0] == 1736408883704643212
    assert profile.kernels["start_ns"].is_monotonic_increasing
    assert profile.host_ops["start_ns"].is_monotonic_increasing
    assert profile.environment.rank == 0
    assert profile.environment.with_stack is True
    assert profile.steps["computing_ns"].tolist() == [8_873_756]


def test_nine_tenths_of_alexnet_lead_to_a_line(alexnet: Path) -> None:
    profile = read_profile(alexnet)
    compute = profile.kernels[~profile.kernels["communication"]]
    share = (
        compute.groupby("basis", observed=True)["duration_ns"].sum() / compute["duration_ns"].sum()
    )
    assert share["call-stack"] + share["forward"] >= 0.90
    assert share["forward"] >= 0.37
    assert (compute["host_op"] >= 0).all()


def test_copies_between_host_and_device_of_alexnet_lead_to_their_operators(alexnet: Path) -> None:
    profile = read_profile(alexnet)
    copies = profile.signals.copies
    assert len(copies) == 14  # ten more stay on the device
    assert copies["duration_ns"].iloc[0] == 840_077
    asked = profile.host_ops[profile.host_ops["start_ns"] == copies["asked_ns"].iloc[0]]
    assert "acl_memcpy_host_to_device" in set(asked["name"])


def test_a_convolution_of_alexnet_leads_to_the_model(alexnet: Path) -> None:
    profile = read_profile(alexnet)
    is_convolution = profile.kernels["type"].isin(["Conv2D", "Conv2DBackpropFilter"])
    convolutions = profile.kernels[is_convolution]
    bases = convolutions["basis"].value_counts()
    assert bases[bases > 0].to_dict() == {"call-stack": 5, "forward": 5}
    for stack in convolutions["stack"]:
        lines = [(frame.path.rsplit("/", 1)[-1], frame.line) for frame in profile.stacks[stack]]
        assert ("main.py", 354) in lines  # output = model(images)
        assert lines[0][0] == "conv.py"
    names = profile.host_ops["name"].iloc[convolutions["host_op"]].unique().tolist()
    assert names == ["aten::_convolution", "aten::convolution_backward"]


def test_the_db_export_reads_without_a_problem(alexnet_db: Path) -> None:
    profile = read_profile(alexnet_db)
    assert profile.problems == ()
    assert len(profile.kernels) == 191


def test_the_language_model_reads_without_a_trace(megatron: Path) -> None:
    profile = read_profile(megatron)
    (trace,) = profile.problems
    assert trace.where == "trace_view.json"
    assert "with_stack=True" in trace.remedy
    assert profile.stacks == ()
    assert (profile.kernels[["host_op", "stack"]] == -1).all(axis=None)
    assert profile.kernels["input_shapes"].str.contains("151936,1024").sum() > 0
    assert profile.kernels["communication"].sum() == 15
    assert profile.environment.cann == "8.3.RC1"
    assert profile.environment.world_size == 4


def test_all_dumps_below_a_folder_are_found(alexnet: Path, megatron: Path) -> None:
    found = find_dumps(alexnet.parents[2])
    assert {alexnet, megatron} <= {each.path for each in found}
