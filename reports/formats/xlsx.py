"""A workbook of Excel: the tables of a report, a sheet each.

Texts of a dump may begin as a formula does; none of them becomes one.
"""

from __future__ import annotations

import datetime as dt
import io
import tempfile
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from npufix.reports.data.tables import COUNT, MICROSECONDS, RATIO, SHARE, cell_text, tables_of
from npufix.reports.formats import ALL_ROWS, Format
from npufix.reports.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npufix.reports.data.tables import Table, Value
    from npufix.reports.formats import Result

_MOST_ROWS = 1_048_575
_NARROWEST, _WIDEST = 8, 60
_ROWS_MEASURED = 200
_FORMATS = {COUNT: "#,##0", MICROSECONDS: "#,##0.000", SHARE: "0.00%", RATIO: "0%"}
_LEFT_PLAIN = frozenset({"line", "rank", "step", "device", "number"})
"""Numbers that name something: nobody groups their digits."""


class MissingLibraryError(Exception):
    """A workbook cannot be written here: ``message`` and ``remedy``."""

    def __init__(self) -> None:
        self.message = "a workbook needs the package XlsxWriter, which is not installed"
        self.remedy = "pip install 'npufix[excel]', or write tables with -o csv=FOLDER"
        super().__init__(self.message)


def check_workbook() -> None:
    """Refuse where no workbook can be written.

    Raises:
        MissingLibraryError: XlsxWriter is not installed.

    """
    try:
        import xlsxwriter  # noqa: F401 - optional, and only for this format
    except ImportError as error:
        raise MissingLibraryError from error


def write_workbook(tables: Sequence[Table], title: str, file: IO[bytes]) -> None:
    """Write tables as a workbook, a sheet each.

    Raises:
        MissingLibraryError: XlsxWriter is not installed.

    """
    check_workbook()
    import xlsxwriter

    options = {
        "in_memory": False,
        "constant_memory": True,
        "strings_to_formulas": False,
        "strings_to_numbers": False,
        "strings_to_urls": False,
        "nan_inf_to_errors": True,
    }
    # It is packed as a whole at the end, into what can seek.
    packed = io.BytesIO()
    try:
        # Where its temporary files find no room, XlsxWriter leaves them behind.
        with tempfile.TemporaryDirectory(prefix="npufix-") as folder:
            book = xlsxwriter.Workbook(packed, {**options, "tmpdir": folder})
            _fill(book, tables, title)
            book.close()
    except xlsxwriter.exceptions.FileCreateError as error:
        raise error.args[0] from error
    file.write(packed.getbuffer())


def _fill(book: Any, tables: Sequence[Table], title: str) -> None:  # noqa: ANN401 - the library has no types
    # The same report is the same file, whenever it is written.
    book.set_properties({"title": cell_text(title)[:255], "created": dt.datetime(2000, 1, 1)})  # noqa: DTZ001 - as Excel has it
    header = book.add_format({"bold": True, "bottom": 1, "valign": "top"})
    formats = {kind: book.add_format({"num_format": text}) for kind, text in _FORMATS.items()}
    for table in tables:
        _write_sheet(book.add_worksheet(table.name), table, header, formats)


def _write_sheet(sheet: Any, table: Table, header: object, formats: dict[str, object]) -> None:  # noqa: ANN401 - the library has no types
    rows = table.rows[:_MOST_ROWS]
    sheet.freeze_panes(1, 0)
    sheet.autofilter(0, 0, len(rows), len(table.columns) - 1)
    for number, column in enumerate(table.columns):
        sheet.set_column(number, number, _width(table, number))
        sheet.write_string(0, number, column.name, header)
    shown = [
        formats.get(column.kind) if column.name not in _LEFT_PLAIN else None
        for column in table.columns
    ]
    for place, row in enumerate(rows, 1):
        for number, value in enumerate(row):
            if isinstance(value, str):
                if value:
                    sheet.write_string(place, number, cell_text(value))
            elif value is not None:
                sheet.write_number(place, number, value, shown[number])


def _width(table: Table, number: int) -> float:
    """Return the width of a column, in characters, by its header and its first rows."""
    texts = [_show(row[number]) for row in table.rows[:_ROWS_MEASURED]]
    longest = max((len(line) for text in texts for line in text.split("\n")[:5]), default=0)
    # The arrow of the filter covers the end of the header.
    header = len(table.columns[number].name) + 3
    return min(_WIDEST, max(_NARROWEST, longest + 1, header))


def _show(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}"
    return "" if value is None else str(value)[: _WIDEST + 1]


def _render(result: Result[Report]) -> Callable[[IO[bytes]], None]:
    report = result.report
    tables = tables_of(report, result.run.step_rows() if result.run else ())
    return partial(write_workbook, tables, f"{report.tool}: {report.headline}")


FORMAT = Format(
    name="xlsx",
    about="The tables as one workbook.",
    renders={Report: _render},
    ending=".xlsx",
    is_binary=True,
    rows=ALL_ROWS,
    check=check_workbook,
)
