"""What a report says, one notice a finding or metric: what servers of CI show at a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.reports.gate_report import GateReport
from npufix.reports.wording.report import interval, plain
from npufix.rules.shared.quantities import milliseconds, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.reports.data.sources import Sources
    from npufix.reports.gate_report import GatedMetric
    from npufix.reports.report import Finding, Report

ERROR, WARNING, NOTE = "error", "warning", "note"
_ORDER = {ERROR: 0, WARNING: 1, NOTE: 2}
_BAD = frozenset({"regression", "over budget"})


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell, at a line of the repository where there is one."""

    rule: str
    title: str
    message: str
    level: str
    """``error`` fails a gate, ``warning`` is slow, ``note`` is only advice."""
    path: str
    """From the repository on, "" if nothing stands for it."""
    line: int
    fingerprint: str
    stands_for_run: bool
    """It is about the run as a whole and has no line of its own: the place only stands for it."""
    finding: Finding | None = None
    metric: GatedMetric | None = None
    accepted: bool = False


def notices(made: Report | GateReport, sources: Sources) -> list[Notice]:
    """Return what there is to tell, in the order of the report."""
    return [*(_of_gate(made, sources) if isinstance(made, GateReport) else _of(made, sources))]


def most_important(found: Sequence[Notice], most: int) -> list[Notice]:
    """Return what a server takes; errors first where that is not all, else in the given order."""
    if len(found) <= most:
        return [*found]
    return sorted(found, key=lambda n: (_ORDER[n.level], n.accepted))[:most]


def _of(made: Report, sources: Sources) -> Iterator[Notice]:
    for finding in made.findings:
        level = NOTE if finding.safety == "advice" else WARNING
        yield _of_finding(finding, sources, level)


def _of_gate(made: GateReport, sources: Sources) -> Iterator[Notice]:
    for metric in made.metrics:
        if metric.verdict in _BAD:
            level = ERROR if metric.level == ERROR else WARNING
            path = sources.relative(_from_here(made.baseline)) or sources.fallback
            yield Notice(
                rule=plain(f"gate/{metric.name.partition(':')[0]}"),
                title=plain(f"{metric.name}: {metric.verdict}"),
                message=plain(metric.reason),
                level=level,
                path=path,
                line=1 if path else 0,
                fingerprint=f"gate:{metric.name}",
                stands_for_run=True,
                metric=metric,
            )
    failing = made.exit_status == 1
    for finding in made.new_findings:
        yield _of_finding(finding, sources, ERROR if failing else WARNING)
    for finding in made.accepted_findings:
        yield _of_finding(finding, sources, NOTE, accepted=True)


def _from_here(path: str) -> str:
    """Return the path of a file that the user named, which is not relative to the source."""
    from pathlib import Path

    return str(Path(path).resolve()) if path else ""


def _of_finding(
    finding: Finding, sources: Sources, level: str, *, accepted: bool = False
) -> Notice:
    path, line = sources.relative(finding.path), finding.line
    nowhere = finding.kind == "run" and not path
    if nowhere:
        path, line = sources.fallback, 1
    return Notice(
        rule=finding.rule,
        title=plain(f"{finding.rule} {finding.name}"),
        message=message(finding),
        level=level,
        path=path,
        line=max(1, line) if path else 0,
        fingerprint=finding.fingerprint,
        stands_for_run=nowhere,
        finding=finding,
        accepted=accepted,
    )


def message(finding: Finding) -> str:
    """Return a finding in a few lines: what, what it costs, what to do."""
    said = finding.what if finding.kind == "run" and finding.what else finding.summary
    lines = [f"{plain(said).rstrip('.')}."]
    if finding.device_ns:
        lines.append(
            f"It takes {milliseconds(finding.device_ns)} ({percent(finding.share)}) of a step."
        )
    if finding.saving is not None:
        lines.append(f"Changing it saves {interval(finding.saving)} per step.")
    if finding.replacement and not finding.problem:
        wanted = [c.name for c in finding.conditions if c.basis == "open"]
        only = f" (if {', '.join(wanted)})" if wanted else ""
        lines.append(f"Write instead{only}: {_one_line(finding.replacement)}")
    elif finding.advice:
        lines.append(_one_line(finding.advice))
    elif finding.problem:
        lines.append(f"Not written by npufix: {_one_line(finding.problem)}")
    return "\n".join(lines)


def _one_line(text: str) -> str:
    parts = [plain(line.strip()) for line in text.splitlines() if line.strip()]
    joined = "; ".join(parts)
    return joined if len(joined) <= _LONGEST else f"{joined[: _LONGEST - 3]}..."


_LONGEST = 400
