"""A history as a report: each metric over its runs, what changed, and whether it still counts."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.advisor.gate.baselines import HOT_OPERATORS, differences, typical
from npufix.advisor.gate.comparability import other_workload
from npufix.advisor.history.shifts import FEWEST_RUNS, SHORTEST, find_shifts
from npufix.advisor.project.gate_settings import METRICS
from npufix.reports.baseline import UNITS
from npufix.reports.report import tool
from npufix.reports.trend_report import TrendReport, TrendRun, TrendSeries, TrendShift
from npufix.reports.wording.history import operator_change, shift_text
from npufix.rules.shared.quantities import format_count, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.reports.baseline import Baseline
    from npufix.reports.history import HistoryEntry

SMALLEST_CHANGE = 0.03
"""Relative: less may be another day on the same machine."""
_EXPLAINED = 3
_STATUS = {"pass": 0, "fail": 1, "inconclusive": 3}


@dataclass(frozen=True, slots=True)
class TrendRequest:
    """What is asked of a history."""

    file: str
    window: int
    """How many runs, the newest."""
    tolerance: float = SMALLEST_CHANGE
    top: int = 10
    """How many hot operators."""


@dataclass(frozen=True, slots=True)
class _Window:
    """The runs looked at, and from which on their level counts."""

    runs: list[tuple[HistoryEntry, Baseline]]
    accepted: int
    reason: str
    other: str
    """How the newest run differs from the one before it, where that one is of another kind."""


def examine_history(entries: Sequence[HistoryEntry], asked: TrendRequest) -> TrendReport:
    """Return what a history shows. At least one of its entries is a run."""
    window = _select(entries, asked.window)
    runs = [run for _, run in window.runs]
    hot = list(_operators(runs))
    metrics = [
        _examine(name, unit, values, window, hot if name == "step-time" else [])
        for name, unit, values in _metrics(runs)
    ]
    operators = [_examine(name, "ns", values, window, []) for name, values in hot[: asked.top]]
    verdict, reasons = _judge(metrics, window, asked.tolerance)
    total = sum(entry.run is not None for entry in entries)
    return TrendReport(
        tool=tool(),
        verdict=verdict,
        headline=reasons[0] if reasons else _calm(metrics, len(runs), asked.tolerance),
        exit_status=_STATUS[verdict],
        file=asked.file,
        runs=[TrendRun(entry.time, run.commit) for entry, run in window.runs],
        left_out=total - len(runs),
        tolerance=asked.tolerance,
        metrics=metrics,
        operators=operators,
        reasons=reasons,
        next_steps=list(_next(metrics, verdict, asked)),
        accepted=window.reason,
    )


def _select(entries: Sequence[HistoryEntry], most: int) -> _Window:
    """Return the runs that are comparable with the newest one."""
    every = [(entry, entry.run) for entry in entries if entry.run is not None]
    alike, others = [], []
    for entry, run in reversed(every):
        different = _differ(run, every[-1][1])
        others += different
        alike += [] if different else [(entry, run)]
        if len(alike) == most:
            break
    alike.reverse()
    other = others[0] if others and len(alike) < FEWEST_RUNS else ""
    marks = [entry for entry in entries if entry.run is None]
    last = marks[-1] if marks else None
    accepted = sum(entry.moment <= last.moment for entry, _ in alike) if last else 0
    # The level that was accepted is that of the runs before: they stay what it is compared with.
    return _Window(alike, max(0, accepted - 1), last.accepted if last else "", other)


def _differ(run: Baseline, newest: Baseline) -> list[str]:
    """Say why a run cannot be compared with the newest one, as the gate would."""
    if different := differences(run.environment, newest.environment):
        return ["; ".join(different)]
    if other_workload(run, typical(newest)):
        return ["other work, hot operators on other shapes or not as often"]
    return []


def _metrics(runs: Sequence[Baseline]) -> Iterator[tuple[str, str, list[float | None]]]:
    for name, (unit, _) in METRICS.items():
        found = [run.metrics.get(name) for run in runs]
        if any(found):
            yield name, unit, [metric.values[0] if metric else None for metric in found]


def _operators(runs: Sequence[Baseline]) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the hot operators, the hottest of the newest runs first."""
    series: dict[str, list[float | None]] = {}
    for number, run in enumerate(runs):
        for name, operator in run.hot_ops.items():
            values = series.setdefault(name, [None] * len(runs))
            values[number] = operator.runs[0] * UNITS["us"]
    newest = {name: sum(filter(None, values[-SHORTEST:])) for name, values in series.items()}
    for name in sorted(series, key=lambda name: (-newest[name], name)):
        yield name, series[name]


