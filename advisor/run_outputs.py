"""The formats that need more of a run than its report: the page, tables, tracks."""

from __future__ import annotations

from functools import partial
from typing import IO, TYPE_CHECKING

from npufix.advisor.step_rows import step_rows
from npufix.reports.data import spreadsheet
from npufix.reports.data.tables import tables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from npufix.advisor.result import Diagnosis
    from npufix.advisor.source_tree import SourceTree
    from npufix.advisor.written import Content
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
    from npufix.advisor.diagnosis import cut  # noqa: PLC0415 - only for this format
    from npufix.advisor.outputs import PAGE_TOP  # noqa: PLC0415 - no circle
    from npufix.advisor.page_details import page_of  # noqa: PLC0415 - only for this format

    return [(path, page_of(result, cut(report, PAGE_TOP), tree))]


def _csv(result: Diagnosis, report: Report, path: Path) -> Files:
    tables = tables_of(report, step_rows(result))
    return [(path / f"{table.name}.csv", spreadsheet.to_csv(table)) for table in tables]


def _workbook(result: Diagnosis, report: Report, path: Path) -> Files:
    tables = tables_of(report, step_rows(result))
    title = f"{report.tool}: {report.headline}"
    return [(path, partial(spreadsheet.write_workbook, tables, title))]


def _tracks(result: Diagnosis, report: Report, path: Path, *, whole: bool) -> Files:
    from npufix.advisor.trace_tracks import write_tracks  # noqa: PLC0415 - pandas is slow to load

    packed = path.suffix == ".gz"

    def write(file: IO[bytes]) -> None:
        write_tracks(result, report.findings, packed=packed, whole=whole, file=file)

    return [(path, write)]
