"""Verdicts as the reports show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports import report

if TYPE_CHECKING:
    from npufix.rewriters.verification.verdict import Verdict


def report_verdict(verdict: Verdict, worth: str = "") -> report.Verdict:
    """Return a verdict as it stands in a report; ``worth``: what decided whether it pays."""
    tried = verdict.tried
    return report.Verdict(
        status=verdict.status.value,
        ground=verdict.ground,
        scope=verdict.scope,
        reason=verdict.reason,
        cases=verdict.cases,
        measures=verdict.measures,
        counterexample=verdict.counterexample,
        on=verdict.on,
        script=verdict.script,
        launches=verdict.launches,
        times=verdict.times,
        worth=worth,
        notes=verdict.notes,
        tried=tried if tried.arguments or tried.errors else None,
        synchronisations=verdict.synchronisations,
    )
