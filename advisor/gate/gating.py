"""The gate: runs against a baseline and budgets, to a verdict that CI can act on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.gate import baselines, changes, comparability
from npufix.advisor.gate.deciding import cases, decide
from npufix.advisor.gate.new_findings import Sorted, measure_change, sort_findings
from npufix.advisor.gate.significance import FEWEST_RUNS
from npufix.advisor.project.gate_settings import FAILURES
from npufix.reports.gate_report import Change, GatedMetric, GateReport
from npufix.reports.report import Problem, tool
from npufix.rules.shared.quantities import format_count, percent

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from npufix.advisor.gate.measuring import MeasuredRun
    from npufix.advisor.project.gate_settings import Acceptance, GateSettings
    from npufix.reports.baseline import Baseline
    from npufix.reports.measurement import Measurement

PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"
_STATUS = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}
_REGRESSION, _BUDGET, _NEW = FAILURES
_CATEGORY = {"regression": _REGRESSION, "over budget": _BUDGET}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the gate is to compare with, and on which day."""

    settings: GateSettings
    path: Path | None
    """Of the baseline; None: budgets only."""
    baseline: Baseline | None
    today: dt.date
    partners: Sequence[Measurement] = ()
    """The runs of the baseline, where they are read with those now."""
    paired: bool = False
    """Each of the runs now was taken in turn with the partner at its place."""
    notes: Sequence[Problem] = ()


@dataclass(slots=True)
class _Reasons:
    """Why the gate is not green, by how bad it is."""

    failed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)

    def verdict(self) -> str:
        """Return the verdict; what is measured on a part of a run says nothing at all."""
        if self.partial:
            return INCONCLUSIVE
        return FAIL if self.failed else INCONCLUSIVE if self.unknown else PASS


def gate(measured: Sequence[MeasuredRun], asked: Asked) -> GateReport:
    """Decide about runs (at least one)."""
    runs = [each.measurement for each in measured]
    settings, baseline = asked.settings, asked.baseline
    reasons = _Reasons()
    problems = [*asked.notes, *(problem for each in measured for problem in each.report.problems)]
    _check_runs([*asked.partners, *runs], reasons)
    comparable = _check_comparable(runs, asked, reasons, problems)
    _check_baseline(asked, reasons, problems)
    valid = [entry for entry in settings.accept if entry.until >= asked.today]
    problems += [
        _report_expired(entry, settings) for entry in settings.accept if entry not in valid
    ]
    accepted = {entry.metric: entry for entry in valid if entry.metric}
    metrics = decide(
        cases(
            baseline if comparable else None, runs, settings, asked.partners if asked.paired else ()
        ),
        settings,
        accepted,
        has_baseline=baseline is not None and comparable,
    )
    problems += comparability.meaningless(settings, asked.today, metrics)
    if baseline and comparable and not comparability.knows_workload(baseline):
        metrics = [comparability.less_work(metric) for metric in metrics]
    every = changes.changes(baseline, runs) if baseline and comparable else []
    metrics = [_finish_metric(metric, settings, every) for metric in metrics]
    found = sort_findings(
        baseline if comparable else None, [each.report for each in measured], settings, valid
    )
    _weigh(metrics, found, settings, reasons)
    if asked.path is None:
        metrics = [metric for metric in metrics if metric.budget is not None]
    if baseline and not comparable:
        metrics = [_mark_not_compared(metric) for metric in metrics]
    problems += _sources(runs, asked) if comparable else []
    problems += _whole_recordings(runs)
    problems += [_report_noticed(item.rule, item.name, item.place) for item in found.noticed]
    if baseline and comparable:
        _check_evidence(metrics, settings, reasons, with_findings=found.compared)
    verdict = reasons.verdict()
    return GateReport(
        tool=tool(),
        verdict=verdict,
        headline=_headline(verdict, metrics, reasons, asked),
        exit_status=_STATUS[verdict],
        baseline=str(asked.path) if asked.path else "",
        runs=[run.origin for run in runs],
        environment=runs[0].environment,
        metrics=metrics,
        new_findings=found.failing if _NEW in settings.fail_on else [],
        accepted_findings=found.accepted,
        gone=found.gone,
        made=measure_change(baseline, runs, found) if baseline and comparable else None,
        explanation=_explanation(metrics, every, runs),
        reasons=[*reasons.partial, *reasons.failed, *reasons.unknown],
        # Each once: the runs of one job lack the same things.
        problems=list({(Path(p.where).name, p.what): p for p in reversed(problems)}.values())[::-1],
        source=runs[0].source,
        known=len(baseline.findings) if baseline else 0,
        paired=asked.paired and comparable,
        next_steps=_next_steps(asked, runs, metrics, verdict),
    )


