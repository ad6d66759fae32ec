"""Ways in which a file of a dump is not what the profiler wrote."""

from __future__ import annotations

import csv
import io
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ("missing", "empty", "cut", "column dropped", "column renamed")


@dataclass(frozen=True)
class Damage:
    """``where`` and ``column`` are shares: of the files, the bytes, the columns."""

    kind: str
    file: float
    where: float


damages = st.builds(
    Damage,
    kind=st.sampled_from(KINDS),
    file=st.floats(0, 1, exclude_max=True),
    where=st.floats(0, 1, exclude_max=True),
)


def files(dump: Path) -> list[Path]:
    return sorted(path for path in dump.rglob("*") if path.is_file())


def damaged_copy(dump: Path, folder: Path, damage: Damage) -> tuple[Path, str]:
    """Copy a dump, break one file, and return the copy and the name of that file."""
    copy = folder / dump.name
    shutil.copytree(dump, copy)
    every = files(copy)
    path = every[int(damage.file * len(every))]
    _apply(path, damage)
    return copy, path.name


def columns(dump: Path) -> list[tuple[str, str, float]]:
    """Return file, name and ``where`` of every column of a dump."""
    found = []
    for path in files(dump):
        if path.suffix in {".db", ".csv"}:
            names = _columns_of_database(path) if path.suffix == ".db" else _header(path)
            found += [
                (path.name, str(name), (at + 0.5) / len(names)) for at, name in enumerate(names)
            ]
    return found


def drop_column(path: Path, where: float) -> None:
    _apply(path, Damage("column dropped", 0.0, where))


def _header(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file))


def _apply(path: Path, damage: Damage) -> None:
    content = path.read_bytes()
    if damage.kind == "missing":
        path.unlink()
    elif damage.kind == "empty":
        path.write_bytes(b"")
    elif damage.kind == "cut" or path.suffix == ".json":
        path.write_bytes(content[: int(damage.where * len(content))])
    elif path.suffix == ".db":
        _column_of_database(path, damage)
    else:
        _column_of_table(path, damage)


def _column_of_table(path: Path, damage: Damage) -> None:
    text = path.read_bytes().decode()
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    at = int(damage.where * len(header))
    if damage.kind == "column renamed":
        header[at] = "Quux"
    else:
        header, *rows = ([*row[:at], *row[at + 1 :]] for row in (header, *rows))
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def _columns_of_database(path: Path) -> list[tuple[str, str, int]]:
    """Return table, column, and whether it is the key."""
    with closing(sqlite3.connect(path)) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
        return [
            (table, row[1], row[5])
            for (table,) in names.fetchall()
            for row in database.execute(f"PRAGMA table_info({table})")
        ]


def _column_of_database(path: Path, damage: Damage) -> None:
    every = _columns_of_database(path)
    table, column, key = every[int(damage.where * len(every))]
    others = sum(each[0] == table for each in every) > 1
    with closing(sqlite3.connect(path)) as database:
        if damage.kind == "column dropped" and not key and others:
            database.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        else:
            database.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO quux")
        database.commit()
