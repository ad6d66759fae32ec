"""CSV (RFC 4180) that Excel opens right: the tables of a report, a file each.

Texts of a dump may begin as a formula does; none of them becomes one.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from npufix.reports.data.tables import cell_text, tables_of
from npufix.reports.formats import ALL_ROWS, Format
from npufix.reports.report import Report

if TYPE_CHECKING:
    from npufix.reports.data.tables import Table, Value
    from npufix.reports.formats import Result

# Without it Excel takes the file for one in the code page of the machine.
_BYTE_ORDER_MARK = "\ufeff"
_FORMULA = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""What a formula begins with, the wide forms too: some versions take them for the same."""


def to_csv(table: Table) -> str:
    """Return a table as CSV, with what tells Excel that it is UTF-8."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows([_csv_cell(value) for value in row] for row in table.rows)
    return _BYTE_ORDER_MARK + out.getvalue()


def _csv_cell(value: Value) -> object:
    if isinstance(value, str):
        text = cell_text(value)
        # A quote in front makes it a text; Excel and LibreOffice do not evaluate it then.
        return f"'{text}" if text.lstrip(" ")[:1] in _FORMULA and text else text
    return float(f"{value:.6g}") if isinstance(value, float) and abs(value) < 1 else value


def _render(result: Result[Report]) -> dict[str, str]:
    tables = tables_of(result.report, result.run.step_rows() if result.run else ())
    return {f"{table.name}.csv": to_csv(table) for table in tables}


FORMAT = Format(
    name="csv",
    about="The tables, one file each; FILE is a folder.",
    renders={Report: _render},
    is_folder=True,
    rows=ALL_ROWS,
)
