"""Findings about the ranks of a job together: the cluster table against their small files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.evidence.run_findings import Observed, finding, fingerprint
from npufix.reports import report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rules.cluster_diagnostic import Cluster, ClusterDiagnostic, ClusterObservation

_FEW = 2


def observe_cluster(
    cluster: Cluster, diagnostics: Sequence[ClusterDiagnostic], step_ns: int
) -> tuple[list[Observed], list[report.Problem]]:
    """Return what the diagnostics found, and those that failed; one rank alone shows nothing.

    ``step_ns`` is the step of the report that the findings go into.
    """
    found: list[Observed] = []
    problems: list[report.Problem] = []
    if len(cluster.ranks) < _FEW:
        return found, problems
    for diagnostic in diagnostics:
        try:
            found += [
                _observe(diagnostic, seen, step_ns, number)
                for number, seen in enumerate(diagnostic.check(cluster))
            ]
        except Exception as error:  # noqa: BLE001, PERF203 - one rule's fault must not hide others
            what = f"internal error in {diagnostic.id}: {type(error).__name__}: {error}"
            remedy = "please report it with the dump"
            problems.append(report.Problem(diagnostic.name, what, remedy, damaged=True))
    return found, problems


def _observe(
    diagnostic: ClusterDiagnostic, seen: ClusterObservation, step_ns: int, number: int
) -> Observed:
    return Observed(
        finding=msgspec.structs.replace(
            finding(diagnostic, seen, step_ns),
            # Survives other ranks and lines: the rule, and which of its findings.
            fingerprint=fingerprint(diagnostic, "", number),
            ranks=list(seen.ranks),
        ),
        kernels=frozenset(),
        is_idle=seen.is_idle,
        of_job=True,
        is_communication=seen.is_communication,
    )
