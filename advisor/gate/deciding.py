"""Which metrics got worse: larger than the tolerance, than the floor, and than luck."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.gate import baselines
from npufix.advisor.gate.significance import (
    FEWEST_RUNS,
    Wanted,
    compare,
    detectable,
    enough_runs,
    holm,
    runs_to_decide,
)
from npufix.advisor.project.gate_settings import METRICS
from npufix.reports.baseline import UNITS
from npufix.reports.gate_report import GatedMetric
from npufix.rules.shared.quantities import format_count, percent, quantity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.advisor.gate.significance import SignificanceTest
    from npufix.advisor.project.gate_settings import Acceptance, GateSettings
    from npufix.reports.baseline import Baseline
    from npufix.reports.measurement import Measurement

FEW_RUNS_TOLERANCE = 0.10
"""Where there is no test."""
_FEW_RUNS_ALPHA = 0.5
"""Of ``alpha``."""
_MAIN = "step-time"
_MAIN_WEIGHT = 7.0
"""Of the step time, beside one of each part of it: what makes no step longer is no emergency."""
_DOUBT = 0.15
"""How probable it may be that a step is within the tolerance after all: at its very border a day
makes the difference. Of a part of it, by the same weight less."""
_AGREED = 0.9
"""Of the tolerance: that much the median and the fastest run must say, too."""
_BLIND = 0.5
"""Runs among which a step that takes half as long again would go unnoticed show nothing."""
HOT = "hot-ops"


@dataclass(frozen=True, slots=True)
class MetricCase:
    """One metric to decide about."""

    name: str
    level: str
    unit: str
    baseline: list[float]
    current: list[float]
    tolerance: float
    floor: float
    budget: float | None = None
    paired: bool = False
    """Both hold as many numbers, in the order of pairs."""


def cases(
    baseline: Baseline | None,
    runs: Sequence[Measurement],
    settings: GateSettings,
    partners: Sequence[Measurement] = (),
) -> list[MetricCase]:
    """Return the metrics that are gated, in the order of the settings.

    ``partners``: of each run the one that it was taken in turn with; the baseline is made of them.
    """
    made = []
    for name, (unit, _) in METRICS.items():
        own = settings.metrics[name]
        if name == HOT or own.level == "off":
            continue
        known = baseline.metrics.get(name) if baseline else None
        before, now = known.values if known else [], baselines.values(runs, name)
        ordered = baselines.values(partners, name) if known else []
        paired = len(ordered) == len(now) == len(runs) > 1
        before = ordered if paired else before
        if before or now or own.required or own.budget is not None:
            tolerance, floor = settings.tolerance_of(name), settings.floor_of(name)
            made.append(
                MetricCase(name, own.level, unit, before, now, tolerance, floor, own.budget, paired)
            )
    if baseline and settings.metrics[HOT].level != "off":
        made += _hot_operators(baseline, runs, settings, partners)
    return made


def _hot_operators(
    baseline: Baseline,
    runs: Sequence[Measurement],
    settings: GateSettings,
    partners: Sequence[Measurement],
) -> Iterator[MetricCase]:
    """Yield the hottest operators of the baseline and of the runs."""
    own = settings.metrics[HOT]
    now, ordered = _list_times(runs), _list_times(partners)
    before = {
        name: [number * UNITS["us"] for number in operator.runs]
        for name, operator in baseline.hot_ops.items()
    }
    hot = {*_hottest(before, own.top), *_hottest(now, own.top)}
    tolerance, floor = settings.tolerance_of(HOT), settings.floor_of(HOT)
    for name in sorted(hot, key=lambda n: (-statistics.median(before.get(n) or now[n]), n)):
        title = f"{HOT}: {name.replace('|', ' ', 1)}".rstrip()
        if name in now:  # what is gone is no regression
            old, new = before.get(name, []), now[name]
            paired = len(ordered.get(name, [])) == len(new) == len(runs) > 1
            old = ordered[name] if paired and old else old
            yield MetricCase(
                title, own.level, "ns", old, new, tolerance, floor, paired=paired and bool(old)
            )


def _list_times(runs: Sequence[Measurement]) -> dict[str, list[float]]:
    """Return the time of each operator, one number for each run that has it."""
    spent: dict[str, list[float]] = {}
    for run in runs:
        for name, (total, _) in baselines.by_key(run).items():
            spent.setdefault(name, []).append(total)
    return spent


def _hottest(spent: Mapping[str, list[float]], top: int) -> list[str]:
    return sorted(spent, key=lambda name: (-statistics.median(spent[name]), name))[:top]


def decide(
    every: Sequence[MetricCase],
    settings: GateSettings,
    accepted: Mapping[str, Acceptance],
    *,
    has_baseline: bool = True,
) -> list[GatedMetric]:
    """Return the decision about each case.

    ``accepted``: the acceptances that still hold, by metric. ``has_baseline``: there is one, so
    that what it lacks was not recorded.
    """
    compared = {
        case.name: compare(case.baseline, case.current, case.floor, paired=case.paired)
        for case in every
        if case.baseline and case.current
    }
    corrected: dict[str, float] = {}
    shares: dict[str, float] = {}
    # Warnings are corrected among themselves: they must not cost the errors their power.
    for level in ("error", "warn"):
        tested = {
            case.name: slower
            for case in every
            if case.level == level
            and (seen := compared.get(case.name))
            and (slower := seen.slower) is not None
            and any((*case.baseline, *case.current))
        }
        weights = {name: _MAIN_WEIGHT if name == _MAIN else 1.0 for name in tested}
        corrected |= holm(tested, weights)
        shares |= {name: weight / sum(weights.values()) for name, weight in weights.items()}
    decided = []
    for case in every:
        seen = compared.get(case.name)
        if seen is None:
            decided.append(_decide_alone(case, has_baseline=has_baseline))
            continue
        doubt = _DOUBT if case.name == _MAIN else _DOUBT / _MAIN_WEIGHT
        asked = Wanted(case.tolerance, _alpha(case, settings), doubt, shares.get(case.name, 1.0))
        judged = _judge(case, seen, corrected.get(case.name), asked)
        known = accepted.get(case.name.partition(":")[0])
        if judged.verdict in {"regression", "inconclusive"} and known:
            judged = _accept(case, judged, known, corrected.get(case.name), asked)
        smallest = detectable(seen, asked)
        decided.append(_with_figures(_within_budget(case, judged), seen, smallest))
    return decided


def _decide_alone(case: MetricCase, *, has_baseline: bool) -> GatedMetric:
    """Return what can be said of a metric that only one side has, or none."""
    if not case.current:
        what = "the baseline has it" if case.baseline else "it must hold"
        reason = f"{what}, but the runs did not record it"
        return _make_metric(case, "inconclusive", reason)
    # An operator that is not among the hottest of the baseline may well have been there.
    missing = has_baseline and case.level == "error" and not case.name.startswith(HOT)
    made = _make_metric(case, "inconclusive" if missing else "new", "the baseline does not have it")
    made = msgspec.structs.replace(made, after=statistics.median(case.current))
    return _within_budget(case, made)


def _make_metric(case: MetricCase, verdict: str, reason: str) -> GatedMetric:
    return GatedMetric(
        name=case.name,
        level=case.level,
        unit=case.unit,
        verdict=verdict,
        reason=reason,
        baseline=case.baseline,
        current=case.current,
        tolerance=case.tolerance,
        floor=case.floor,
        budget=case.budget,
    )


def _alpha(case: MetricCase, settings: GateSettings) -> float:
    """Return how sure a change must be: surer where one or two runs stand for a side."""
    enough = enough_runs(case.baseline, case.current)
    return settings.alpha if enough else settings.alpha * _FEW_RUNS_ALPHA


def _judge(
    case: MetricCase, seen: SignificanceTest, p_value: float | None, asked: Wanted
) -> GatedMetric:
    """Return whether a metric got worse, better, neither, or that nobody can tell."""
    change = f"{_change(case, seen)}, {_noise(seen)}"
    beyond_floor = abs(seen.after - seen.before) > case.floor
    if not seen.tested:
        return _judge_without_test(case, seen, change, beyond_floor=beyond_floor)
    if (
        seen.effect < -case.tolerance
        and seen.least < 0
        and beyond_floor
        and (seen.faster or 0.0) < asked.alpha
    ):
        return _make_metric(case, "improvement", change)
    # The median and the other runs may not agree: as long as one is worse, nobody can tell.
    measured = max(seen.effect, seen.change or 0.0)
    sure = p_value is not None and p_value < asked.alpha
    clear = seen.doubt(case.tolerance) < asked.doubt and seen.least > _AGREED * case.tolerance
    if measured <= case.tolerance or not beyond_floor:
        verdict, why = "ok", f"within the tolerance of {percent(case.tolerance)}"
        smallest = detectable(seen, asked) or 0.0
        if measured > case.tolerance:
            why = f"less than the floor of {quantity(case.floor, case.unit)}"
        elif case.name == _MAIN and smallest > _BLIND:
            verdict = "inconclusive"
            blind = f"less than {percent(smallest)} would not have been seen"
            why = f"these runs differ so much that {blind}; make them alike, or add runs"
    elif sure and clear and not seen.disturbed:
        verdict, why = "regression", f"p = {p_value:.2g}"
    elif sure and clear:
        verdict = "inconclusive"
        slow = format_count(seen.disturbed, "run")
        why = f"{slow} of the baseline took as long, so these may be disturbed, too; add runs"
    else:
        verdict = "inconclusive"
        said = "" if p_value is None else f" (p = {p_value:.2g})"
        why = f"too few runs to tell it from noise{said}; {_say_more_runs(case, seen, asked)}"
    return msgspec.structs.replace(_make_metric(case, verdict, f"{change}; {why}"), p_value=p_value)


def _say_more_runs(case: MetricCase, seen: SignificanceTest, asked: Wanted) -> str:
    """Say how many runs would decide it, were the change as large as it seems."""
    more = runs_to_decide(seen, len(case.baseline), len(case.current), asked)
    if more is None or seen.least <= 0:
        return "add runs"
    before, now = more
    if before and case.paired:
        return f"{format_count(now, 'more pair')} of runs would decide it"
    if before:
        return f"{format_count(before, 'more run')} of the baseline and {now} now would decide it"
    return f"{format_count(now, 'more run')} would decide it"


def _judge_without_test(
    case: MetricCase, seen: SignificanceTest, change: str, *, beyond_floor: bool
) -> GatedMetric:
    """Decide by a wider tolerance, where fewer than four runs tell nothing about the noise."""
    wide = max(case.tolerance, FEW_RUNS_TOLERANCE)
    runs = len(case.baseline) + len(case.current)
    few = f"{runs} runs are too few for a test ({FEWEST_RUNS} are needed)"
    effect = min(seen.effect, seen.least, key=abs)
    if not beyond_floor or abs(effect) <= case.tolerance:
        made = _make_metric(case, "ok", f"{change}; {few}")
    elif effect > wide:
        made = _make_metric(
            case, "regression", f"{change}; more than {percent(wide)}, though {few}"
        )
    elif effect < -wide:
        made = _make_metric(case, "improvement", f"{change}; {few}")
    elif effect < 0:
        made = _make_metric(case, "ok", f"{change}; {few}")
    else:
        made = _make_metric(case, "inconclusive", f"{change}; {few}, add runs")
    return msgspec.structs.replace(made, tolerance=wide)


def _accept(
    case: MetricCase,
    judged: GatedMetric,
    known: Acceptance,
    p_value: float | None,
    asked: Wanted,
) -> GatedMetric:
    """Return ``accepted`` if the change is no more than what the project knows of."""
    raised = replace(case, baseline=[value * (1 + known.increase) for value in case.baseline])
    seen = compare(raised.baseline, raised.current, raised.floor, paired=raised.paired)
    again = _judge(raised, seen, seen.slower if p_value is not None else None, asked)
    if again.verdict in {"regression", "inconclusive"}:
        return judged if again.verdict == "regression" else _as_unknown(judged, again)
    reason = f"{judged.reason}; accepted until {known.until}: {known.reason}"
    return msgspec.structs.replace(judged, verdict="accepted", reason=reason)


def _as_unknown(judged: GatedMetric, again: GatedMetric) -> GatedMetric:
    """Return that nobody can tell whether a change is no more than the accepted one."""
    reason = f"{judged.reason}; beyond what is accepted: {again.reason}"
    return msgspec.structs.replace(judged, verdict="inconclusive", reason=reason)


def _within_budget(case: MetricCase, made: GatedMetric) -> GatedMetric:
    """Return ``over budget`` if it is, whatever it was before."""
    now = statistics.median(case.current)
    if case.budget is None or now <= case.budget:
        return made
    spent, budget = quantity(now, case.unit), quantity(case.budget, case.unit)
    over = f"{spent} are more than the budget of {budget}"
    reason = f"{over}; {made.reason}" if case.baseline else over
    return msgspec.structs.replace(made, verdict="over budget", reason=reason)


def _with_figures(made: GatedMetric, seen: SignificanceTest, smallest: float | None) -> GatedMetric:
    return msgspec.structs.replace(
        made,
        before=seen.before,
        after=seen.after,
        change=seen.change,
        noise=seen.noise,
        detectable=smallest,
    )


def _change(case: MetricCase, seen: SignificanceTest) -> str:
    sides = f"{quantity(seen.before, case.unit)} -> {quantity(seen.after, case.unit)}"
    if seen.change is None:
        return sides
    return f"{percent(seen.change, signed=True)} ({sides})"


def _noise(seen: SignificanceTest) -> str:
    return "noise unknown" if seen.noise is None else f"noise {percent(seen.noise)}"
