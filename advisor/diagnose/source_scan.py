"""From a source tree alone to a finished diagnosis. Nothing here needs pandas, which is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.advisor.diagnose.findings import locate
from npufix.advisor.diagnose.result import Diagnosis
from npufix.reports import report
from npufix.reports.wording.report import headline, with_left_out
from npufix.rules.registry import all_rules

if TYPE_CHECKING:
    from npufix.advisor.project.source_tree import SourceTree


def scan(
    tree: SourceTree,
    *,
    with_text: bool = True,
    cache: bool = False,
    to_write: bool = False,
    to_compare: bool = False,
) -> Diagnosis:
    """Say which slow patterns a source tree holds, without a dump.

    ``with_text`` as in ``locate``: what is not only shown but also patched needs it; ``cache`` and
    ``to_write`` and ``to_compare`` too.
    """
    rules = [rule for rule in all_rules() if tree.configuration.wants(rule)]
    located = locate(
        tree,
        rules,
        None,
        with_text=with_text,
        cache=cache,
        to_write=to_write,
        to_compare=to_compare,
    )
    found = located.found
    source = str(tree.given)
    said = headline([f.finding for f in found], None, None, [], with_source=True)
    made = report.Report(
        tool=report.tool(),
        headline=with_left_out(said, located.left_out),
        dump="",
        source=source,
        environment=None,
        split=None,
        compute_ns=0,
        attributed=0.0,
        hot_operators=[],
        hot_shapes=[],
        findings=[f.finding for f in found],
        problems=[*tree.problems, *located.problems],
        next_steps=[f"npufix patch --source {source}"] if found else [],
    )
    return Diagnosis(made, tuple(found), None, "", tuple(located.warnings))
