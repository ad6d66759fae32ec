"""Slow patterns of a source, in a program or a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.api.showing import Shown, frame

if TYPE_CHECKING:
    import pandas as pd

    from npufix.reports.report import Report


class Scanned(Shown):
    """What was found in a source, without a dump."""

    def __init__(self, report: Report) -> None:
        """``scan`` makes one."""
        self._result = report

    @property
    def report(self) -> Report:
        """The whole report, as ``npufix scan --json`` writes it."""
        report: Report = self._result
        return report

    @property
    def findings(self) -> pd.DataFrame:
        """One row a finding."""
        from npufix.reports.data.tables import tables_of

        return frame(tables_of(self.report), "findings")


def scan(*sources: str | Path) -> Scanned:
    """Find slow patterns in folders or files of Python code; nothing of it is executed.

    Raises:
        SourceError: one of them cannot be read.

    """
    from npufix.advisor.diagnose.source_scan import scan as search
    from npufix.advisor.project.configuration import read_configuration
    from npufix.advisor.project.source_tree import find_shared_folder, read_source_trees

    paths = [Path(one) for one in sources or (".",)]
    start = paths[0] if len(paths) == 1 else find_shared_folder(paths)
    return Scanned(
        search(read_source_trees(paths, read_configuration(start), exclude_named=False)).report
    )
