"""The tables of an exported SQLite file as columns of numbers.

A table is read from its pages. Where those are damaged or unusual, SQLite goes on from there; it
knows what a damaged file still holds, and says where a table breaks off.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.database.query import Growing
from npufix.profiling_parsers.database.sqlite.file import FAULTS, one_line, open_file, quote
from npufix.profiling_parsers.database.sqlite.records import Unusual
from npufix.profiling_parsers.database.texts import Texts
from npufix.profiling_parsers.profile import DumpError, Problem
from npufix.profiling_parsers.tables.columns import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from npufix.profiling_parsers.database.query import Columns, Query, Spellings
    from npufix.profiling_parsers.database.sqlite.file import TableLayout
    from npufix.profiling_parsers.database.sqlite.pages import Choice
    from npufix.profiling_parsers.database.sqlite.records import Rows

_CHUNK_ROWS = 1 << 13
"""Also the most rows that are lost where a table breaks off."""
_UNFINISHED = ("-wal", "-journal")


class Database:
    """One file; what is wrong with it gathers in ``problems``."""

    def __init__(self, path: Path) -> None:
        """Open the file; raise ``DumpError`` if it is no SQLite database."""
        self.path = path
        self.problems: list[Problem] = []
        self._remedy = "copy the file again, or " + remedies.analyse(path.parent.parent)
        try:
            self._most_rows = path.stat().st_size  # no row is shorter than a byte
            self._file = open_file(path)
        except OSError as error:
            raise DumpError(f"{path}: {error.strerror}", "make the file readable") from error
        except FAULTS as error:
            raise DumpError(f"{path}: {one_line(error)}", self._remedy) from error
        for suffix in _UNFINISHED:
            if (rest := path.with_name(path.name + suffix)).exists() and rest.stat().st_size:
                self.damaged(f"was not closed: what is in {rest.name} is not read")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __contains__(self, table: str) -> bool:
        return table in self._file.tables

    def columns(self, query: Query) -> Columns:
        """Read columns by key; a table that is not there has no rows.

        A column that is not there and ``required`` is a problem, and then there are no rows.
        """
        read = {key: Growing(query.dtype(key)) for key in query.columns}
        for block, share in self._read_blocks(query):
            for key, column in block.items():
                read[key].append(column, share)
        return {key: column.whole() for key, column in read.items()}

    def blocks(self, query: Query) -> Iterator[Columns]:
        """Read as ``columns`` does, some thousand rows at a time: for what is only summed up."""
        for block, _ in self._read_blocks(query):
            yield block

    def _read_blocks(self, query: Query) -> Iterator[tuple[Columns, float]]:
        """Yield blocks of rows, and the share of the table that is read with them."""
        found = self._find_columns(query.table, query.columns)
        needed = {*query.required, *query.only}
        missing = [key for key in query.columns if key in {*needed, *query.expected} - {*found}]
        if missing and query.table in self:
            names = ", ".join(query.columns[key][0] for key in missing)
            self.damaged(f"{query.table} has no column {names}")
        if not found or needed & {*missing}:
            return
        for block, share in self._blocks(self._file.tables[query.table], query, found):
            count = len(next(iter(block.values())))
            yield (
                {
                    key: query.fitting(key, block[key])
                    if key in block
                    else np.full(count, query.missing(key))
                    for key in query.columns
                },
                share,
            )

    def values(self, table: str, columns: Spellings, as_type: str) -> list[tuple[Any, ...]]:
        """Read a small table as rows of TEXT or REAL; no rows unless all columns are there."""
        found = self._find_columns(table, columns)
        if len(found) < len(columns):
            return []
        cells = [f"CAST({quote(name)} AS {as_type})" for name in found.values()]
        return list(chain.from_iterable(self._chunks(table, cells)))

    def texts(self, table: str = "STRING_IDS", column: str = "value") -> Texts:
        """Read the texts that integers of other tables stand for; none if they are not there."""
        names = {"id": ("id",), "text": (column,)}
        found = self._find_columns(table, names)
        if len(found) < len(names):
            if table == "STRING_IDS":
                self.damaged("has no texts (STRING_IDS), so nothing in it has a name")
            return Texts({})
        number, text = (quote(name) for name in found.values())
        cells = [f"ifnull(CAST({number} AS INTEGER), {NONE})", f"CAST({text} AS TEXT)"]
        known = dict(chain.from_iterable(self._chunks(table, cells)))
        if not known and table == "STRING_IDS":
            self.damaged("holds no texts (STRING_IDS is empty), so nothing in it has a name")
        return Texts(known)

    def damaged(self, what: str) -> None:
        """Note that a part of the file is broken."""
        problem = Problem(self.path.name, what, self._remedy, damaged=True)
        if problem not in self.problems:  # of a table that is read twice
            self.problems.append(problem)

    def _find_columns(self, table: str, columns: Spellings) -> dict[str, str]:
        """Return the columns that the table has, key -> name."""
        names = self._file.tables[table].columns if table in self else {}
        found = {
            key: next((names[each.lower()] for each in spellings if each.lower() in names), None)
            for key, spellings in columns.items()
        }
        return {key: name for key, name in found.items() if name is not None}

    def _blocks(
        self, table: TableLayout, query: Query, found: Mapping[str, str]
    ) -> Iterator[tuple[Columns, float]]:
        """Read from the pages as far as they are as usual, and then on through SQLite."""
        last, count = None, 0
        if self._file.pages is not None and table.plain:
            choose = _choice(table, query, found)
            try:
                for rows, share in self._file.pages.rows(table.root, choose):
                    block = query.cells(rows, table, found)
                    last, count = int(rows.keys[-1]), count + len(rows)
                    yield block, share
            except (Unusual, OSError):
                pass
            else:
                return
        for block in self._rows_of_sqlite(table, query, found, last, count):
            masks = [query.only[key](block[key]) >= 0 for key in query.only if key in found]
            mask = np.logical_and.reduce([np.ones(len(next(iter(block.values()))), bool), *masks])
            yield {key: column[mask] for key, column in block.items()}, 1

    def _rows_of_sqlite(
        self,
        table: TableLayout,
        query: Query,
        found: Mapping[str, str],
        last: int | None,
        count: int,
    ) -> Iterator[Columns]:
        """Read the rows behind the one with the number ``last``, the ``count``-th."""
        real = {key: query.dtype(key) is np.float64 for key in found}
        cells = [
            f"CAST({quote(name)} AS REAL)"
            if real[key]
            else f"ifnull(CAST({quote(name)} AS INTEGER), {NONE})"
            for key, name in found.items()
        ]
        behind = "" if last is None else f"NOT INDEXED WHERE rowid > {last} ORDER BY rowid"
        for chunk in self._chunks(table.name, cells, behind, count):
            columns = zip(*chunk, strict=True)
            yield {
                key: np.array(column, np.float64 if real[key] else np.int64)
                for key, column in zip(found, columns, strict=True)
            }

    def _chunks(
        self,
        table: str,
        cells: list[str],
        where: str = "",
        count: int = 0,
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Read rows up to where the file breaks off, behind ``count`` that were read before."""
        try:
            cursor = self._file.connection.execute(
                f"SELECT {', '.join(cells)} FROM {quote(table)} {where}"  # noqa: S608
            )
            while chunk := cursor.fetchmany(_CHUNK_ROWS):
                count += len(chunk)
                if count > self._most_rows:
                    self.damaged(f"{table} states more rows than the file can hold")
                    return
                yield chunk
        except FAULTS as error:
            self.damaged(f"{table} breaks off after {count} rows ({one_line(error)})")


def _choice(table: TableLayout, query: Query, found: Mapping[str, str]) -> Choice | None:
    """Return what chooses pages from their first rows."""
    if (sample := query.sample) is None or len(found) < len(query.columns):
        return None

    def choose(first: Iterator[Rows]) -> NDArray[np.bool_]:
        every = replace(query, only={})
        blocks = [every.cells(rows, table, found) for rows in first]
        return sample({key: np.concatenate([block[key] for block in blocks]) for key in found})

    return choose
