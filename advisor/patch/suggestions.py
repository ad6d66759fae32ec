"""The change of each finding as a diff of its own, for outputs that offer it beside the line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.patch.patching import needs_npu
from npufix.rewriters.write.patch import FileChange, unified_diff

if TYPE_CHECKING:
    from npufix.advisor.diagnose.findings import Located
    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports import report


def with_changes(diagnosis: Diagnosis, tree: SourceTree) -> list[report.Finding]:
    """Return the findings of a report, each with what ``npufix patch`` would try there.

    Nothing is run. What is conditional has its change beside its conditions.
    """
    portable = not needs_npu(tree)
    changes = {
        item.finding.fingerprint: _diff(item, portable=portable)
        for item in diagnosis.found
        if not item.site.rule.advice
    }
    return [
        msgspec.structs.replace(finding, diff=changes.get(finding.fingerprint, finding.diff))
        for finding in diagnosis.report.findings
    ]


def with_report_changes(diagnosis: Diagnosis, tree: SourceTree) -> report.Report:
    """Return the report with these findings."""
    return msgspec.structs.replace(diagnosis.report, findings=with_changes(diagnosis, tree))


def _diff(item: Located, *, portable: bool) -> str:
    rewrite, file = item.site.rewrite, item.file
    if rewrite is None:
        return ""
    text = rewrite.portable if portable else rewrite.direct
    diff = unified_diff([FileChange(file.path, file.relative, file.data, file.encode(text))])
    try:
        diff.encode()
    except UnicodeEncodeError:  # a file in another encoding: no report could hold it
        return ""
    return diff
