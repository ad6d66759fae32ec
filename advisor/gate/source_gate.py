"""The gate without a dump: a source fails on slow patterns that its baseline does not hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.advisor.gate.known_findings import ComparedFindings, Searched, compare
from npufix.reports import report
from npufix.reports.data.sources import Sources
from npufix.reports.gate_report import GateReport
from npufix.rules.registry import all_rules
from npufix.rules.shared.quantities import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports.known_findings import Known
    from npufix.reports.report import Finding

LEVELS = ("safe", "conditional", "advice")
"""What npufix can do about a finding: each includes those before it."""
_FAILED, _DAMAGED = 1, 2


@dataclass(frozen=True, slots=True)
class FailOn:
    """Which new findings fail the gate."""

    levels: frozenset[str] = frozenset(LEVELS)
    rules: frozenset[str] = frozenset()
    """Ids or names, lower case, that fail whatever their level."""

    def fails(self, finding: Finding) -> bool:
        """Tell whether a new finding fails the gate."""
        return finding.safety in self.levels or bool(
            {finding.rule.lower(), finding.name} & self.rules
        )


def fail_on(names: Sequence[str]) -> FailOn:
    """Return what a list of levels and rules stands for; everything where it is empty."""
    if not names:
        return FailOn()
    wanted = [name for name in names if name in LEVELS]
    upto = max((LEVELS.index(name) for name in wanted), default=-1)
    rules = frozenset(name.lower() for name in names if name not in LEVELS)
    return FailOn(frozenset(LEVELS[: upto + 1]), rules)


def summarize_search(tree: SourceTree, problems: Sequence[report.Problem]) -> Searched:
    """Return what a scan of a tree has looked at; nobody knows what a broken file holds."""
    rules = frozenset(rule.id for rule in all_rules() if tree.configuration.wants(rule))
    broken = {where for p in problems for where in (p.where, p.where.rpartition(":")[0])}
    return Searched(Sources(tree.root), frozenset(tree.files) - broken, rules)


def gate(
    diagnosis: Diagnosis,
    tree: SourceTree,
    before: Sequence[Known],
    wanted: FailOn,
    baseline: Path | None,
) -> GateReport:
    """Compare the findings of a source with its baseline; without one all of them are new."""
    made = diagnosis.report
    found = compare(made.findings, before, summarize_search(tree, made.problems))
    failing = [finding for finding in found.new if wanted.fails(finding)]
    damaged = any(problem.damaged for problem in made.problems)
    status = _FAILED if failing else _DAMAGED if damaged else 0
    return GateReport(
        tool=report.tool(),
        verdict={0: "pass", _FAILED: "fail"}.get(status, "inconclusive"),
        headline=_headline(failing, found, has_baseline=baseline is not None),
        exit_status=status,
        baseline=str(baseline or ""),
        runs=[],
        environment=None,
        metrics=[],
        new_findings=failing,
        accepted_findings=[finding for finding in found.new if not wanted.fails(finding)],
        gone=[f"{entry.rule} {entry.path} in {entry.function or '?'}" for entry in found.gone],
        reasons=["a part of the source could not be read"] if damaged else [],
        problems=made.problems,
        source=made.source,
        known=found.known,
        next_steps=_next_steps(made, failing, found, baseline),
    )


def _headline(failing: Sequence[Finding], found: ComparedFindings, *, has_baseline: bool) -> str:
    new = "new slow pattern" if has_baseline else "slow pattern"
    known = f"; {found.known} known" if found.known else ""
    if not failing:
        other = len(found.new)
        more = f" that fails; {other} other" if other else ""
        return f"No {new}{more}{known}."
    files = format_count(len({f.path for f in failing}), "file")
    return f"{format_count(len(failing), new)} in {files}{known}."


def _next_steps(
    made: report.Report, failing: Sequence[Finding], found: ComparedFindings, baseline: Path | None
) -> list[str]:
    steps = []
    if any(f.safety != "advice" for f in failing):
        steps.append(f"npufix patch --source {made.source}")
    if baseline is not None and (failing or found.gone):
        accepts = "accepts all that is found" if failing else "drops what is gone"
        steps.append(f"npufix scan {made.source} --write-baseline {baseline}  # {accepts}")
    return steps
