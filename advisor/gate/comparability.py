"""Whether runs may be compared with a baseline at all, and what nobody can check."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.gate import baselines
from npufix.advisor.project.gate_settings import METRICS
from npufix.reports.baseline import UNITS
from npufix.reports.report import Problem
from npufix.rules.shared.quantities import percent, quantity

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.advisor.project.gate_settings import GateSettings
    from npufix.reports.baseline import Baseline, BaselineEnvironment
    from npufix.reports.gate_report import GatedMetric
    from npufix.reports.measurement import Measurement

_LONGEST_STEP_NS = 86_400e9
"""A day."""
_OTHER_SHAPES = 0.25
"""Of the time in hot operators, on both sides: a changed layer is less, another batch is more."""
_OTHER_CALLS = 0.5
"""Of that time, as much more or less often, in several Types: what recomputes its activations calls
a third of its operators twice, and what joins three products into one has fewer of one Type."""
_LOST = 0.5
"""Of that time, in operators that the run has not, or hardly, with little in their place: a
program that breaks off is no faster one."""
_RARELY = 4
"""Times less often; twice less is what no longer recomputes its activations."""
_IN_PLACE = 0.1
"""Of the time that was lost: what is fused leaves more than that."""
_MOVED = 0.5
"""Of that time, in operators that one side runs on these shapes, the other on more shapes or on
fewer: another set of lengths."""
_MOVED_CALLS = 0.6
"""At most so many of the calls are left on a shape; data of several lengths varies by less."""
_ALONE = 0.01
"""Of the step: where others are waited for by less, all of it may as well be hidden now."""
_SAME_CALLS = 0.1
_SAME_RATIO = 0.02
_TOLD = 3
_WIDE_TOLERANCE = 0.5
_HIGH_ALPHA = 0.2
_LOW_ALPHA = 1e-5
_LONG_ACCEPTANCE_DAYS = 731


@dataclass(frozen=True, slots=True)
class _Operator:
    """Of a side: a Type on shapes, or a Type alone where shapes are not recorded."""

    kind: str
    spent: float
    calls: float


def other_environment(
    baseline: Baseline | None, runs: Sequence[Measurement]
) -> Iterator[tuple[str, str]]:
    """Yield the runs that are of another environment than the baseline, and what differs."""
    first = baselines.environment_of(runs[0])
    wanted = baseline.environment if baseline else first
    for run in runs:
        if different := baselines.differences(wanted, baselines.environment_of(run)):
            yield run.origin, f"is of another environment: {'; '.join(different)}"


def unknown_environment(environment: BaselineEnvironment, where: str) -> list[Problem]:
    """Say which facts neither side records: they may differ, and nobody sees it."""
    unknown = [name for name in baselines.FACTS if getattr(environment, name) is None]
    if environment.profiler == "kineto" or not unknown:
        return []
    names = ", ".join(name.replace("_", " ") for name in unknown)
    what = f"not recorded, so nobody can tell whether it is the same: {names}"
    given = " ".join(f"--environment {name}=..." for name in unknown[:2])
    return [Problem(where, what, f"give it to npufix baseline update and npufix gate: {given}")]


def own_runs(baseline: Baseline, runs: Sequence[Measurement]) -> list[str]:
    """Return the runs that the baseline was made of, however they are called."""
    return [run.origin for run in runs if baselines.holds(baseline, run)]


def implausible(run: Measurement) -> Iterator[str]:
    """Say what no program can have taken."""
    for name in ("step-time", "compute"):
        metric = run.metrics.get(name)
        if metric is None:
            continue
        if metric.value <= 0:
            yield f"its {name} is 0: nothing was measured"
        if metric.value > _LONGEST_STEP_NS:
            yield f"its {name} is more than a day"


def other_workload(baseline: Baseline, run: Measurement) -> list[str]:
    """Say how the hot operators differ, if the run did other work than the baseline.

    Another batch, length, depth or accumulation is no change of speed: on both sides a good part of
    the time is in operators that the other side ran on other shapes, or not as often. An operator
    whose Type only one side has is a changed program; so is one that only one side is slow in.
    """
    if _is_alone(baseline, run):
        return ["it waits for no other rank, and the baseline does"]
    steady = {
        name: operator
        for name, operator in baseline.hot_ops.items()
        # What not every run did is of data, as the shapes of a batch of texts.
        if len(operator.runs) >= baseline.run_count
    }
    before = {
        name: _Operator(_kind(name), statistics.median(op.runs) * UNITS["us"], op.calls)
        for name, op in steady.items()
    }
    every = {
        name: _Operator(_kind(name), spent, calls)
        for name, (spent, calls) in baselines.by_key(run).items()
    }
    # A full baseline keeps the hottest only: what is colder may have been there.
    full = len(baseline.hot_ops) >= baselines.HOT_OPERATORS
    least = min((op.spent for op in before.values()), default=0.0) if full else 0.0
    now = {
        name: op for name, op in every.items() if name in baseline.hot_ops or op.spent > 2 * least
    }
    changed: set[str] = set()
    ways = (_other_shapes, _OTHER_SHAPES), (_find_moved, _MOVED), (_other_calls, _OTHER_CALLS)
    for find, limit in ways:
        there, here = find(before, every), find(now, before)
        if min(_share(there, before), _share(here, now)) >= limit:
            changed |= {*there, *here}
    changed |= set(_find_lost(before, every))
    named = sorted(changed, key=lambda n: (-max(_sum_spent(n, before), _sum_spent(n, now)), n))
    return [_differ(name, before.get(name), every.get(name)) for name in named[:_TOLD]]


def _is_alone(baseline: Baseline, run: Measurement) -> bool:
    """Tell whether a run waits for no other rank, where the baseline did for a part that counts."""
    known, step = (baseline.metrics.get(name) for name in ("exposed-communication", "step-time"))
    now = run.metrics.get("exposed-communication")
    if not known or not step or not now:
        return False
    waited = statistics.median(known.values) / statistics.median(step.values)
    return waited > _ALONE and not now.value


def _other_shapes(own: Mapping[str, _Operator], other: Mapping[str, _Operator]) -> list[str]:
    """Return what the other side ran on other shapes only."""
    new_kinds = {op.kind for name, op in other.items() if name not in own}
    return [name for name, op in own.items() if name not in other and op.kind in new_kinds]


def _find_moved(own: Mapping[str, _Operator], other: Mapping[str, _Operator]) -> list[str]:
    """Return what the other side runs less often on this shape, and more often on others."""
    none = _Operator("", 0.0, 0.0)

    def fewer(one: Mapping[str, _Operator], two: Mapping[str, _Operator]) -> list[str]:
        return [
            name for name, op in one.items()
            if two.get(name, none).calls <= _MOVED_CALLS * op.calls
        ]  # fmt: skip

    grown = {other[name].kind for name in fewer(other, own)}
    return [name for name in fewer(own, other) if own[name].kind in grown]


def _other_calls(own: Mapping[str, _Operator], other: Mapping[str, _Operator]) -> list[str]:
    """Return what the other side ran more or less often, all of it in the same ratio."""
    ratios = {
        name: op.calls / other[name].calls
        for name, op in own.items()
        if name in other
        and other[name].calls
        and abs(op.calls / other[name].calls - 1) > _SAME_CALLS
    }
    found: list[str] = []
    for ratio in ratios.values():
        alike = [name for name, one in ratios.items() if abs(one / ratio - 1) <= _SAME_RATIO]
        if len({own[name].kind for name in alike}) > 1:
            found = max(found, alike, key=lambda names: _share(names, own))
    return found


def _find_lost(before: Mapping[str, _Operator], now: Mapping[str, _Operator]) -> list[str]:
    """Return what the baseline ran and the run did not, if most is lost and nothing is new."""
    rest = _Operator("", 0.0, 0.0)
    lost = [name for name, op in before.items() if _RARELY * now.get(name, rest).calls <= op.calls]
    more = sum(
        op.spent
        for name, op in now.items()
        if op.calls > (1 + _SAME_CALLS) * before.get(name, rest).calls
    )
    was = sum(before[name].spent for name in lost)
    return lost if _share(lost, before) >= _LOST and more < _IN_PLACE * was else []


def _share(names: Sequence[str], operators: Mapping[str, _Operator]) -> float:
    whole = sum(operator.spent for operator in operators.values())
    return sum(operators[name].spent for name in names) / whole if whole else 0.0


def _sum_spent(name: str, operators: Mapping[str, _Operator]) -> float:
    return operators[name].spent if name in operators else 0.0


def _differ(name: str, before: _Operator | None, now: _Operator | None) -> str:
    title = name.replace("|", " on ", 1)
    if before is None:
        return f"{title} is only in the run"
    if now is None:
        return f"{title} is only in the baseline"
    return f"{title} runs {now.calls:.4g} times a step instead of {before.calls:.4g}"


def _kind(name: str) -> str:
    return name.partition("|")[0]


def knows_workload(baseline: Baseline) -> bool:
    """Tell whether another batch or length would be seen."""
    return any(
        name.partition("|")[2] and len(operator.runs) >= baseline.run_count
        for name, operator in baseline.hot_ops.items()
    )


def unknown_workload(baseline: Baseline) -> list[Problem]:
    """Say that another batch or length would not be seen."""
    if knows_workload(baseline):
        return []
    what = "the baseline holds no shapes: another batch or length of the input would not be seen"
    remedy = "collect with record_shapes=True and a level that records them"
    return [Problem("baseline", what, remedy)]


def less_work(metric: GatedMetric) -> GatedMetric:
    """Return what is faster than the baseline as unknown: half of the batch takes half the time."""
    if metric.level != "error" or (metric.change or 0.0) >= -metric.tolerance:
        return metric
    why = "the baseline holds no shapes, so this may be another batch or length of the input"
    reason = f"{metric.reason}; {why}; make a baseline with record_shapes=True"
    return msgspec.structs.replace(metric, verdict="inconclusive", reason=reason)


def meaningless(
    settings: GateSettings, today: dt.date, metrics: Sequence[GatedMetric]
) -> list[Problem]:
    """Name the settings with which hardly anything can fail; ``metrics``: what was measured."""
    found = [*_wide(settings, metrics), *_blind(settings)]
    for entry in settings.accept:
        if (entry.until - today).days > _LONG_ACCEPTANCE_DAYS:
            found.append(f"{entry.what} is accepted until {entry.until}, for good")
        if entry.increase > _WIDE_TOLERANCE:
            found.append(f"{entry.what} may grow by {percent(entry.increase)}")
    where = settings.where or "command line"
    return [Problem(where, what, "choose one that a regression can fail") for what in found]


def _wide(settings: GateSettings, metrics: Sequence[GatedMetric]) -> Iterator[str]:
    """Yield the tolerances and floors that hold nearly any change."""
    for name, own in settings.metrics.items():
        tolerance = settings.tolerance_of(name)
        if own.level == "error" and tolerance > _WIDE_TOLERANCE:
            yield f"the tolerance of {name} is {percent(tolerance)}"
    for metric in metrics:
        if metric.level == "error" and metric.floor > _WIDE_TOLERANCE * (metric.before or math.inf):
            floor, whole = (quantity(n or 0.0, metric.unit) for n in (metric.floor, metric.before))
            yield f"the floor of {metric.name} is {floor} of {whole}"


def _blind(settings: GateSettings) -> Iterator[str]:
    """Yield the settings by which nothing is tested, or by which everything fails."""
    if settings.alpha > _HIGH_ALPHA:
        yield f"alpha is {settings.alpha:g}: noise alone fails the gate"
    if settings.alpha < _LOW_ALPHA:
        yield f"alpha is {settings.alpha:g}: hardly any number of runs is enough to fail"
    if not settings.fail_on:
        yield "fail-on is empty, so nothing fails"
    elif "regression" not in settings.fail_on:
        yield "fail-on is without regression, so no slower run fails"
    times = [own for name, own in settings.metrics.items() if METRICS[name][0] == "ns"]
    if times and all(own.level != "error" for own in times):
        yield "no time is an error, so no slower run fails"
