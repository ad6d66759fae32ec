"""What a dump lacks is named, and the code to record it is real."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from npufix.advisor.evidence.hygiene import missing_parts, snippet
from npufix.profiling_parsers.profile import CallSite, Environment, Profile
from npufix.profiling_parsers.signals import SCHEMAS, Signals

if TYPE_CHECKING:
    from collections.abc import Mapping

# What torch_npu.profiler of 2.13 exports, as its own __init__ and experimental_config say.
NPU_NAMES = {
    "profile", "schedule", "tensorboard_trace_handler", "ProfilerActivity.CPU",
    "ProfilerActivity.NPU", "_ExperimentalConfig", "ProfilerLevel.Level1", "ProfilerLevel.Level2",
    "AiCMetrics.PipeUtilization", "ExportType.Db",
}  # fmt: skip
NPU_ARGUMENTS = {
    "profile": {"activities", "schedule", "on_trace_ready", "record_shapes", "profile_memory",
                "with_stack", "with_modules", "experimental_config"},
    "schedule": {"wait", "warmup", "active", "repeat", "skip_first"},
    "_ExperimentalConfig": {"profiler_level", "aic_metrics", "l2_cache", "gc_detect_threshold",
                            "export_type"},
    "tensorboard_trace_handler": set(),
}  # fmt: skip


def table(name: str) -> pd.DataFrame:
    """Return a table of ``Signals`` with one row."""
    values = {"category": "x", "int64": 1, "float64": 1.0}
    row = {column: values[kind] for column, kind in SCHEMAS[name].items()}
    return pd.DataFrame([row]).astype(dict(SCHEMAS[name]))


def kernel(**columns: Any) -> dict[str, Any]:
    return {"step": 1, "input_shapes": "8", "bound": "vector", "communication": False,
            "launch_ns": 5, "basis": "call-stack", **columns}  # fmt: skip


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows).astype({"step": "Int64"})


COMPLETE = Profile(
    root=Path("dump"),
    environment=Environment(profiler_level="Level1"),
    kernels=frame([kernel(), kernel(communication=True, input_shapes="", bound="")]),
    host_ops=pd.DataFrame([{"input_dims": "8;"}]),
    steps=pd.DataFrame([{"computing_ns": 10, "communication_exposed_ns": 0, "free_ns": 5}]),
    op_statistic=pd.DataFrame(),
    stacks=((CallSite("a.py", 1, "f"),),),
    modules=("Net_0",),
    signals=Signals(apis=table("apis"), gc=table("gc"), memory=table("memory"),
                    collectives=table("collectives")),
)  # fmt: skip

LACKING: Mapping[str, Profile] = {
    "host operators": replace(COMPLETE, host_ops=pd.DataFrame({"input_dims": []})),
    "call stacks": replace(COMPLETE, kernels=frame([kernel(basis="function")])),
    "modules": replace(COMPLETE, modules=()),
    "shapes of operators": replace(COMPLETE, host_ops=pd.DataFrame([{"input_dims": ""}])),
    "shapes of kernels": replace(COMPLETE, kernels=frame([kernel(input_shapes="")])),
    "steps": replace(COMPLETE, kernels=frame([kernel(step=None)])),
    "launches": replace(COMPLETE, kernels=frame([kernel(launch_ns=-1)])),
    "calls into CANN": replace(COMPLETE, signals=replace(COMPLETE.signals, apis=Signals().apis)),
    "AI core counters": replace(COMPLETE, kernels=frame([kernel(bound="")])),
    "collectives": replace(
        COMPLETE, signals=replace(COMPLETE.signals, collectives=Signals().collectives)
    ),
    "device memory": replace(COMPLETE, signals=replace(COMPLETE.signals, memory=Signals().memory)),
    "garbage collector": replace(COMPLETE, signals=replace(COMPLETE.signals, gc=Signals().gc)),
}


def names_of(text: str, root: str) -> set[str]:
    """Return the dotted names below a module that code uses."""
    dotted = {
        ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)
    }
    below = {name.removeprefix(f"{root}.") for name in dotted if name.startswith(f"{root}.")}
    return {name for name in below if not any(other.startswith(f"{name}.") for other in below)}


def calls_of(text: str) -> dict[str, set[str]]:
    """Return the keywords of each call, by the last part of what is called."""
    return {
        ast.unparse(node.func).rsplit(".", 1)[-1]: {str(k.arg) for k in node.keywords}
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
    }


def test_nothing_is_missing_in_a_complete_dump() -> None:
    assert missing_parts(COMPLETE) == []
    assert snippet(COMPLETE) == ""


@pytest.mark.parametrize("part", LACKING)
def test_one_missing_part_is_named(part: str) -> None:
    ((name, unknown),) = missing_parts(LACKING[part])
    assert name == part
    assert unknown


@pytest.mark.parametrize("part", LACKING)
def test_the_snippet_names_only_what_torch_npu_has(part: str) -> None:
    text = snippet(LACKING[part])
    compile(text, "snippet", "exec")
    assert names_of(text, "torch_npu.profiler") <= NPU_NAMES
    calls = calls_of(text)
    for name, allowed in NPU_ARGUMENTS.items():
        assert calls[name] <= allowed
    assert {"record_shapes", "with_stack", "with_modules"} <= calls["profile"]
    assert {"profiler_level", "aic_metrics"} <= calls["_ExperimentalConfig"]


def test_what_the_dump_had_is_kept() -> None:
    had = Signals(memory=table("memory"), l2_cache=table("l2_cache"), gc=table("gc"))
    environment = Environment(profiler_level="Level2")
    calls = calls_of(snippet(replace(COMPLETE, signals=had)))
    assert "profile_memory" in calls["profile"]
    assert {"l2_cache", "gc_detect_threshold"} <= calls["_ExperimentalConfig"]
    text = snippet(replace(COMPLETE, modules=(), environment=environment, format="ascend-db"))
    assert "ProfilerLevel.Level2" in text
    assert "ExportType.Db" in text
    assert "l2_cache" not in text


@pytest.mark.parametrize("level", ["Level0", "Level_none", None])
def test_low_levels_are_raised(level: str | None) -> None:
    environment = Environment(profiler_level=level)
    assert "ProfilerLevel.Level1" in snippet(replace(COMPLETE, modules=(), environment=environment))


def test_short_idle_time_needs_no_further_cause() -> None:
    steps = pd.DataFrame([{"computing_ns": 90, "communication_exposed_ns": 0, "free_ns": 10}])
    assert missing_parts(replace(LACKING["garbage collector"], steps=steps)) == []


def test_kineto_needs_nothing_of_cann() -> None:
    bare = replace(COMPLETE, format="kineto", signals=Signals())
    assert missing_parts(bare) == []
    text = snippet(replace(bare, stacks=()))
    compile(text, "snippet", "exec")
    torch = pytest.importorskip("torch")
    for name in names_of(text, "torch.profiler"):
        owner: Any = torch.profiler
        for part in name.split("."):
            owner = getattr(owner, part)
    calls = calls_of(text)
    for name in ("profile", "schedule"):
        assert calls[name] <= set(inspect.signature(getattr(torch.profiler, name)).parameters)
