"""The tables of an exported SQLite file as columns of int64, and the texts they point to.

The file comes from another machine and is not trusted: it is opened read-only and immutable,
nothing but ordinary tables is read, and what breaks off is kept up to there and told.
"""

from __future__ import annotations

import sqlite3
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.csv_columns import category
from npufix.profiling_parsers.profile import DumpError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sized
    from pathlib import Path

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Spellings = Mapping[str, tuple[str, ...]]

NONE = -1
"""What a NULL, or a column that this version of the file does not have, is read as."""
_CHUNK_ROWS = 1 << 13
"""Also the most rows that are lost where a table breaks off."""
# Besides its own errors: names that are no UTF-8, and sizes that only a damaged page can state.
_FAULTS = (sqlite3.Error, UnicodeError, OverflowError, MemoryError)
_Chunk = TypeVar("_Chunk", bound="Sized")
_HEADER_BYTES = 100
_UNFINISHED = ("-wal", "-journal")


class Database:
    """One file; what is wrong with it gathers in ``problems``."""

    def __init__(self, path: Path) -> None:
        """Open the file; raise ``DumpError`` if it is no SQLite database."""
        self.path = path
        self.problems: list[Problem] = []
        self._remedy = "copy the file again, or " + remedies.analyse(path.parent.parent)
        try:
            self._most_rows = size = path.stat().st_size  # no row is shorter than a byte
            if (stated := _stated_size(path)) > size:
                raise self._unreadable(f"cut off: {size:,} of {stated:,} bytes are there")
            uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
            self._connection = sqlite3.connect(uri, uri=True)
        except OSError as error:
            raise DumpError(f"{path}: {error.strerror}", "make the file readable") from error
        except _FAULTS as error:
            raise self._unreadable(_one_line(error)) from error
        try:
            self._columns = self._schema()
        except _FAULTS as error:
            self.close()
            raise self._unreadable(f"damaged, or no SQLite database: {_one_line(error)}") from error
        for suffix in _UNFINISHED:
            if (rest := path.with_name(path.name + suffix)).exists() and rest.stat().st_size:
                self.damaged(f"was not closed: what is in {rest.name} is not read")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __contains__(self, table: str) -> bool:
        return table in self._columns

    def integers(
        self, table: str, columns: Spellings, *, required: Collection[str] = (), where: str = ""
    ) -> pd.DataFrame:
        """Read ``columns`` (key -> spellings) as int64, whatever type they are declared with.

        A table that is not there has no rows; a column that is not there is ``NONE``, which is
        a problem if it is ``required``.
        """
        found = self._found(table, columns)
        if missing := [columns[key][0] for key in required if key not in found]:
            if table in self:
                self.damaged(f"{table} has no column {', '.join(missing)}")
            return pd.DataFrame({key: np.empty(0, np.int64) for key in columns})
        numbers = [f"ifnull(CAST({_quoted(name)} AS INTEGER), {NONE})" for name in found.values()]

        def table_of(rows: Iterator[tuple[int, ...]]) -> Integers:
            cells = np.fromiter(chain.from_iterable(rows), np.int64)
            return cells.reshape(-1, len(found))

        chunks = [np.empty((0, len(found)), np.int64)]
        chunks += self._chunks(table, numbers, table_of, where)
        frame = pd.DataFrame(np.concatenate(chunks), columns=list(found))
        return frame.reindex(columns=list(columns), fill_value=NONE)

    def values(self, table: str, columns: Spellings, as_type: str) -> list[tuple[Any, ...]]:
        """Read a small table as rows of TEXT or REAL; no rows unless all columns are there."""
        found = self._found(table, columns)
        if len(found) < len(columns):
            return []
        cells = [f"CAST({_quoted(name)} AS {as_type})" for name in found.values()]
        return list(chain.from_iterable(self._chunks(table, cells, list)))

    def texts(self) -> Texts:
        """Read the texts that integers of the other tables stand for."""
        names = {"id": ("id",), "value": ("value",)}
        if len(self._found("STRING_IDS", names)) < len(names):
            self.damaged("has no texts (STRING_IDS), so nothing in it has a name")
            return Texts({})
        cells = ["ifnull(CAST(id AS INTEGER), -1)", "CAST(value AS TEXT)"]
        return Texts(dict(chain.from_iterable(self._chunks("STRING_IDS", cells, list))))

    def damaged(self, what: str) -> None:
        """Note that a part of the file is broken."""
        self.problems.append(Problem(self.path.name, what, self._remedy, damaged=True))

    def _schema(self) -> dict[str, dict[str, str]]:
        """Return the columns of each ordinary table by lower case name: no view, none virtual."""
        self._connection.text_factory = lambda text: text.decode("utf-8", errors="replace")
        for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON"):
            self._connection.execute(f"PRAGMA {pragma}")
        tables = self._connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
        ).fetchall()
        return {
            name: {
                str(column).lower(): str(column)
                for _, column, *_ in self._connection.execute(f"PRAGMA table_info({_quoted(name)})")
            }
            for (name,) in tables
            if isinstance(name, str)
        }

    def _found(self, table: str, columns: Spellings) -> dict[str, str]:
        """Return the columns that the table has, key -> name."""
        names = self._columns.get(table, {})
        found = {
            key: next((names[each.lower()] for each in spellings if each.lower() in names), None)
            for key, spellings in columns.items()
        }
        return {key: name for key, name in found.items() if name is not None}

    def _chunks(
        self,
        table: str,
        cells: list[str],
        convert: Callable[[Iterator[tuple[Any, ...]]], _Chunk],
        where: str = "",
    ) -> Iterator[_Chunk]:
        """Read rows up to where the file breaks off."""
        if table not in self or not cells:
            return
        count = 0
        try:
            cursor = self._connection.execute(
                f"SELECT {', '.join(cells)} FROM {_quoted(table)} {where}"  # noqa: S608
            )
            while size := len(chunk := convert(islice(cursor, _CHUNK_ROWS))):
                count += size
                if count > self._most_rows:
                    self.damaged(f"{table} states more rows than the file can hold")
                    return
                yield chunk
        except _FAULTS as error:
            self.damaged(f"{table} breaks off after {count} rows ({_one_line(error)})")

    def _unreadable(self, why: str) -> DumpError:
        return DumpError(f"{self.path}: {why}", self._remedy)