def _check_runs(runs: Sequence[Measurement], reasons: _Reasons) -> None:
    for run in runs:
        reasons.partial += [f"{run.origin} is not whole: {what}" for what in run.partial[:1]]
        if not run.metrics:
            reasons.partial.append(f"{run.origin} holds nothing to compare")
        reasons.partial += [f"{run.origin}: {what}" for what in comparability.implausible(run)]


def _check_comparable(
    runs: Sequence[Measurement], asked: Asked, reasons: _Reasons, problems: list[Problem]
) -> bool:
    """Tell whether numbers can be compared: new runs of the same work where the baseline ran."""
    baseline, same = asked.baseline, True
    for origin, what in comparability.other_environment(baseline, [*asked.partners, *runs]):
        if asked.settings.on_different_environment == "warn":
            remedy = "a difference may come from that; make a baseline of this environment"
            problems.append(Problem(origin, f"{origin} {what}", remedy))
        else:
            same = False
            reasons.unknown.append(f"{origin} {what}")
    if baseline is None:
        return same
    for origin in comparability.own_runs(baseline, runs):
        same = False
        what = f"{origin} is one of the runs that {asked.path} was made of: all of its times are"
        reasons.unknown.append(f"{what}; collect runs of the changed program")
    for run in [*asked.partners, *runs] if same else ():
        if different := comparability.other_workload(baseline, run):
            same = False
            what = f"{run.origin} did other work than the baseline: {'; '.join(different)}"
            reasons.unknown.append(f"{what}; run the same, or make a baseline of it")
    if not asked.partners:  # these ran where the others ran
        problems += comparability.unknown_environment(baselines.environment_of(runs[0]), "the run")
    problems += comparability.unknown_workload(baseline)
    return same


def _check_baseline(asked: Asked, reasons: _Reasons, problems: list[Problem]) -> None:
    if asked.baseline is not None or asked.path is None:
        return
    what = f"there is no baseline {asked.path}"
    remedy = f"make it with npufix baseline update DUMP... -o {asked.path}"
    if asked.settings.on_missing_baseline == "pass":
        problems.append(Problem(str(asked.path), what, remedy))
    else:
        reasons.unknown.append(f"{what}; {remedy}")


def _check_evidence(
    metrics: Sequence[GatedMetric],
    settings: GateSettings,
    reasons: _Reasons,
    *,
    with_findings: bool,
) -> None:
    """Refuse to be green because nothing that may fail was compared."""
    compared = [m.name for m in metrics if m.before is not None and m.after is not None]
    wanted = [name for name, own in settings.metrics.items() if own.level == "error"]
    if wanted and not set(wanted) & set(compared):
        what = f"neither {' nor '.join(wanted)} is both in the baseline and in the runs"
        reasons.unknown.append(f"{what}, so nothing that may fail is compared")
    elif not compared and not with_findings:
        reasons.unknown.append("nothing is compared: every metric is off, and no source is given")


def _whole_recordings(runs: Sequence[Measurement]) -> list[Problem]:
    """Say what numbers are of where there are no steps."""
    what = "no step is marked, so all is of the whole recording: runs must hold equally many steps"
    remedy = "call profiler.step() after each step"
    return [Problem(run.origin, what, remedy) for run in runs if run.unit == "recording"][:1]


def _sources(runs: Sequence[Measurement], asked: Asked) -> list[Problem]:
    """Say why findings are not compared, where only one side had a source."""
    has = all(run.source for run in runs)
    if asked.baseline is None or asked.baseline.with_source == has:
        return []
    what = "findings are not compared: the baseline was made with"
    if has:
        remedy = "npufix baseline update with --source"
        if asked.partners:
            remedy = "give --base-source, the source of base"
        return [Problem(str(asked.path), f"{what}out a source", remedy)]
    return [Problem(str(asked.path), f"{what} a source, and none is given", "give --source")]


def _report_expired(entry: Acceptance, settings: GateSettings) -> Problem:
    what = f"the acceptance of {entry.what} ended on {entry.until}: {entry.reason}"
    remedy = "mend it, or remove or renew the entry in gate.accept"
    return Problem(settings.where, what, remedy)


