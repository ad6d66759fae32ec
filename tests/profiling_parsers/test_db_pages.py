"""What is read from the pages is what SQLite reads; what is not is left to it."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npufix.profiling_parsers.database.query import Query
from npufix.profiling_parsers.database.sqlite.pages import PagedFile
from npufix.profiling_parsers.database.sqlite.records import Unusual
from npufix.profiling_parsers.database.tables import Database
from npufix.profiling_parsers.database.texts import Lookup, find_positions, in_start_order

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = {key: (key,) for key in "abc"}
QUERY = Query("T", COLUMNS, dtypes={"c": np.float64})
WHOLE = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, -1, 127, 128, -128, -129, 2**15, 2**23, -(2**23) - 1, 2**31, 2**47]),
    st.integers(0, 10**18).map(str),
    st.none(),
)
REAL = st.one_of(st.floats(allow_nan=False), st.integers(-(2**53), 2**53), st.none())
ODD = st.one_of(st.sampled_from(["", " 7", "x", "-5", "9" * 20, b"12", 2.5]), WHOLE)


def write(
    path: Path, rows: list[tuple[Any, ...]], columns: str = "a, b, c", page: int = 512
) -> Path:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size={page}")
        connection.execute(f"CREATE TABLE T ({columns})")
        places = ", ".join("?" * len(columns.split(",")))
        connection.executemany(f"INSERT INTO T VALUES ({places})", rows)  # noqa: S608
        connection.commit()
    return path


def read(path: Path, query: Query = QUERY) -> dict[str, list[Any]]:
    with closing(Database(path)) as database:
        columns = database.columns(query)
        assert database.problems == []
    return {key: column.tolist() for key, column in columns.items()}


def sqlite_says(path: Path) -> dict[str, list[Any]]:
    cells = "ifnull(CAST(a AS INTEGER), -1), ifnull(CAST(b AS INTEGER), -1), CAST(c AS REAL)"
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(f"SELECT {cells} FROM T NOT INDEXED").fetchall()  # noqa: S608
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    columns[2] = [math.nan if cell is None else cell for cell in columns[2]]
    return dict(zip("abc", columns, strict=True))


def same(mine: dict[str, list[Any]], theirs: dict[str, list[Any]]) -> bool:
    return repr(mine) == repr(theirs)


def page_rows(path: Path) -> int:
    """Return how many rows the pages give without SQLite."""
    with closing(sqlite3.connect(path)) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_master").fetchall()
    with closing(PagedFile(path)) as file:
        return sum(len(rows) for rows, _ in file.rows(root))


@given(
    rows=st.lists(st.tuples(WHOLE, WHOLE, REAL), max_size=60),
    page=st.sampled_from([512, 1024, 4096, 65536]),
)
@settings(max_examples=60)
def test_the_pages_say_what_sqlite_says(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]], page: int
) -> None:
    path = write(tmp_path_factory.mktemp("pages") / "t.db", rows, page=page)
    assert page_rows(path) == len(rows)
    assert same(read(path), sqlite_says(path))


@given(rows=st.lists(st.tuples(ODD, WHOLE, st.one_of(REAL, ODD)), min_size=1, max_size=60))
@settings(max_examples=60)
def test_odd_cells_are_left_to_sqlite(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]]
) -> None:
    path = write(tmp_path_factory.mktemp("odd") / "t.db", rows)
    assert same(read(path), sqlite_says(path))


def test_thousands_of_rows_on_many_levels(tmp_path: Path) -> None:
    rows = [(number, str(10**18 + number * 7), number / 3) for number in range(20_000)]
    path = write(tmp_path / "t.db", rows)
    assert page_rows(path) == len(rows)
    columns = read(path)
    assert columns["a"] == list(range(20_000))
    assert columns["b"][-1] == 10**18 + 19_999 * 7
    assert math.isclose(columns["c"][100], 100 / 3)
    assert same(columns, sqlite_says(path))


def test_sqlite_goes_on_where_the_pages_become_unusual(tmp_path: Path) -> None:
    rows: list[tuple[Any, ...]] = [(number, 5, 0.5) for number in range(300_000)]
    rows[-2] = ("x" * 5000, 5, 0.5)
    path = write(tmp_path / "t.db", rows, page=4096)
    with pytest.raises(Unusual):
        page_rows(path)
    assert read(path)["a"] == [*range(299_998), 0, 299_999]


@pytest.mark.parametrize(
    "definition",
    [
        "(a INTEGER PRIMARY KEY, b, c)",
        "(a INTEGER, b, c, CONSTRAINT k PRIMARY KEY (a))",
        "(a INTEGER PRIMARY KEY DESC, b, c)",
        "(a INT PRIMARY KEY, b, c)",
        "(a INTEGER PRIMARY KEY, b, c) WITHOUT ROWID",
        "(a, b, c, rowid)",
        "(_ AS (b + 1) VIRTUAL, a, b, c)",
    ],
)
@pytest.mark.parametrize("odd", [8, "8x"])
def test_keys_that_no_record_holds(tmp_path: Path, definition: str, odd: object) -> None:
    path = tmp_path / "t.db"
    keys = (3, 700, 70_000, 2**40)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE T {definition}")
        rows = [(key, odd, 0.5) for key in keys]
        connection.executemany("INSERT INTO T (a, b, c) VALUES (?, ?, ?)", rows)
        connection.commit()
    assert same(read(path), sqlite_says(path))
    assert read(path)["a"] == list(keys)


def test_a_column_that_was_added_later(tmp_path: Path) -> None:
    path = write(tmp_path / "t.db", [(1, 2), (3, 4)], "a, b")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE T ADD COLUMN c INTEGER DEFAULT -7")
        connection.execute("INSERT INTO T VALUES (5, 6, 8)")
        connection.commit()
    assert read(path) == {"a": [1, 3, 5], "b": [2, 4, 6], "c": [-7.0, -7.0, 8.0]}


def test_rows_that_were_deleted_and_changed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.db", [(number, str(number), None) for number in range(3000)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM T WHERE a % 3 = 0 OR a BETWEEN 100 AND 900")
        connection.execute("UPDATE T SET b = a * 1000000 WHERE a % 5 = 0")
        connection.commit()
    assert same(read(path), sqlite_says(path))


def test_a_table_of_utf16_is_left_to_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA encoding='UTF-16'")
        connection.execute("CREATE TABLE T (a, b, c)")
        connection.execute("INSERT INTO T VALUES ('17', 2, 3)")
        connection.commit()
    assert read(path)["a"] == [17]


def test_only_some_rows_and_narrow_numbers(tmp_path: Path) -> None:
    rows = [(number % 3, 2**40 if number == 4 else number, 1) for number in range(9)]
    path = write(tmp_path / "t.db", rows)
    query = Query("T", COLUMNS, dtypes={"b": np.int32}, only={"a": Lookup(np.array([1], np.int64))})
    assert read(path, query)["b"] == [1, -1, 7]
    write(path, [*rows, ("1x", 11, 1)])
    assert read(path, query)["b"] == [1, -1, 7, 11]


@given(
    among=st.lists(st.one_of(st.integers(-5, 30), st.integers(-(2**63), 2**63 - 1)), max_size=30),
    keys=st.lists(st.one_of(st.integers(-5, 30), st.integers(-(2**63), 2**63 - 1)), max_size=30),
)
def test_positions_are_those_of_the_first(among: list[int], keys: list[int]) -> None:
    lookup = Lookup(np.array(among, np.int64))
    expected = [among.index(key) if key in among and key != -1 else -1 for key in keys]
    assert find_positions(np.array(keys, np.int64), np.array(among, np.int64)).tolist() == expected
    assert lookup.unique == (len(set(among)) == len(among))


def test_positions_of_narrow_keys_are_those_of_wide_ones() -> None:
    # NumPy 1 keeps the dtype of an array beside a scalar: ``make oldest`` runs this with it.
    among = np.arange(5, 320, dtype=np.int64)
    keys = np.array([5, 6, 319, 320, 4, -1], np.int32)
    assert Lookup(among)(keys).tolist() == [0, 1, 314, -1, -1, -1]


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12))
def test_rows_come_in_start_order(rows: list[tuple[int, bool]]) -> None:
    start = np.array([start for start, _ in rows], np.int64)
    usable = np.array([usable for _, usable in rows], np.bool_)
    columns = {"start_ns": start, "row": np.arange(len(rows))}
    expected = sorted((start, row) for row, (start, usable) in enumerate(rows) if usable)
    found = in_start_order(columns, usable)
    assert list(zip(found["start_ns"].tolist(), found["row"].tolist(), strict=True)) == expected
