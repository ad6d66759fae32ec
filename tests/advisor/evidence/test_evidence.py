"""What a run proves about a line, and what its averages are made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pandas as pd

from npufix.advisor.evidence.lines import gather_evidence
from npufix.profiling_parsers.profile import CallSite, Environment, Profile

if TYPE_CHECKING:
    from npufix.rewriters.edit.site import Site

STEP_NS = 1_000


def operator(name: str, start: int, duration: int, dims: str = "") -> dict[str, object]:
    where = {"stack": -1, "basis": ""} if name.startswith("ProfilerStep") else {
        "stack": 0, "basis": "call-stack"}  # fmt: skip
    return {"name": name, "start_ns": start, "duration_ns": duration, "input_dims": dims,
            "input_types": "float", **where}  # fmt: skip


def run_of(lengths: list[int], dims: list[str]) -> Profile:
    """Return a run with one call per step on the shapes ``dims``, and one before all steps."""
    texts = ["name", "input_dims", "input_types", "basis"]
    ops = [operator("aten::gather", 0, 1, "9,9")]
    start = STEP_NS
    for number, (length, shape) in enumerate(zip(lengths, dims, strict=True)):
        ops.append(operator(f"ProfilerStep#{number}", start, length))
        ops.append(operator("aten::gather", start + 1, 1, shape))
        start += length
    step = pd.array(range(len(lengths)), dtype="Int64")
    kernels = pd.DataFrame({"step": step, "start_ns": step * STEP_NS, "stack": 0, "basis": "",
                            "communication": False,
                            "type": pd.Categorical(["Gather"] * len(step)),
                            "input_shapes": "", "input_dtypes": ""})  # fmt: skip
    steps = pd.DataFrame(
        {
            "step": step,
            "computing_ns": lengths,
            "communication_exposed_ns": 0,
            "free_ns": 0,
            "preparing_ns": 0,
        }
    )
    host_ops = pd.DataFrame(ops).astype(dict.fromkeys(texts, "category"))
    stacks = ((CallSite("/w/model.py", 7, "forward"),),)
    return Profile(Path(), Environment(), kernels, host_ops, steps, pd.DataFrame(), stacks)


def test_a_call_of_a_left_out_step_still_counts_as_proof() -> None:
    evidence = gather_evidence(run_of([9_000, 900, 900, 900], ["1,2", "4,4", "4,4", "4,4"]), {})
    assert [step.step for step in evidence.left_out] == [0]
    recorded = evidence.recorded("/w/model.py")[7]
    assert {call.dims[0] for call in recorded} == {(1, 2), (4, 4), (9, 9)}


def test_the_host_waits_for_a_count_where_a_mask_selects() -> None:
    run = run_of([900] * 3, ["4,4"] * 3)
    counted = run.host_ops["name"].cat.rename_categories({"aten::gather": "aten::nonzero"})
    evidence = gather_evidence(replace(run, host_ops=run.host_ops.assign(name=counted)), {})
    assert len(evidence.selections("/w/model.py", frozenset({7}))) == 3
    assert not evidence.selections("/w/model.py", frozenset({8}))
    assert not gather_evidence(run, {}).selections("/w/model.py", frozenset({7}))


def test_only_steady_steps_are_counted() -> None:
    evidence = gather_evidence(run_of([9_000, 900, 900, 900], ["4,4"] * 4), {})
    lines = frozenset({7})
    assert evidence.steps == 3
    assert evidence.executions("/w/model.py", 7, lines, {"aten::gather"}) == 3


def test_the_kernels_of_a_helper_belong_to_the_line_that_calls_it() -> None:
    run = run_of([900] * 4, ["4,4"] * 4)
    helper = CallSite("/w/model.py", 3, "rotate_half")
    called = (run.stacks[0], *((helper, CallSite("/w/model.py", n, "forward")) for n in (7, 8)))
    kernels = run.kernels.assign(stack=[0, 1, 2, 1])
    evidence = gather_evidence(replace(run, stacks=called, kernels=kernels), {})

    def find(line: int) -> list[int]:
        site = SimpleNamespace(lines=frozenset({3, line}), own_lines={line}, function="forward")
        return evidence.at("/w/model.py", cast("Site", site))["stack"].tolist()

    assert find(7) == [0, 1, 1]
    assert find(8) == [2]
    assert find(9) == [1, 2, 1], "nobody says who called"