def _report_noticed(rule: str, name: str, place: str) -> Problem:
    what = f"{rule} {name} is new; it is about the run, or of a rule that does not fail the gate"
    return Problem(place or "the run", what, f"see npufix rules show {rule}")


def _finish_metric(
    metric: GatedMetric, settings: GateSettings, every: Sequence[Change]
) -> GatedMetric:
    """Return a metric with what explains it, and with the level that it has in the end."""
    category = _CATEGORY.get(metric.verdict)
    if category is None:
        return metric
    level = metric.level if category in settings.fail_on else "warn"
    why = changes.of_metric(metric.name, every)
    return msgspec.structs.replace(metric, level=level, why=why)


def _mark_not_compared(metric: GatedMetric) -> GatedMetric:
    if metric.verdict != "new":
        return metric
    reason = "not compared with the baseline: see above"
    return msgspec.structs.replace(metric, verdict="inconclusive", reason=reason)


def _weigh(
    metrics: Sequence[GatedMetric], found: Sorted, settings: GateSettings, reasons: _Reasons
) -> None:
    for metric in metrics:
        if metric.level == "error" and metric.verdict in _CATEGORY:
            reasons.failed.append(f"{metric.name}: {metric.reason}")
        elif metric.level == "error" and metric.verdict == "inconclusive":
            reasons.unknown.append(f"{metric.name}: {metric.reason}")
    if _NEW in settings.fail_on:
        said = "new finding" if settings.only_new else "finding"
        reasons.failed += [
            f"{said}: {item.rule} {item.name} {item.place}".rstrip() for item in found.failing
        ]


def _headline(verdict: str, metrics: Sequence[GatedMetric], reasons: _Reasons, asked: Asked) -> str:
    if verdict == FAIL:
        more = len(reasons.failed) - 1
        return reasons.failed[0] + (f" (and {more} more)" if more else "")
    if verdict == INCONCLUSIVE:
        return [*reasons.partial, *reasons.unknown][0]
    step = next((m for m in metrics if m.change is not None), None)
    return _summarize_passed(step, metrics) if step else _explain_nothing_compared(metrics, asked)


def _explain_nothing_compared(metrics: Sequence[GatedMetric], asked: Asked) -> str:
    if any(metric.budget is not None for metric in metrics):
        return "nothing is over its budget"
    if asked.baseline is None:
        return f"there is no baseline {asked.path} yet, so nothing is compared"
    return "no new finding; every metric is off"


def _summarize_passed(step: GatedMetric, metrics: Sequence[GatedMetric]) -> str:
    """Say how the most important metric of those that both sides have changed."""
    said = f"{step.name} {percent(step.change or 0.0, signed=True)}"
    runs = len(step.baseline) + len(step.current)
    if warned := sum(metric.verdict in _CATEGORY for metric in metrics):
        return f"{said}; {format_count(warned, 'warning')}, nothing that fails"
    if step.verdict == "accepted":
        return f"{said}, accepted"
    if runs < FEWEST_RUNS:
        return (
            f"{said}; {runs} runs are too few for a test, so only more than"
            f" {percent(step.tolerance)} would have failed"
        )
    return f"no regression; {said}"


def _explanation(
    metrics: Sequence[GatedMetric], every: Sequence[Change], runs: Sequence[Measurement]
) -> list[str]:
    """Say what the difference comes from, where there is one."""
    told = [m for m in metrics if m.verdict in {*_CATEGORY, "improvement", "accepted"}]
    step = next((m for m in metrics if m.name == "step-time"), None)
    if not told or step is None or step.before is None or step.after is None:
        return []
    return changes.explanation(every, step.before, step.after, runs)


def _next_steps(
    asked: Asked, runs: Sequence[Measurement], metrics: Sequence[GatedMetric], verdict: str
) -> list[str]:
    """Return commands; what got faster is given away again unless the baseline says so."""
    dumps = " ".join(run.origin for run in runs)
    if asked.path is None:
        return []
    if asked.partners:
        pair = (asked.partners[0].origin, runs[0].origin)
        kept = verdict == FAIL and all(Path(origin).exists() for origin in pair)
        return [f"npufix compare {' '.join(pair)}"] if kept else []
    if verdict == PASS:
        better = any(metric.verdict == "improvement" for metric in metrics)
        return [f"npufix baseline update {dumps} -o {asked.path}"] if better else []
    if asked.baseline is None:
        return [f"npufix baseline update {dumps} -o {asked.path}"]
    return [f"npufix compare {asked.path} {runs[0].origin}"] if verdict == FAIL else []
