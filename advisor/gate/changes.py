"""What explains that a step takes longer: the parts of it that changed the most."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from npufix.advisor.gate import baselines
from npufix.reports.baseline import UNITS
from npufix.reports.gate_report import Change
from npufix.rules.shared.quantities import format_count, quantity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npufix.reports.baseline import Baseline
    from npufix.reports.measurement import MeasuredLine, Measurement

_LINES = 3
_WORTH_SAYING = 0.05
"""Parts smaller than this share of the difference explain nothing."""
_SAME_CALLS = 0.02
_PARTS = {"exposed-communication": ("exposed communication", "communication"),
          "free-time": ("free time", "free time")}  # fmt: skip


def changes(baseline: Baseline, runs: Sequence[Measurement]) -> list[Change]:
    """Return what changed between the medians over the runs, the largest first."""
    found = [*_operators(baseline, runs), *_other_parts(baseline, runs)]
    return sorted(found, key=lambda part: (-abs(part.after_ns - part.before_ns), part.what))


def _operators(baseline: Baseline, runs: Sequence[Measurement]) -> list[Change]:
    """Return the hot operators of the baseline and of the runs.

    The baseline holds the hottest only: one that is not in it took less than all that are.
    """
    now: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        for name, pair in baselines.by_key(run).items():
            now.setdefault(name, []).append(pair)
    least = min((statistics.median(op.runs) for op in baseline.hot_ops.values()), default=0.0)
    made = []
    for name in {*baseline.hot_ops, *now}:
        known = baseline.hot_ops.get(name)
        before = statistics.median(known.runs) * UNITS["us"] if known else 0.0
        figures = now.get(name, [(0.0, 0.0)])
        after = statistics.median(spent for spent, _ in figures)
        if known is None and after <= 2 * least * UNITS["us"]:
            continue
        kind, _, shapes = name.partition("|")
        what = f"{kind} on {shapes}" if shapes else kind
        calls = statistics.median(count for _, count in figures)
        made.append(Change(what, "shape" if shapes else "operator", before, after,
                           known.calls if known else 0.0, calls))  # fmt: skip
    return made


def _other_parts(baseline: Baseline, runs: Sequence[Measurement]) -> list[Change]:
    made = []
    for name, (what, kind) in _PARTS.items():
        known, now = baseline.metrics.get(name), baselines.values(runs, name)
        if known and now:
            made.append(Change(what, kind, statistics.median(known.values), statistics.median(now)))
    return made


def of_metric(name: str, every: Sequence[Change]) -> list[Change]:
    """Return the parts that a metric is made of and that it grew by."""
    kinds = {
        "step-time": {"shape", "operator", "communication", "free time"},
        "compute": {"shape", "operator"},
        "exposed-communication": {"communication"},
        "free-time": {"free time"},
    }.get(name, set())
    grown = [part for part in every if part.kind in kinds and part.after_ns > part.before_ns]
    return grown[:_LINES]


def explanation(
    every: Sequence[Change], before_ns: float, after_ns: float, runs: Sequence[Measurement]
) -> list[str]:
    """Say in three lines at most what the difference of the step time comes from."""
    difference = after_ns - before_ns
    same_way = [part for part in every if (part.after_ns - part.before_ns) * difference > 0]
    lines = _find_asking_lines(runs)
    return [
        _in_words(part, difference, lines)
        for part in same_way[:_LINES]
        if abs(part.after_ns - part.before_ns) >= _WORTH_SAYING * abs(difference)
    ]


def _in_words(part: Change, difference: float, lines: Mapping[str, MeasuredLine]) -> str:
    delta = part.after_ns - part.before_ns
    sign = "+" if delta > 0 else "-"
    text = f"{part.what}: {sign}{quantity(abs(delta), 'ns')} a step"
    text += f" of {sign}{quantity(abs(difference), 'ns')}"
    if part.calls_after or part.calls_before:
        text += f", {_calls(part)}"
    line = lines.get(part.what.partition(" on ")[0])
    return f"{text}, most of this Type at {line.path}:{line.line}" if line else text


def _calls(part: Change) -> str:
    now = format_count(round(part.calls_after), "call")
    if not part.before_ns:
        return f"{now}, not among the hot operators before"
    if abs(part.calls_after - part.calls_before) <= _SAME_CALLS * part.calls_before:
        return f"{now} as before"
    return f"{now} instead of {round(part.calls_before)}"


def _find_asking_lines(runs: Sequence[Measurement]) -> dict[str, MeasuredLine]:
    """Return for each Type the line that spends most, where it is what that line mostly does."""
    found: dict[str, MeasuredLine] = {}
    for line in runs[0].lines if runs else []:
        if line.types:
            found.setdefault(line.types[0], line)
    return found
