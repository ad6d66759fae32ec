"""Verdicts as the reports show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports import report

if TYPE_CHECKING:
    from npufix.rewriters.verification.verdict import Times, Tried, Verdict


def report_verdict(verdict: Verdict, worth: str = "") -> report.Verdict:
    """Return a verdict as it stands in a report; ``worth``: what decided whether it pays."""
    return report.Verdict(
        status=verdict.status.value,
        ground=verdict.ground,
        scope=verdict.scope,
        reason=verdict.reason,
        cases=verdict.cases,
        measures=[
            report.Measure(m.what, m.dtype, m.error_original, m.error_patched)
            for m in verdict.measures
        ],
        counterexample=verdict.counterexample,
        on=verdict.on,
        script=verdict.script,
        launches=_launches(verdict),
        times=_times(verdict.times),
        worth=worth,
        notes=list(verdict.notes),
        tried=_tried(verdict.tried),
        synchronisations=_synchronisations(verdict),
    )


def _tried(found: Tried) -> report.Tried | None:
    if not found.arguments and not found.errors:
        return None
    return report.Tried(
        list(found.arguments),
        found.more,
        list(found.dtypes),
        list(found.values),
        list(found.modes),
        list(found.errors),
        list(found.lines),
    )


def _times(found: Times | None) -> report.Times | None:
    if found is None:
        return None
    one, other = found.original, found.patched
    return report.Times(
        report.Timing(one.median_us, one.low_us, one.high_us),
        report.Timing(other.median_us, other.low_us, other.high_us),
        found.repetitions,
        found.case,
        found.with_backward,
    )


def _synchronisations(verdict: Verdict) -> report.Synchronisations | None:
    found = verdict.synchronisations
    if found is None:
        return None
    return report.Synchronisations(list(found.original), list(found.patched), found.saved)


def _launches(verdict: Verdict) -> report.Launches | None:
    found = verdict.launches
    if found is None:
        return None
    return report.Launches(
        list(found.original),
        list(found.patched),
        list(found.original_backward),
        list(found.patched_backward),
        found.saved,
    )
