"""Faults in generated dumps of several ranks, from the files to the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.generator.dump import write_ranks
from benchmarks.generator.parameters import Parameters
from benchmarks.generator.ranks import Layout, fault

from npufix.advisor.cluster.looking import Ways
from npufix.advisor.diagnose.diagnosis import Options, diagnose
from npufix.rules.shared.quantities import percent

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.reports.report import Finding, Report

FILES = ("kernel_details.csv", "step_trace_time.csv", "op_statistic.csv", "communication.json",
         "communication_matrix.json")  # fmt: skip


def report_of(
    folder: Path, layout: tuple[int, int, int], *faults: str, export: str = "text"
) -> Report:
    ranks, tp, pp = layout
    job = Parameters(
        kernels=600, steps=6, ranks=ranks, tp=tp, pp=pp, faults=tuple(map(fault, faults))
    )
    write_ranks(job, folder, export, only=FILES)
    return diagnose(folder, None, Options(ways=Ways(cache=False))).report


def of_ranks(made: Report) -> dict[str, Finding]:
    return {each.rule: each for each in made.findings if each.rule.startswith("NPU6")}


@pytest.mark.parametrize(
    ("layout", "faults", "expected"),
    [
        ((8, 2, 2), (), {}),
        ((8, 2, 1), ("slow-compute:3", "slow-link:4-5"), {"NPU601": [3], "NPU604": [4, 5]}),
        ((8, 1, 1), ("slow-host:5",), {"NPU602": [5]}),
        ((4, 2, 1), ("straggler:2@3", "small-packets"), {"NPU603": [2], "NPU609": [0, 1, 2, 3]}),
        ((8, 2, 2), ("stage-imbalance", "bubbles"),
         {"NPU607": [4, 5, 6, 7], "NPU608": list(range(8))}),
        ((8, 2, 1), ("tp-imbalance", "expert-imbalance:6"),
         {"NPU605": [1, 3, 5, 7], "NPU606": [6]}),
        ((16, 8, 1), ("retransmission:1@4",), {"NPU610": [1, 9]}),
    ],
)  # fmt: skip
def test_each_fault_is_found_where_it_is(
    layout: tuple[int, int, int],
    faults: tuple[str, ...],
    expected: dict[str, list[int]],
    tmp_path: Path,
) -> None:
    made = report_of(tmp_path, layout, *faults)
    found = of_ranks(made)
    # Who waits for whom is told beside the cause.
    named = {rule: sorted(each.ranks) for rule, each in found.items() if rule != "NPU611"}
    assert named == expected
    assert not faults or set(found) - {"NPU611"}
    assert [each.what for each in made.problems if each.damaged] == []
    step = made.split.total_ns if made.split else 0
    for each in found.values():
        assert each.saving is None or 0 <= each.saving.low_ns <= each.saving.high_ns <= step
        told = each.what.partition("% of the step)")[0].rpartition("(")[2]
        # One length of a step: that of the report.
        assert f"{told}%" in {"%", percent(each.share)} or not told[-1].isdigit()


@pytest.mark.parametrize("export", ["text", "db"])
def test_the_exports_tell_the_same_of_a_job(export: str, tmp_path: Path) -> None:
    made = report_of(tmp_path, (4, 1, 2), "slow-compute:3", "bubbles", export=export)
    assert {rule: each.ranks[0] for rule, each in of_ranks(made).items()} == {
        "NPU601": 3, "NPU608": 0, "NPU611": 3,
    }  # fmt: skip
    facts = {each.name: each.value for each in of_ranks(made)["NPU601"].evidence}
    assert "clock" in facts["why"]
    assert [each.what for each in made.problems if each.damaged] == []


def test_ranks_that_wait_for_each_other_take_steps_of_one_length(tmp_path: Path) -> None:
    made = report_of(tmp_path, (4, 1, 1), "slow-compute:1")
    lengths = [
        (each.computing_ns or 0) + (each.exposed_communication_ns or 0) + (each.free_ns or 0)
        for each in made.ranks
    ]
    assert max(lengths) - min(lengths) < 0.01 * max(lengths)
    waits = [each.exposed_communication_ns or 0 for each in made.ranks]
    assert min(waits) == waits[1] < 0.05 * max(waits)


@pytest.mark.parametrize("text", ["slow-rank:1", "slow-compute", "slow-compute:x", ""])
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"fault|needs a rank"):
        fault(text)


def test_a_layout_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        Layout(6, 4, 1)
    with pytest.raises(ValueError, match="does not have"):
        Layout(4, faults=(fault("slow-compute:4"),))
