"""Verdicts as the reports show them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from npufix.reports import report
from npufix.rewriters.verdict import Status

if TYPE_CHECKING:
    from collections.abc import Collection

    from npufix.rewriters.verdict import Verdict

NO_LAUNCH_SAVED = "does not save a launch"


def shown(verdict: Verdict) -> report.Verdict:
    """Return a verdict as it stands in a report."""
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
    )


def with_launches_judged(
    verdict: Verdict, replaces: Collection[str], becomes: Collection[str]
) -> Verdict:
    """Return the verdict, saying so if an equal change launches what it was to replace.

    Copies from the host, and a kernel that is slow for one dtype only, are in no list of launches:
    where the rule is about those, the launches are no evidence against it.
    """
    found = verdict.launches
    right = verdict.status is Status.EQUIVALENT
    if not right or found is None or found.saved > 0:
        return verdict
    before = Counter(found.original + found.original_backward)
    gone = before - Counter(found.patched + found.patched_backward)
    slow = {kernel for kernel in before if _is(kernel, replaces) and not _is(kernel, becomes)}
    if not slow or slow & gone.keys():
        return verdict
    return dataclasses.replace(verdict, reason=NO_LAUNCH_SAVED)


def _is(kernel: str, names: Collection[str]) -> bool:
    """Say whether ``aclnnRepeatInterleaveInt`` is what a profile calls ``RepeatInterleave``."""
    plain = kernel.removeprefix("aclnn").removeprefix("Inplace").lower()
    return any(plain.startswith(n.lower()) or n.lower().startswith(plain) for n in names)


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