def _examine(
    name: str,
    unit: str,
    values: Sequence[float | None],
    window: _Window,
    hot: Sequence[tuple[str, list[float | None]]],
) -> TrendSeries:
    # A run without communication has no relative change; it is no part of the series.
    places = [number for number, value in enumerate(values) if value]
    levels: list[float | None] = [None] * len(values)
    if len(places) < FEWEST_RUNS:
        return TrendSeries(name, unit, list(values), levels, 0.0)
    days = [window.runs[place][0].moment.toordinal() for place in places]
    trend = find_shifts([values[place] or 0.0 for place in places], SMALLEST_CHANGE, days)
    for place, level in zip(places, trend.levels, strict=True):
        levels[place] = level
    shifts = []
    for shift in trend.shifts:
        before = trend.levels[shift.start - 1 if shift.kind == "jump" else shift.start]
        first, last = places[shift.start], places[shift.end]
        shifts.append(
            TrendShift(
                shift.kind, first, last, before, trend.levels[shift.end], shift.change,
                _explain(first, last, hot, trend.levels[shift.end] - before, len(values)),
            )
        )  # fmt: skip
    since = [level for place, level in zip(places, trend.levels, strict=True)
             if place >= window.accepted]  # fmt: skip
    worse = trend.levels[-1] / min(since) - 1 if since else None
    return TrendSeries(name, unit, list(values), levels, trend.noise, shifts, worse)


def _explain(
    first: int,
    last: int,
    hot: Sequence[tuple[str, list[float | None]]],
    difference: float,
    count: int,
) -> list[str]:
    """Return which operators changed with it, in its direction, the most first."""
    near = max(SHORTEST, FEWEST_RUNS // 2)
    changes = []
    for name, values in hot[:HOT_OPERATORS]:
        before = [v or 0.0 for v in values[max(0, first - near) : max(first, 1)]]
        start = last if last == first else max(0, last - near + 1)
        after = [v or 0.0 for v in values[start : min(count, start + near)]]
        changes.append((statistics.median(after) - statistics.median(before), name,
                        statistics.median(before), statistics.median(after)))  # fmt: skip
    share = 0.1 * abs(difference)
    told = [each for each in changes if each[0] * difference > 0 and abs(each[0]) > share]
    told.sort(key=lambda each: (-abs(each[0]), each[1]))
    return [operator_change(name, old, new) for _, name, old, new in told[:_EXPLAINED]]


def _judge(
    metrics: Sequence[TrendSeries], window: _Window, tolerance: float
) -> tuple[str, list[str]]:
    count = len(window.runs)
    if count < FEWEST_RUNS:
        said = f"{format_count(count, 'run')} of {FEWEST_RUNS} that are needed"
        return "inconclusive", [
            f"{said}; the others are of another kind: {window.other}" if window.other else said
        ]
    failing = [s for s in metrics if _counts(s) and s.worse is not None and s.worse > tolerance]
    if failing:
        return "fail", [_reason(series, window) for series in failing]
    doubts = [text for s in metrics if _counts(s) and (text := _doubt(s, tolerance))]
    return ("inconclusive", doubts) if doubts else ("pass", [])


def _counts(series: TrendSeries) -> bool:
    return METRICS[series.name][1] == "error"


def _reason(series: TrendSeries, window: _Window) -> str:
    """Say which shift it was that made a metric worse."""
    runs = [TrendRun(entry.time, run.commit) for entry, run in window.runs]
    rises = [shift for shift in series.shifts if shift.change > 0 and shift.last >= window.accepted]
    told = "; ".join(shift_text(shift, runs, series.unit) for shift in rises)
    return f"{series.name} {percent(series.worse or 0.0, signed=True)}: {told}"


def _doubt(series: TrendSeries, tolerance: float) -> str:
    """Say if the newest runs are slower and too few to be a level of their own, or not known."""
    if series.values[-1] is None:
        return f"{series.name}: the newest run did not record it"
    values = [value for value in series.values if value]
    levels = [level for level in series.levels if level]
    for count in range(SHORTEST - 1, 0, -1):
        if len(levels) <= count:
            continue
        lowest, level = min(values[-count:]), levels[-1 - count]
        beyond = max(tolerance, 2 * SHORTEST * series.noise / count**0.5)
        if lowest / level - 1 > beyond:
            more = format_count(SHORTEST - count, "more run")
            newest = "the newest run is" if count == 1 else f"the {count} newest runs are"
            slower = percent(statistics.median(values[-count:]) / level - 1)
            return f"{series.name}: {newest} {slower} above the level before; {more} would decide"
    return ""


def _calm(metrics: Sequence[TrendSeries], count: int, tolerance: float) -> str:
    steps = [shift for s in metrics if s.name == "step-time" for shift in s.shifts]
    better = [shift for shift in steps if shift.change < 0]
    if better and better[-1] is steps[-1]:
        faster = percent(-better[-1].change)
        return f"the step became {faster} faster, and nothing worse since"
    return f"no metric is more than {percent(tolerance)} worse than it was, over {count} runs"


def _next(metrics: Sequence[TrendSeries], verdict: str, asked: TrendRequest) -> Iterator[str]:
    if verdict == "fail":
        yield f"npufix history accept {asked.file} --reason WHY   # where it is meant to be so"
    elif any(s.name == "step-time" and s.shifts and s.shifts[-1].change < 0 for s in metrics):
        yield "npufix baseline update DUMP...   # so that the gate keeps what was gained"
