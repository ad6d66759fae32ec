"""Gradients that are reduced in each micro step, and programs that reduce them once."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from npufix.advisor.rules_test.recordings import MS, recording
from npufix.rules.diagnostics.micro_step_reductions import _nodes, check

DDP = "DistributedDataParallel.forward"
NODE = "autograd::engine::evaluate_function: MmBackward0"
BY_NUMBER = "aten::linear"


def looked_at(
    reduced: list[list[str]], *, forward: str = DDP, micro: int = 4, in_forward: str = ""
) -> Any:
    """Return two steps of the optimizer; ``reduced``: what each micro step reduces."""
    kernels, calls = [], []
    for step in range(2):
        for at, names in enumerate(reduced):
            begin = (step * 100 + at * 20) * MS
            calls.append({"name": forward, "start_ns": begin, "duration_ns": 6 * MS})
            if forward == BY_NUMBER:  # no wrapper tells its name
                number = 10 * (step * len(reduced) + at) + 5
                calls[-1]["sequence"] = number
                calls += [{"name": NODE, "start_ns": begin + 7 * MS, "duration_ns": MS},
                          {"name": "MmBackward0", "sequence": number,
                           "start_ns": begin + 7 * MS + 9, "duration_ns": MS - 20},
                          {"name": "MmBackward0", "sequence": number - 1,
                           "start_ns": begin + 10 * MS, "duration_ns": MS}]  # fmt: skip
            row = {"communication": True, "core": "HCCL", "duration_ns": 2 * MS}
            if in_forward:
                kernels.append({**row, "name": in_forward, "type": "hcom_allReduce_",
                                "start_ns": begin + 2 * MS, "launch_ns": begin + MS})  # fmt: skip
            kernels += [
                {**row, "name": name, "type": name.partition("__")[0] + "_", "path": "train.py",
                 "line": 9, "start_ns": begin + (9 + 3 * n) * MS, "launch_ns": begin + 8 * MS}
                for n, name in enumerate(names)
            ]  # fmt: skip
        update = {"name": "Optimizer.step#AdamW.step", "duration_ns": MS}
        calls += [{**update, "start_ns": (step * 100 + 20 * n + 19) * MS}
                  for n in range(micro - 1, len(reduced), micro)]  # fmt: skip
    steps = {"communication_ns": 24 * MS, "communication_exposed_ns": 12 * MS}
    return recording(kernels, calls, step=steps, step_ns=100 * MS, step_count=2)


BUCKETS = ["hcom_allReduce__954_0_1", "hcom_allReduce__954_1_1", "hcom_allReduce__954_2_1"]


@pytest.mark.parametrize("forward", [DDP, "FullyShardedDataParallel.forward", BY_NUMBER])
def test_reductions_before_the_last_micro_step_are_for_nothing(forward: str) -> None:
    (seen,) = check(looked_at([BUCKETS] * 4, forward=forward))
    assert "each of 4 micro steps" in seen.what
    assert "9 of 12 reductions" in seen.what
    assert seen.cost_ns == 9 * MS, "half of 18 ms is hidden"
    assert len(seen.kernels) == 18
    assert seen.kernels == seen.hidden
    assert (seen.places[0].path, seen.places[0].line) == ("train.py", 9)


@pytest.mark.parametrize(
    "made",
    [
        looked_at([[], [], [], BUCKETS]),  # no_sync
        looked_at([BUCKETS] * 4, micro=1),  # each micro step is one of the optimizer's
        looked_at([BUCKETS[:1], BUCKETS[:1], BUCKETS[:1], BUCKETS]),  # something else
        looked_at([BUCKETS] * 4, forward="Linear.forward"),
        looked_at([[], [], [], BUCKETS], forward=BY_NUMBER),
        looked_at([BUCKETS] * 4, micro=1, forward=BY_NUMBER),
        looked_at(
            [["hcom_allReduce__7_0_1"]] * 4, in_forward="hcom_allReduce__7_0_2", forward=BY_NUMBER
        ),
        looked_at([["hcom_allReduce__7_0_1"]] * 4, in_forward="hcom_allReduce__7_0_2"),
        looked_at([["hcom_allGather__954_0_1"]] * 4),
    ],
    ids=[
        *("no_sync", "no accumulation", "fewer", "no wrapper", "no_sync by number"),
        *("no accumulation by number", "tensor parallel by number", "tensor parallel", "gathers"),
    ],
)
def test_what_is_reduced_once_or_is_no_gradient_is_left_alone(made: Any) -> None:
    assert list(check(made)) == []


def test_nodes_that_overlap_by_the_clock_end_with_the_last_of_them() -> None:
    calls = pd.DataFrame({"start_ns": [0, 9, 18, 50], "duration_ns": 10, "sequence": [4, 3, 2, 1]})
    start, end, number = (each.tolist() for each in _nodes(calls))
    assert (start, end, number) == ([0, 50], [28, 60], [4, 1])
