"""Which findings are new, which of them fail the gate, and which are accepted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npufix.advisor.gate import baselines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.advisor.project.gate_settings import Acceptance, GateSettings
    from npufix.reports.baseline import Baseline
    from npufix.reports.report import Finding, Report


@dataclass(frozen=True, slots=True)
class Sorted:
    """The findings of the runs, by what becomes of them."""

    failing: list[Finding] = field(default_factory=list)
    noticed: list[Finding] = field(default_factory=list)
    """New, but of no rule that fails the gate."""
    accepted: list[Finding] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
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
    result = Sorted(compared=comparable and with_source)
    for item in sorted(present, key=lambda f: (f.path, f.line, f.rule, f.fingerprint)):
        is_new = comparable and item.fingerprint not in known
        fails = _fails(item, settings)
        if not (is_new or (fails and not settings.only_new)):
            continue
        if any(_matches(entry, item) for entry in accept):
            result.accepted.append(item)
        else:
            (result.failing if fails else result.noticed).append(item)
    if comparable and with_source:
        result.gone.extend(
            f"{what} ({name})" for name, what in sorted(known.items()) if name not in often
        )
    return result


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
