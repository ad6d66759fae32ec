"""Which findings are new, which of them fail the gate, and which are accepted."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npufix.advisor.gate import baselines
from npufix.advisor.predict.own_pairs import Pair
from npufix.reports.baseline import UNITS
from npufix.reports.code_digest import digest
from npufix.reports.gate_report import MadeChange
from npufix.rules.registry import every_rule
from npufix.rules.substitution import Substitution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.advisor.project.gate_settings import Acceptance, GateSettings
    from npufix.reports.baseline import Baseline
    from npufix.reports.gate_report import GateReport
    from npufix.reports.measurement import Measurement
    from npufix.reports.report import Finding, Report

_COMPUTE = "compute"
_NOISE = 0.02
"""Of the compute time: two runs of the same kernels differ by that."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """The findings of the runs, by what becomes of them."""

    failing: list[Finding] = field(default_factory=list)
    noticed: list[Finding] = field(default_factory=list)
    """New, but of no rule that fails the gate."""
    accepted: list[Finding] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    gone_names: frozenset[str] = frozenset()
    """Their fingerprints."""
    compared: bool = False
    """Findings in code were, with those of the baseline."""


def sort_findings(
    baseline: Baseline | None,
    reports: Sequence[Report],
    settings: GateSettings,
    accept: Sequence[Acceptance],
) -> Sorted:
    """Compare the findings of the runs with those of the baseline.

    One that depends on measured times may show in one run and not in the next, so it counts only
    if more than half of the runs have it. Findings are compared only if both sides had a
    source, or neither: on it depends what is looked for, and what files are called.
    """
    often = Counter(item.fingerprint for made in reports for item in made.findings)
    by_name = {item.fingerprint: item for made in reports for item in made.findings}
    present = [by_name[name] for name, times in often.items() if 2 * times > len(reports)]
    known = baselines.fingerprints(baseline) if baseline else {}
    with_source = all(made.source for made in reports)
    comparable = baseline is not None and baseline.with_source == with_source
    compared = comparable and with_source
    gone = frozenset(name for name in known if name not in often) if compared else frozenset()
    result = Sorted(gone_names=gone, compared=compared)
    for item in sorted(present, key=lambda f: (f.path, f.line, f.rule, f.fingerprint)):
        is_new = comparable and item.fingerprint not in known
        fails = _fails(item, settings)
        if not (is_new or (fails and not settings.only_new)):
            continue
        if any(_matches(entry, item) for entry in accept):
            result.accepted.append(item)
        else:
            (result.failing if fails else result.noticed).append(item)
    result.gone.extend(f"{what} ({name})" for name, what in sorted(known.items()) if name in gone)
    return result


def measure_change(
    baseline: Baseline, runs: Sequence[Measurement], found: Sorted
) -> MadeChange | None:
    """Return what the findings that are gone were said to save, and did.

    Other code brings other kernels, so findings that have come leave nothing to be told.
    """
    rule_of = {name: f.partition(" ")[0] for name, f in baselines.fingerprints(baseline).items()}
    of_run = {rule.id for rule in every_rule() if not isinstance(rule, Substitution)}
    # With each change other operators are the slowest: that is no change of its own.
    gone = [name for name in sorted(found.gone_names) if rule_of[name] not in of_run]
    savings = {name: baseline.kernels_save.get(name) for name in gone}
    known, now = baseline.metrics.get(_COMPUTE), baselines.values(runs, _COMPUTE)
    come = any(item.kind == "code" for item in (*found.failing, *found.noticed, *found.accepted))
    foreseen = [saving for saving in savings.values() if saving is not None]
    if come or not foreseen or len(foreseen) < len(savings) or known is None or not now:
        return None
    before, after = statistics.median(known.values), statistics.median(now)
    low, high = (sum(saving[at] for saving in foreseen) * UNITS["us"] for at in (0, 1))
    noise, measured = _NOISE * before, before - after
    verdict = "held"
    if not low - noise <= measured <= high + noise:
        verdict = "saved more" if measured > high else "saved less"
    rules = sorted({rule_of[name] for name in savings})
    return MadeChange(rules, len(savings), round(low), round(high), round(measured), verdict)


def pair_of(report: GateReport, baseline: Baseline, runs: Sequence[Measurement]) -> Pair | None:
    """Return a made change as a pair for later predictions, if it is one that tells anything.

    The changes of one rule only, and what they were to save has to be more than the noise.
    """
    made, before = report.made, baseline.metrics.get(_COMPUTE)
    if made is None or before is None or len(made.rules) != 1:
        return None
    if made.high_ns < 2 * _NOISE * statistics.median(before.values):
        return None
    run = digest("gate", *baseline.run_digests, *map(baselines.digest, runs))
    chip = (report.environment.chip if report.environment else None) or ""
    return Pair(run, made.rules[0], chip, made.low_ns, made.high_ns, made.measured_ns)


def _fails(item: Finding, settings: GateSettings) -> bool:
    """Tell whether a finding fails the gate.

    By default those in code do: one about the run depends on times, so on noise.
    """
    if settings.findings_fail_on is None:
        return item.kind == "code"
    names = (item.rule.lower(), item.name)
    return any(name.startswith(wanted) for name in names for wanted in settings.findings_fail_on)


def _matches(entry: Acceptance, item: Finding) -> bool:
    if not entry.finding:
        return False
    rule, _, path = entry.finding.partition(":")
    if path:
        return rule.lower() in {item.rule.lower(), item.name} and path == item.path
    return rule in {item.fingerprint, item.name} or rule.lower() == item.rule.lower()
