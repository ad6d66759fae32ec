"""From the kernels of a run to what the pictures of the HTML page are drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.advisor.diagnose.pictures.cells import cells, costs
from npufix.advisor.diagnose.pictures.links import link_rates
from npufix.advisor.diagnose.pictures.memory import memory
from npufix.advisor.diagnose.pictures.sources import by_line, sources
from npufix.advisor.diagnose.pictures.timeline import timeline
from npufix.reports.html.details import Details

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports.report import Finding, Report


def page_details(diagnosis: Diagnosis, report: Report, tree: SourceTree | None) -> Details:
    """Return what the page of a diagnosis shows beside its report."""
    evidence, signals = diagnosis.evidence, diagnosis.signals
    if evidence is None:
        return Details(sources=sources({}, report.findings, tree))
    found = costs(evidence)
    return Details(
        cells=cells(found, diagnosis.modules, evidence.steps),
        timeline=timeline(
            evidence,
            _owners(diagnosis, report.findings),
            _waits(diagnosis, report.findings),
            diagnosis.path,
        ),
        links=link_rates(signals.links) if signals is not None else None,
        memory=memory(signals) if signals is not None else None,
        sources=sources(by_line(found, evidence.steps), report.findings, tree),
    )


def _owners(diagnosis: Diagnosis, findings: Sequence[Finding]) -> dict[int, int]:
    """Return the position of the finding of each kernel that belongs to one.

    A kernel of several goes to the one at a line, of these to the most rewarding.
    """
    places = {finding.fingerprint: number for number, finding in enumerate(findings)}
    items = [*reversed(diagnosis.seen), *reversed(diagnosis.found)]
    return {
        kernel: places[item.finding.fingerprint]
        for item in items
        if item.finding.fingerprint in places
        for kernel in item.kernels
    }


def _waits(diagnosis: Diagnosis, findings: Sequence[Finding]) -> dict[str, list[int]]:
    """Return the findings about idle time by the place of what the device waited for."""
    idle = {item.finding.fingerprint for item in diagnosis.seen if item.is_idle}
    found: dict[str, list[int]] = {}
    for number, finding in enumerate(findings):
        for place in finding.places if finding.fingerprint in idle else ():
            found.setdefault(f"{place.path}:{place.line}", []).append(number)
    return found
