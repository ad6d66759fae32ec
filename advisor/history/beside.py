"""The history of a program beside a verdict of its gate."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.gate.baselines import differences, environment_of
from npufix.advisor.project.gate_settings import METRICS
from npufix.reports.report import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.advisor.gate.measuring import MeasuredRun
    from npufix.reports.gate_report import GatedMetric, GateReport
    from npufix.reports.history import HistoryEntry

_SHOWN_RUNS = 60


def with_history(
    made: GateReport, past: Sequence[HistoryEntry], measured: Sequence[MeasuredRun]
) -> GateReport:
    """Return a verdict with what its metrics were in the runs before these, and are now.

    Runs of other machines are left out; that there are no others is said.
    """
    here = environment_of(measured[0].measurement)
    runs = [e.run for e in past if e.run and not differences(e.run.environment, here)]
    if not runs:
        what = "the history holds no run of this environment"
        problem = Problem("history", what, "add runs of it with npufix history add")
        return msgspec.structs.replace(made, problems=[*made.problems, problem])

    def beside(metric: GatedMetric) -> GatedMetric:
        known = [
            run.metrics[metric.name] for run in runs[-_SHOWN_RUNS:] if metric.name in run.metrics
        ]
        if metric.name not in METRICS or not known or not metric.current:
            return metric
        before = [each.values[0] for each in known]
        return msgspec.structs.replace(metric, history=[*before, statistics.median(metric.current)])

    return msgspec.structs.replace(made, metrics=[beside(metric) for metric in made.metrics])
