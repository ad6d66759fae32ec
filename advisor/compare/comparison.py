"""Two runs in, one finished comparison out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.advisor.compare import remarks
from npufix.advisor.compare.explaining import CostTables, explain
from npufix.advisor.compare.joining import host_operator_changes, operator_changes
from npufix.advisor.compare.places import line_changes, same_paths
from npufix.advisor.compare.predictions import finding_changes, predictions
from npufix.advisor.compare.steps import metric_changes
from npufix.reports.comparison import Comparison
from npufix.reports.report import tool

if TYPE_CHECKING:
    from npufix.advisor.compare.side import ComparedRun


def compare(before: ComparedRun, after: ComparedRun) -> Comparison:
    """Return what differs between two runs and what explains it."""
    across = (before.shown.format == "kineto") != (after.shown.format == "kineto")
    paths = same_paths(_paths(before), _paths(after))
    operators, shapes = operator_changes(before, after)
    lines = line_changes(before, after, paths)
    hosts = host_operator_changes(before, after)
    metrics = metric_changes(before, after)
    apart = remarks.different_programs(hosts if across else operators, metrics)
    # Of two programs no part explains the other.
    tables = CostTables(operators, shapes, lines, hosts, across)
    explanation = None if apart else explain(before, after, tables)
    made, together = predictions(before, after, paths)
    return Comparison(
        tool=tool(),
        headline=apart or remarks.headline(before, explanation, metrics, across_devices=across),
        before=before.shown,
        after=after.shown,
        differences=remarks.differences(before, after),
        notes=[
            *remarks.about_the_host(together, explanation),
            *remarks.notes(before, after, metrics, across_devices=across),
        ],
        explanation=explanation,
        metrics=metrics,
        operators=operators,
        shapes=shapes,
        lines=lines,
        host_operators=hosts,
        findings=finding_changes(before, after),
        predictions=made,
        predicted=together,
        across_devices=across,
    )


def _paths(run: ComparedRun) -> set[str]:
    return set(run.lines.rows["path"].astype(str)) - {""}
