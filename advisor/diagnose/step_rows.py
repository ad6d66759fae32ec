"""The recorded steps of a run, one row for each on each device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.comparison import StepTime
from npufix.reports.data.tables import StepRow

if TYPE_CHECKING:
    from npufix.advisor.diagnose.result import Diagnosis


def step_rows(result: Diagnosis) -> list[StepRow]:
    """Return all recorded steps, those that no average contains too."""
    if result.steps is None:
        return []
    split = result.report.split
    reasons = {odd.step: odd.reason for odd in split.left_out} if split else {}
    columns = ("device", "computing_ns", "communication_exposed_ns", "overlapped_ns", "free_ns")
    numbers = zip(*(result.steps[name].tolist() for name in columns), strict=True)
    steps = [None if unknown else int(step) for step, unknown in zip(
        result.steps["step"], result.steps["step"].isna(), strict=True)]  # fmt: skip
    return [
        StepRow(step, device, computing, exposed, hidden, free, reasons.get(step, ""))
        for step, (device, computing, exposed, hidden, free) in zip(steps, numbers, strict=True)
    ]


def step_times(result: Diagnosis) -> list[StepTime]:
    """Return the same for a comparison."""
    return [
        StepTime(
            row.step, row.device, row.computing_ns, row.exposed_communication_ns, row.free_ns,
            row.left_out,
        )
        for row in step_rows(result)
    ]  # fmt: skip