class Texts:
    """The strings of a file by the number that stands for them."""

    def __init__(self, known: dict[int, str | None]) -> None:
        self._known = known

    def __getitem__(self, number: int) -> str:
        return self._known.get(number) or ""

    def category(
        self, numbers: Integers, clean: Callable[[str], str] = str.strip
    ) -> pd.Categorical[str]:
        """Return a column of numbers as a category of the texts, each through ``clean``."""
        codes, distinct = pd.factorize(numbers)
        cleaned: dict[str, int] = {}
        merged = [
            cleaned.setdefault(clean(self[number]), len(cleaned)) for number in distinct.tolist()
        ]
        return category(np.array(merged, np.int64)[codes], list(cleaned))


def positions(keys: Integers, among: Integers) -> Integers:
    """Return where each key first stands in ``among``, -1 if nowhere; ``NONE`` matches nothing."""
    if not len(among):
        return np.full(len(keys), -1, np.int64)
    order = np.argsort(among, kind="stable")
    ordered = among[order]
    found = np.searchsorted(ordered, keys).clip(max=len(among) - 1)
    return np.where((ordered[found] == keys) & (keys != NONE), order[found], -1)


def _stated_size(path: Path) -> int:
    """Return how long the file is according to its header, 0 if that does not say.

    SQLite takes the part of the last page that is missing for zeros, which are no rows.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES or not header.startswith(b"SQLite format 3\0"):
        return 0
    page_size, pages, changed, valid_for = (
        int.from_bytes(header[at:end], "big")
        for at, end in ((16, 18), (28, 32), (24, 28), (92, 96))
    )
    # 65536 does not fit and is written as 1; the number of pages may be that of an older state.
    return (page_size if page_size > 1 else 1 << 16) * pages if changed == valid_for else 0


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
