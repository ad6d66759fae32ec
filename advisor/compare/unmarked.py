"""Recordings without steps, whose number of steps the user knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from npufix.advisor.compare.side import CostTable, ForecastFinding, InputError

if TYPE_CHECKING:
    import pandas as pd

    from npufix.advisor.compare.side import ComparedRun
    from npufix.reports.measurement import MeasuredMetric
    from npufix.reports.report import Finding, Saving

_TIMES = ("total_ns", "computing_ns", "exposed_communication_ns", "free_ns", "overlapped_ns")


def with_steps(run: ComparedRun, steps: int) -> ComparedRun:
    """Return a run per step, which holds that many steps and does not say so.

    Raises:
        InputError: it says itself how many steps it has.

    """
    if run.shown.kind == "baseline" or run.shown.unit != "recording":
        raise InputError(
            f"{run.shown.origin}: its steps are recorded, nobody has to count them",
            "leave out --steps-before or --steps-after for it",
        )
    metrics = run.measurement.metrics
    split = run.split
    if split is not None:
        times = {name: round(getattr(split, name) / steps) for name in _TIMES}
        split = structs.replace(split, unit="step", **times)
    return replace(
        run,
        shown=structs.replace(run.shown, unit="step", steps=steps, recorded=[]),
        measurement=structs.replace(
            run.measurement, metrics={name: _metric(metrics[name], steps) for name in metrics}
        ),
        split=split,
        compute_ns=None if run.compute_ns is None else run.compute_ns / steps,
        types=_table(run.types, steps),
        shapes=_table(run.shapes, steps),
        lines=_table(run.lines, steps),
        findings=[_adapt_finding(finding, steps) for finding in run.findings],
        cells=None if run.cells is None else _rows(run.cells, steps),
        host_calls=None if run.host_calls is None else run.host_calls / steps,
        found=[
            ForecastFinding(_adapt_finding(item.finding, steps), item.kernels) for item in run.found
        ],
    )


def _metric(metric: MeasuredMetric, steps: int) -> MeasuredMetric:
    # A peak is that of every step.
    value = metric.value if metric.unit == "bytes" else metric.value / steps
    return structs.replace(metric, value=value, spread=None)


def _table(table: CostTable, steps: int) -> CostTable:
    return CostTable(_rows(table.rows, steps), table.complete)


def _rows(rows: pd.DataFrame, steps: int) -> pd.DataFrame:
    return rows.assign(total_ns=rows["total_ns"] / steps, calls=rows["calls"] / steps)


def _adapt_finding(finding: Finding, steps: int) -> Finding:
    return structs.replace(
        finding,
        device_ns=round(finding.device_ns / steps),
        saving=_share_out(finding.saving, steps),
        kernel_saving=_share_out(finding.kernel_saving, steps),
    )


def _share_out(saving: Saving | None, steps: int) -> Saving | None:
    if saving is None:
        return None
    low, high = round(saving.low_ns / steps), round(saving.high_ns / steps)
    return structs.replace(saving, low_ns=low, high_ns=high)
