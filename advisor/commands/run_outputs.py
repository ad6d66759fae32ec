"""The formats that need more of a run than its report: the page, tables, tracks."""

from __future__ import annotations

from functools import partial
from typing import IO, TYPE_CHECKING

from npufix.advisor.diagnose.step_rows import step_rows
from npufix.reports import spreadsheet
from npufix.reports.tables import tables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from npufix.advisor.console.written import Content
    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports.report import Report

    Files = Sequence[tuple[Path, Content]]


def of_run(
    result: Diagnosis, report: Report, tree: SourceTree | None
) -> dict[str, Callable[[Path], Files]]:
    """Return what makes each of the formats; ``report`` is whole, not cut to what is shown."""
    made: dict[str, Callable[[Path], Files]] = {
        "html": partial(_page, result, report, tree),
        "csv": partial(_csv, result, report),
        "xlsx": partial(_workbook, result, report),
    }
    if result.evidence is not None:
        made["perfetto"] = partial(_tracks, result, report, whole=True)
        made["perfetto-findings"] = partial(_tracks, result, report, whole=False)
    return made


def _page(result: Diagnosis, report: Report, tree: SourceTree | None, path: Path) -> Files:
    from npufix.advisor.commands.outputs import PAGE_TOP
    from npufix.advisor.diagnose.diagnosis import cut
    from npufix.advisor.diagnose.page_details import page_of

    return [(path, page_of(result, cut(report, PAGE_TOP), tree))]


def _csv(result: Diagnosis, report: Report, path: Path) -> Files:
    tables = tables_of(report, step_rows(result))
    return [(path / f"{table.name}.csv", spreadsheet.to_csv(table)) for table in tables]


def _workbook(result: Diagnosis, report: Report, path: Path) -> Files:
    tables = tables_of(report, step_rows(result))
    title = f"{report.tool}: {report.headline}"
    return [(path, partial(spreadsheet.write_workbook, tables, title))]


def _tracks(result: Diagnosis, report: Report, path: Path, *, whole: bool) -> Files:
    from npufix.advisor.diagnose.trace_tracks import write_tracks

    packed = path.suffix == ".gz"

    def write(file: IO[bytes]) -> None:
        write_tracks(result, report.findings, packed=packed, whole=whole, file=file)

    return [(path, write)]
