"""A run in few numbers: the median over its steady steps, and what they are made of.

A folder of several ranks is one run, and one rank stands for it: the one that ``diagnose`` looks
into, the slowest (or ``--rank``). The others wait for it, so their steps are as long as its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.diagnose.diagnosis import Options, diagnose
from npufix.advisor.gate.measured_parts import (
    lines,
    list_lines,
    list_operators,
    operators,
    steady_steps,
)
from npufix.advisor.patch.suggestions import with_report_changes
from npufix.reports.measurement import MeasuredFinding, MeasuredMetric, Measurement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.evidence.lines import Evidence
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports import report

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run in few numbers, and all that is known about it."""

    measurement: Measurement
    report: report.Report
    warnings: tuple[str, ...]


def measure(dump: Path, tree: SourceTree | None, options: Options) -> Measurement:
    """Read a dump and return its numbers.

    Raises:
        DumpError: there is nothing to measure.
        RankError: there is no dump of the wanted rank.

    """
    return examine(dump, tree, options).measurement


def examine(dump: Path, tree: SourceTree | None, options: Options) -> MeasuredRun:
    """Read a dump and return its numbers beside the whole diagnosis; raise as ``measure``."""
    result = diagnose(dump, tree, options)
    if tree is not None:  # outputs offer the change of a new finding beside its line
        result = replace(result, report=with_report_changes(result, tree))
    return measure_diagnosis(result, dump)


def measure_diagnosis(result: Diagnosis, dump: Path) -> MeasuredRun:
    """Return the numbers of a dump that is diagnosed already.

    Raises:
        TypeError: the diagnosis has no evidence: it is of a source alone.

    """
    made, evidence = result.report, result.evidence
    if evidence is None:  # pragma: no cover - a dump always has it
        raise TypeError("a diagnosis of a dump without its evidence")
    metrics = _metrics(evidence)
    if result.signals is not None:
        metrics |= _peak_memory(result.signals.memory)
    measurement = Measurement(
        origin=str(dump),
        environment=made.environment,
        steps=evidence.steps,
        metrics=metrics,
        operators=operators(evidence),
        lines=lines(evidence),
        findings=_findings(made.findings),
        format=made.format,
        partial=_partial(made),
        source=made.source,
        unit="recording" if evidence.kernels["step"].isna().all() else "step",
        bounds=made.split.bounds if made.split else "kernels",
        ranks=_ranks(made),
        started_ns=int(evidence.kernels["start_ns"].min()) if len(evidence.kernels) else None,
    )
    return MeasuredRun(measurement, made, result.warnings)


def measure_report(made: report.Report) -> Measurement:
    """Return the numbers that a report holds: averages where a dump would give medians.

    It knows the hot operators, shapes and lines only, and neither launches nor memory.
    """
    split, metrics = made.split, {}
    steps = split.recorded_steps if split else 1
    if split:
        metrics = {
            "step-time": _of(split.total_ns),
            "compute": _of(split.computing_ns),
            "exposed-communication": _of(split.exposed_communication_ns),
            "free-time": _of(split.free_ns),
        }
    elif made.compute_ns:
        metrics = {"compute": _of(made.compute_ns)}
    return Measurement(
        origin=made.dump or made.source,
        environment=made.environment,
        steps=split.steps if split else 1,
        metrics=metrics,
        operators=list_operators(made, steps),
        lines=list_lines(made, steps),
        findings=_findings(made.findings),
        format=made.format,
        partial=_partial(made),
        source=made.source,
        unit=split.unit if split else "step",
        bounds=split.bounds if split else "kernels",
        averaged=split is not None and split.steps > 1,
        ranks=_ranks(made),
    )


def _ranks(made: report.Report) -> int:
    """Return how many ranks were measured: the slowest of fewer is faster."""
    return max(1, sum(row.computing_ns is not None for row in made.ranks))


def _of(value: float) -> MeasuredMetric:
    return MeasuredMetric(float(value), "ns")


def _metrics(evidence: Evidence) -> dict[str, MeasuredMetric]:
    """Return one number a metric: the median over the steady steps."""
    number, count = steady_steps(evidence)
    kernels, rows = evidence.kernels, np.flatnonzero(evidence.steady & evidence.computes)
    durations = kernels["duration_ns"].to_numpy()
    launches = np.bincount(number[rows], minlength=count).astype(np.float64)
    if evidence.split.empty:
        starts = kernels["start_ns"].to_numpy()
        busy = np.bincount(number[rows], durations[rows], count).astype(np.float64)
        times = {
            "step-time": _spans(number[rows], starts[rows], durations[rows], count),
            "compute": busy,
        }
    else:
        times = step_times(evidence.split)
    return {
        **{name: median_of(values) for name, values in times.items() if len(values)},
        "launches": median_of(launches, "count"),
    }


def step_times(split: pd.DataFrame) -> dict[str, Floats]:
    """Return the times of each step, from rows of ``Profile.steps``."""
    columns = ["computing_ns", "communication_exposed_ns", "free_ns"]
    # A step of several devices is one step.
    by_step = split.groupby("step", dropna=False)[columns].mean()
    computing, exposed, free = by_step.to_numpy(np.float64).T
    return {
        "step-time": computing + exposed + free,
        "compute": computing,
        "exposed-communication": exposed,
        "free-time": free,
    }


def _spans(number: NDArray[np.int64], starts: NDArray[np.int64], durations: NDArray[np.int64],
           count: int) -> Floats:  # fmt: skip
    """Return the time from the first to the last kernel of each step; none without kernels."""
    if not len(number):
        return np.empty(0)
    first = np.full(count, np.iinfo(np.int64).max)
    last = np.zeros(count, np.int64)
    np.minimum.at(first, number, starts)
    np.maximum.at(last, number, starts + durations)
    lengths: Floats = (last - first).astype(np.float64)
    return lengths


def _peak_memory(memory: pd.DataFrame) -> dict[str, MeasuredMetric]:
    """Return the most memory that tensors took at once, warm-up included.

    That of the fullest device, if there are several: it is the one that runs out.
    """
    peak = int(memory["allocated_bytes"].max()) if len(memory) else 0
    return {"peak-memory": MeasuredMetric(float(peak), "bytes")} if peak > 0 else {}


def median_of(values: Floats, unit: str = "ns") -> MeasuredMetric:
    """Return the median of the steps, and how far they are from it."""
    middle = float(np.median(values))
    if len(values) < 2:  # noqa: PLR2004 - one step does not vary
        return MeasuredMetric(middle, unit)
    deviation = float(np.median(np.abs(values - middle)))
    return MeasuredMetric(middle, unit, deviation / middle if middle else 0.0)


def _findings(found: Sequence[report.Finding]) -> list[MeasuredFinding]:
    return [
        MeasuredFinding(
            fingerprint=item.fingerprint,
            rule=item.rule,
            name=item.name,
            path=item.path,
            line=item.line,
            device_ns=float(item.device_ns),
            saving_ns=(item.saving.low_ns + item.saving.high_ns) / 2 if item.saving else 0.0,
            kernels_save_ns=_of_kernels(item),
        )
        for item in found
    ]


def _of_kernels(found: report.Finding) -> tuple[float, float] | None:
    saving = found.kernel_saving or found.saving
    if found.kind != "code" or saving is None or not saving.high_ns:
        return None
    return float(saving.low_ns), float(saving.high_ns)


def _partial(made: report.Report) -> list[str]:
    """Return what is broken; what was only not collected makes no number wrong."""
    return [f"{item.where}: {item.what}" for item in made.problems if item.damaged]
