"""What DDP copies is told as such, though no line of the program asks for it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from npufix.advisor.evidence.run_findings import askers, finding
from npufix.advisor.rules_test.recordings import MS, US, recording
from npufix.reports.wording.report import asker
from npufix.rules.diagnostics import gradient_bucket_copies, hot_operator, layout_copies

WITHIN = "torch.distributed.ddp.reducer::copy_bucket_to_grad"


def copies(
    around: str, *, later: bool = False
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return two copies; the second is within the operator unless it is ``later``."""
    ops = [
        {"name": around, "start_ns": 0, "duration_ns": 50 * US},
        {"name": "aten::copy_", "start_ns": 10 * US, "duration_ns": 5 * US},
        {"name": "aten::copy_", "start_ns": (70 if later else 30) * US, "duration_ns": 5 * US},
    ]
    kernel = {"type": "TensorMove", "duration_ns": MS}
    return [{**kernel, "host_op": 1}, {**kernel, "host_op": 2}, {"duration_ns": MS}], ops


def test_copies_within_the_reducer_are_told_with_what_avoids_them() -> None:
    looked_at = recording(*copies(WITHIN))
    (seen,) = gradient_bucket_copies.RULE.check(looked_at)
    assert (seen.kernels, seen.cost_ns, seen.saving_ns) == ({0, 1}, 2 * MS, (0, 2 * MS))
    assert not list(layout_copies.check(looked_at)), "no transpose makes them"


def test_other_copies_are_not_those_of_the_reducer() -> None:
    (seen,) = gradient_bucket_copies.RULE.check(recording(*copies(WITHIN, later=True)))
    assert seen.kernels == {0}
    looked_at = recording(*copies("aten::contiguous"))
    assert not list(gradient_bucket_copies.RULE.check(looked_at))
    (other,) = layout_copies.check(looked_at)
    assert other.kernels == {0, 1}


def test_few_copies_are_left_alone() -> None:
    few = recording(*copies(WITHIN), step_ns=2000 * MS)
    assert not list(gradient_bucket_copies.RULE.check(few))


def test_what_of_cpp_asks_for_kernels_without_a_line_is_named() -> None:
    rows = [
        {"type": "Add", "start_ns": at * MS, "duration_ns": 20 * MS, "host_op": 2 * at + 1}
        for at in range(2)
    ]
    node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    calls = [
        {"name": name, "start_ns": at * MS + inner, "duration_ns": 1000 - 2 * inner}
        for at in range(2)
        for inner, name in enumerate((node, "aten::add_"))
    ]
    looked_at = recording(rows, calls, step_ns=100 * MS)
    (seen,) = hot_operator.check(looked_at)
    (fact,) = askers(seen, looked_at)
    assert fact.value == "torch::autograd::AccumulateGrad: 2 kernels, 40 ms"
    told = replace(finding(hot_operator.RULE, seen, 100 * MS), evidence=[fact])
    assert asker(told) == "torch::autograd::AccumulateGrad"
    # An operator that the program calls itself says nothing of where.
    assert not [*askers(seen, recording(rows, [{**c, "name": "aten::add_"} for c in calls]))]
    # Nor does what asks for a few of many.
    at = [{"start_ns": n * MS, "host_op": 2 * n} for n in range(2, 7)]
    more = [{**rows[0], **own} for own in at]
    outer = [{"name": "aten::mul", "start_ns": n * MS, "duration_ns": 1000} for n in range(2, 7)]
    looked_at = recording([*rows, *more], [*calls, *outer], step_ns=200 * MS)
    (seen,) = hot_operator.check(looked_at)
    assert not [*askers(seen, looked_at)]
