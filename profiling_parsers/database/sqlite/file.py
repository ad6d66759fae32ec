"""An exported SQLite file, opened: read-only, immutable, and with nothing in it run.

The file comes from another machine and is not trusted. Only ordinary tables are known of: a view
or a virtual table would run what is written in the file.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npufix.profiling_parsers.database.sqlite.pages import PagedFile
from npufix.profiling_parsers.database.sqlite.records import Unusual

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Besides its own errors: names that are no UTF-8, and sizes that only a damaged page can state.
FAULTS = (sqlite3.Error, UnicodeError, OverflowError, MemoryError)
_LONGEST_VALUE = 256 << 20
_HEADER_BYTES = 100
_ROWID = {"rowid", "oid", "_rowid_"}


@dataclass(frozen=True)
class TableLayout:
    """An ordinary table."""

    name: str
    root: int
    """Its first page."""
    columns: Mapping[str, str]
    """The columns as the table spells them, by lower case name, in the order of a record."""
    key: str | None
    """The column (in lower case) that is the number of the row, which no record holds."""
    plain: bool
    """Its pages can be read without SQLite, and its rows numbered with it."""

    def position(self, column: str) -> int:
        """Return where in a record the column stands."""
        return list(self.columns).index(column.lower())


@dataclass(frozen=True)
class OpenFile:
    """What a file is read through; close it after use."""

    connection: sqlite3.Connection
    tables: Mapping[str, TableLayout]
    pages: PagedFile | None

    def close(self) -> None:
        """Close the file."""
        self.connection.close()
        if self.pages is not None:
            self.pages.close()


def open_file(path: Path) -> OpenFile:
    """Open the file; raise ``OSError`` or one of ``FAULTS`` if it is no SQLite database."""
    if (stated := _read_stated_size(path)) > (size := path.stat().st_size):
        what = f"cut off: {size:,} of {stated:,} bytes are there"
        raise sqlite3.DatabaseError(what)
    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True)
    try:
        connection.text_factory = lambda text: text.decode("utf-8", errors="replace")
        if sys.version_info >= (3, 11):
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON"):
            connection.execute(f"PRAGMA {pragma}")
        tables = _tables(connection)
    except FAULTS as error:
        connection.close()
        what = f"damaged, or no SQLite database: {one_line(error)}"
        raise sqlite3.DatabaseError(what) from error
    pages = None
    with suppress(Unusual, OSError):
        pages = PagedFile(path)
    return OpenFile(connection, tables, pages)


def quote(name: str) -> str:
    """Return a name as SQL spells it."""
    return '"' + name.replace('"', '""') + '"'


def one_line(error: BaseException) -> str:
    """Return what an error says, without line ends."""
    return " ".join(str(error).split()) or type(error).__name__


def _tables(connection: sqlite3.Connection) -> dict[str, TableLayout]:
    """Return the ordinary tables: no view, none virtual."""
    stored = connection.execute(
        "SELECT name, rootpage, CAST(sql AS TEXT) FROM sqlite_master"
        " WHERE type = 'table' AND rootpage > 0"
    ).fetchall()
    return {
        name: _table(name, root, sql or "", connection)
        for name, root, sql in stored
        if isinstance(name, str) and isinstance(root, int)
    }


def _table(name: str, root: int, sql: str, connection: sqlite3.Connection) -> TableLayout:
    described: list[tuple[Any, ...]] = connection.execute(
        f"PRAGMA table_xinfo({quote(name)})"
    ).fetchall()
    # A generated column makes, for each row, gigabytes or hours out of nothing: it is not read.
    columns = {
        str(column).lower(): str(column) for _, column, *_, hidden in described if not hidden
    }
    keys = [(column, kind) for _, column, kind, _, _, key, _ in described if key]
    is_rowid = len(keys) == 1 and str(keys[0][1]).upper() == "INTEGER"
    generated = any(hidden for *_, hidden in described)
    return TableLayout(
        name=name,
        root=root,
        columns=columns,
        key=str(keys[0][0]).lower() if is_rowid else None,
        # INTEGER PRIMARY KEY DESC, a quirk, is not the number of the row.
        plain=not (generated or _ROWID & set(columns) or (is_rowid and "DESC" in sql.upper()))
        and len(columns) == len(described),
    )


def _read_stated_size(path: Path) -> int:
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
