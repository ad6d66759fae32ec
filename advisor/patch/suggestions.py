"""The change of each finding as a diff of its own, for outputs that offer it beside the line."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.patch.backends import needs_npu
from npufix.rewriters.write.patch import FileChange, unified_diff

if TYPE_CHECKING:
    from npufix.advisor.diagnose.findings import Located
    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.project.kept.stored import Store
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports import report


def with_changes(
    diagnosis: Diagnosis, tree: SourceTree, store: Store | None = None
) -> list[report.Finding]:
    """Return the findings of a report, each with what ``npufix patch`` would try there.

    Nothing is run. What is conditional has its change beside its conditions. ``store`` keeps the
    diffs for the next time.
    """
    portable = not needs_npu(tree)
    diffs = _Diffs(store, tree)
    changes = {
        item.finding.fingerprint: _diff(item, diffs, portable=portable)
        for item in diagnosis.found
        if not item.site.rule.advice
    }
    diffs.keep()
    return [
        msgspec.structs.replace(finding, diff=changes.get(finding.fingerprint, finding.diff))
        for finding in diagnosis.report.findings
    ]


def with_report_changes(
    diagnosis: Diagnosis, tree: SourceTree, store: Store | None = None
) -> report.Report:
    """Return the report with these findings."""
    found = with_changes(diagnosis, tree, store)
    return msgspec.structs.replace(diagnosis.report, findings=found)


class _Diffs:
    """The diffs of a tree by what was compared: to compare takes ten times as long as to read."""

    def __init__(self, store: Store | None, tree: SourceTree) -> None:
        self._store = store
        self._key = b"diffs", str(tree.given.absolute()).encode("utf-8", "surrogateescape")
        data = None if store is None else store.get(*self._key)
        self._before: dict[str, str] = {} if data is None else json.loads(data)
        self._now: dict[str, str] = {}

    def of(self, change: FileChange) -> str:
        """Return the diff of one file."""
        if self._store is None:
            return unified_diff([change])
        name = change.relative.encode("utf-8", "surrogateescape")
        parts = (hashlib.sha256(p).digest() for p in (name, change.before, change.after))
        key = b"".join(parts).hex()
        if key not in self._now:
            known = self._before.get(key)
            self._now[key] = unified_diff([change]) if known is None else known
        return self._now[key]

    def keep(self) -> None:
        """Keep what was asked for, if it is not what was kept before."""
        if self._store is not None and self._now != self._before:
            self._store.put(json.dumps(self._now).encode(), *self._key)


def _diff(item: Located, diffs: _Diffs, *, portable: bool) -> str:
    rewrite, file = item.site.rewrite, item.file
    if rewrite is None:
        return ""
    text = rewrite.portable if portable else rewrite.direct
    diff = diffs.of(FileChange(file.path, file.relative, file.data, file.encode(text)))
    try:
        diff.encode()
    except UnicodeEncodeError:  # a file in another encoding: no report could hold it
        return ""
    return diff
