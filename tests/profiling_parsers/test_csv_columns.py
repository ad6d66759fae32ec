from __future__ import annotations

import csv
import gzip
import io
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npufix.profiling_parsers.profile import DumpError
from npufix.profiling_parsers.tables.csv_columns import (
    ColumnSelection,
    CsvColumns,
    read_blocks,
    read_columns,
)

NAMES = {"a": ("A", "Alpha"), "b": ("B",)}


def read(content: str | bytes, **options: object) -> CsvColumns:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_columns(path, NAMES, required=(), **options)  # type: ignore[arg-type]


def test_columns_are_found_by_any_of_their_names() -> None:
    for header in ("A,x,B", "x,B,Alpha", "\ufeffA, B ,x"):
        names = [name.strip("\ufeff ") for name in header.split(",")]
        row = ",".join({"A": "1", "Alpha": "1", "B": "2"}.get(name, "3") for name in names)
        columns = read(f"{header}\n{row}\n")
        assert list(columns.category("a")) == ["1"]
        assert columns.text("b").to_pylist() == ["2"]


def test_a_column_that_is_not_there_is_empty() -> None:
    columns = read("A\n1\n2\n")
    assert "b" not in columns
    assert columns.text("b").to_pylist() == ["", ""]
    assert list(columns.category("b")) == ["", ""]
    assert not columns.is_a("b", pa.string())


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"A\n1\n", r"no column B \(the first line is 'A'\)$"),
        (b"", "no header, so no column B$"),
        (gzip.compress(b"A,B\n1,2\n"), "this is a binary file, no table$"),
        ("A,\u8017\u65f6\n1,2\n".encode("gbk"), "no column B"),
        ("A\n1\n".encode("utf-16"), "no column B"),
    ],
    ids=["column", "empty", "binary", "gbk", "utf-16"],
)
def test_a_required_column_that_is_not_there_is_an_error(
    tmp_path: Path, content: bytes, told: str
) -> None:
    path = tmp_path / "file.csv"
    path.write_bytes(content)
    with pytest.raises(DumpError, match=told):
        read_columns(path, NAMES, required=("b",))


@pytest.mark.parametrize(("end", "endless"), [("", True), ("\n", False), ("\r\n", False)])
@pytest.mark.parametrize("row", ["1,2", '"1,2'], ids=["sound", "open quote"])
def test_a_last_line_without_an_end_is_told(row: str, end: str, *, endless: bool) -> None:
    assert read(f"A,B\n1,2\n{row}{end}").endless is endless


@pytest.mark.parametrize("content", [b"", b"\n", b"A,B", b"A,B\n", b"A,B\r\n\r\n", b"\xff\xfe\0"])
def test_no_rows(content: bytes) -> None:
    columns = read(content)
    assert len(columns) == 0
    assert columns.malformed == 0


def test_an_open_quote_costs_one_row_only() -> None:
    content = "A,B\n" + "".join(f"{i},x\n" for i in range(5)) + '"5,x\n6,x\n7,"x\n8,x\n'
    columns = read(content)
    assert columns.text("a").to_pylist() == ["0", "1", "2", "3", "4", "6", "8"]
    assert columns.malformed == 2


def test_a_line_without_an_end_in_sight_is_malformed() -> None:
    columns = read("A,B\n1,2\n" + "x" * 3_000_000 + '"\n3,4\n')
    assert columns.text("a").to_pylist() == ["1", "3"]
    assert columns.malformed == 1


NUMBERS = {"b": pa.float32()}


@pytest.mark.parametrize(("cell", "is_number"), [("N/A", True), ("", True), ("?", False)])
def test_numbers_are_texts_if_one_is_none(tmp_path: Path, cell: str, *, is_number: bool) -> None:
    path = tmp_path / "file.csv"
    path.write_text(f"A,B\n1,0.5\n2,{cell}\n3,2\n")
    wanted = ColumnSelection(NAMES, required=(), numbers=NUMBERS)
    (columns,) = read_blocks(path, wanted, lambda block: block).parts
    assert columns.is_a("b", pa.float32()) is is_number
    assert columns.floats("b").tolist() == pytest.approx([0.5, float("nan"), 2], nan_ok=True)


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=6)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=20), st.sampled_from(["\n", "\r\n"]))
def test_as_the_csv_module_reads_it(rows: list[tuple[str, str]], end: str) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("A", "B"), *rows])
    columns = read(text.getvalue(), plain=("a",))
    assert columns.text("a").to_pylist() == [a for a, _ in rows]
    assert list(columns.category("b", str)) == [b for _, b in rows]
    assert (columns.malformed, columns.endless) == (0, False)
