"""A database that is written once, table by table."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class Writer:
    """An open database, and the texts that numbers stand for."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._texts: dict[tuple[int, str], int] = {}
        self._next: dict[int, int] = {}

    def text(self, value: str, first: int = 0) -> int:
        """Return the number of a text; each part of the profiler counts from its own ``first``."""
        known = self._texts.get((first, value))
        if known is None:
            known = self._texts[first, value] = self._next.get(first, first)
            self._next[first] = known + 1
        return known

    def table(self, name: str, columns: str, rows: Iterable[tuple[object, ...]] = ()) -> None:
        """Create a table and fill it."""
        self._connection.execute(f"CREATE TABLE {name} ({columns})")
        self.add(name, columns.count(",") + 1, rows)

    def add(self, name: str, width: int, rows: Iterable[tuple[object, ...]]) -> None:
        """Add rows to a table."""
        places = ",".join("?" * width)
        self._connection.executemany(f"INSERT INTO {name} VALUES ({places})", rows)  # noqa: S608 - our own names

    def texts(self) -> None:
        """Write the table of the texts, when all are known."""
        rows = sorted((number, value) for (_, value), number in self._texts.items())
        self.table("STRING_IDS", "id INTEGER PRIMARY KEY,value TEXT", rows)


@contextmanager
def new_database(path: Path) -> Iterator[Writer]:
    """Open a database for writing; it needs no protection, because it can be made again."""
    connection = sqlite3.connect(path)
    try:
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-65536"):
            connection.execute(f"PRAGMA {pragma}")
        yield Writer(connection)
        connection.commit()
    finally:
        connection.close()
