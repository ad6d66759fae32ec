"""CSV and workbooks: they open right, hold everything, and no text of a dump is a formula."""

from __future__ import annotations

import csv
import io
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from npufix.reports.data.tables import Column, Table, tables_of
from npufix.reports.formats import csv as csv_format
from npufix.reports.formats import xlsx

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from npufix.reports.report import Report

HOSTILE = [
    "=1+1", "+1", "-1+cmd|'/c calc'!A0", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1",
    '=HYPERLINK("http://x")',
]  # fmt: skip
NS = {"m": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}


def rows_of(text: str) -> list[list[str]]:
    assert text.startswith("\ufeff"), "Excel takes it for another encoding without the mark"
    return list(csv.reader(io.StringIO(text[1:], newline="")))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_is_a_formula_in_csv(text: str) -> None:
    table = Table("t", [Column("a"), Column("b", "us")], [[text, -1.5]])
    _, (cell, number) = rows_of(csv_format.to_csv(table))
    assert cell[0] == "'"
    assert cell[1:] == text.replace("\r", "\n")
    assert number == "-1.5", "a number stays one"


def test_other_texts_stay_as_they_are() -> None:
    texts = ["", "MatMulV2", "4,128 float; 128", 'say "so"', "a\nb", "\u7b97\u5b50", "a=b"]
    table = Table("t", [Column("a")], [[text] for text in texts])
    assert [row[0] if row else "" for row in rows_of(csv_format.to_csv(table))[1:]] == texts
    long = Table("t", [Column("a")], [["x\x1b[2J" + "y" * 100_000]])
    (cell,) = rows_of(csv_format.to_csv(long))[1]
    assert cell.startswith("x?[2Jyyy")
    assert cell.endswith("... (100,005 characters)")
    assert len(cell) < 32_767


def workbook(tables: list[Table]) -> dict[str, ET.Element]:
    pytest.importorskip("xlsxwriter")
    out = io.BytesIO()
    xlsx.write_workbook(tables, "title", out)
    with zipfile.ZipFile(out) as packed:
        return {n: ET.fromstring(packed.read(n)) for n in packed.namelist() if n.endswith("xml")}  # noqa: S314 - our own


def test_a_workbook_has_a_sheet_a_table_and_no_formula(example_report: Report) -> None:
    hostile = Table("odd", [Column("a"), Column("b", "us")], [[t, None] for t in HOSTILE])
    tables = [*tables_of(example_report), hostile]
    parts = workbook(tables)
    names = [s.get("name") for s in parts["xl/workbook.xml"].iterfind(".//m:sheet", NS)]
    assert names == [table.name for table in tables]
    for number, table in enumerate(tables, 1):
        sheet = parts[f"xl/worksheets/sheet{number}.xml"]
        assert not sheet.findall(".//m:f", NS), "a formula"
        assert not sheet.findall(".//m:hyperlink", NS)
        assert len(sheet.findall(".//m:row", NS)) == 1 + len(table.rows)
        pane = sheet.find(".//m:pane", NS)
        assert pane is not None
        assert (pane.get("state"), pane.get("ySplit")) == ("frozen", "1")
        assert sheet.find("m:autoFilter", NS) is not None
    odd = parts[f"xl/worksheets/sheet{len(tables)}.xml"]
    cells = ["".join(cell.itertext()) for cell in odd.findall(".//m:c", NS)[2:]]
    assert cells == [text.replace("\r", "\n") for text in HOSTILE]


def test_numbers_are_numbers_with_formats(example_report: Report) -> None:
    columns = [Column("calls", "count"), Column("total_us", "us"), Column("share", "share")]
    parts = workbook([Table("t", columns, [[1234, 1.5, 0.25]])])
    cells = parts["xl/worksheets/sheet1.xml"].findall(".//m:row", NS)[1].findall("m:c", NS)
    assert [cell.findtext("m:v", namespaces=NS) for cell in cells] == ["1234", "1.5", "0.25"]
    assert all(cell.get("t") is None for cell in cells)
    known = {f.get("formatCode") for f in parts["xl/styles.xml"].iterfind(".//m:numFmt", NS)}
    assert "#,##0.000" in known
    out = [io.BytesIO(), io.BytesIO()]
    for file in out:
        xlsx.write_workbook(tables_of(example_report), "t", file)
    assert out[0].getvalue() == out[1].getvalue()


def test_a_missing_library_is_said_before_the_work(
    npufix_in: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    error = npufix_in(tmp_path, "diagnose", "gone", "-o", "xlsx=a.xlsx").exception
    assert isinstance(error, xlsx.MissingLibraryError)
    assert "npufix[excel]" in error.remedy


def test_all_operators_are_written_and_few_are_shown(
    npufix_in: Callable[..., Result], tmp_path: Path
) -> None:
    from npufix.advisor.diagnose.diagnosis import diagnose

    root = tmp_path / "tables"
    dump = Path(__file__).parents[2] / "examples" / "dump"
    done = npufix_in(tmp_path, "diagnose", dump, "--top", "2", "-o", f"csv={root}", "--json")
    assert done.return_value == 0
    assert done.stdout.count('"bound_ratio"') == 2
    result = diagnose(dump, None)
    written = {path.stem: rows_of(path.read_bytes().decode()) for path in root.iterdir()}
    assert set(written) == {table.name for table in tables_of(result.report)}
    kernels = result.evidence.kernels[result.evidence.computes]  # type: ignore[union-attr]
    head, *rows = written["operators"]
    assert len(rows) == len(kernels[["type", "core"]].drop_duplicates())
    total = sum(float(row[head.index("total_us")]) for row in rows)
    assert round(total * 1000) == int(kernels["duration_ns"].sum())
    steps = [dict(zip(written["steps"][0], row, strict=True)) for row in written["steps"][1:]]
    assert len(steps) == 3
    for row in steps:
        parts = ("computing_us", "exposed_communication_us", "free_us")
        assert float(row["total_us"]) == pytest.approx(sum(float(row[p]) for p in parts))
