"""Copies of files, redacted piece by piece: of a large one only a piece is in memory."""

from __future__ import annotations

import gzip
import re
import sqlite3
from typing import IO, TYPE_CHECKING

from npufix.advisor.redact.identifying import kind_of, learn, redact
from npufix.profiling_parsers.database.sqlite.file import open_file, quote
from npufix.profiling_parsers.trace.unpacked import UnpackedFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from npufix.advisor.redact.pseudonyms import Pseudonyms

_PIECE = 1 << 20
_LONGEST = 64 << 20
"""Without an end of a value in so much, the text is cut anyway."""
_CODE = re.compile(
    r"(<script(?![^>]*json)[^>]*>.*?</script>|<style[^>]*>.*?</style>)", re.DOTALL | re.IGNORECASE
)
"""Of a page: what is no text."""
_ROWS = 5_000


def texts(path: Path) -> Iterator[str]:
    """Yield the text of a file in pieces that end where a line or a value ends."""
    with UnpackedFile(path) as file:
        yield from _pieces(file)


def _pieces(file: IO[bytes]) -> Iterator[str]:
    left = b""
    while data := file.read(_PIECE):
        left += data
        at = max(left.rfind(b"\n"), left.rfind(b'",'), left.rfind(b"},"))
        if at < 0 and len(left) < _LONGEST:
            continue
        at = len(left) if at < 0 else at + 1
        yield left[:at].decode("utf-8", "surrogateescape")
        left = left[at:]
    yield left.decode("utf-8", "surrogateescape")


def rows(path: Path) -> Iterator[str]:
    """Yield the texts of a database."""
    opened = open_file(path)
    try:
        for name in opened.tables:
            for row in opened.connection.execute(f"SELECT * FROM {quote(name)}"):  # noqa: S608 - quoted
                yield from (value for value in row if isinstance(value, str))
    finally:
        opened.close()


def learn_from(path: Path, names: Pseudonyms) -> None:
    """Note the hosts and users that a file names."""
    if path.suffix != ".db":
        for text in texts(path):
            learn(text, names)
        return
    for text in rows(path):
        learn(text, names)
    opened = open_file(path)
    try:
        if "HOST_INFO" in opened.tables and "hostname" in opened.tables["HOST_INFO"].columns:
            for (name,) in opened.connection.execute("SELECT hostName FROM HOST_INFO"):
                names.learn("host", str(name))
        for name, table in opened.tables.items():
            if list(table.columns) == _NAMED:
                for key, value in opened.connection.execute(f"SELECT * FROM {quote(name)}"):  # noqa: S608 - quoted
                    if (kind := kind_of(str(key))) not in {"", "secret"}:
                        names.learn(kind, str(value))
    finally:
        opened.close()


def copy(source: Path, target: Path, names: Pseudonyms) -> None:
    """Write a redacted copy of a file."""
    if source.suffix == ".db":
        _copy_database(source, target, names)
    elif source.suffix in {".html", ".htm"}:
        whole = "".join(texts(source))
        parts = _CODE.split(whole)
        shown = (part if at % 2 else redact(part, names) for at, part in enumerate(parts))
        target.write_bytes("".join(shown).encode("utf-8", "surrogateescape"))
    else:
        packed = source.suffix == ".gz"
        with gzip.open(target, "wb", 6) if packed else target.open("wb") as file:
            for text in texts(source):
                file.write(redact(text, names).encode("utf-8", "surrogateescape"))


def _copy_database(source: Path, target: Path, names: Pseudonyms) -> None:
    """Copy the tables row by row: a copy of the file would keep what was deleted in it."""
    opened = open_file(source)
    made = sqlite3.connect(target)
    try:
        for name in opened.tables:
            if not name.lower().startswith("sqlite_"):
                _copy_table(opened.connection, made, name, names)
        made.commit()
    finally:
        made.close()
        opened.close()


def _copy_table(
    source: sqlite3.Connection, target: sqlite3.Connection, name: str, names: Pseudonyms
) -> None:
    described = source.execute(f"PRAGMA table_info({quote(name)})").fetchall()
    keys = [column for column in described if column[5]]
    columns = []
    for _, column, kind, _, _, key in described:
        plain = kind if re.fullmatch(r"[\w ()]*", str(kind)) else ""
        own = key and len(keys) == 1 and str(kind).upper() == "INTEGER"
        shown = redact(str(column), names)
        columns.append(f"{quote(shown)} {plain}{' PRIMARY KEY' if own else ''}")
    made = redact(name, names)
    target.execute(f"CREATE TABLE {quote(made)} ({', '.join(columns)})")
    listed = ", ".join(quote(column[1]) for column in described)
    found = source.execute(f"SELECT {listed} FROM {quote(name)}")  # noqa: S608 - quoted
    marks = ", ".join("?" * len(described))
    names_of = [str(column[1]).lower() for column in described]
    kinds = ["host" if column in _HOST_COLUMNS else "" for column in names_of]
    while some := found.fetchmany(_ROWS):
        shown_rows = [
            [_value(v, names, kind) for v, kind in zip(row, kinds, strict=True)]
            if names_of != _NAMED
            else [_value(row[0], names, ""), _value(row[1], names, kind_of(str(row[0])))]
            for row in some
        ]
        target.executemany(
            f"INSERT INTO {quote(made)} VALUES ({marks})",  # noqa: S608 - quoted
            shown_rows,
        )


_HOST_COLUMNS = {"hostname", "hostuid"}
_NAMED = ["name", "value"]
"""The columns of a table that says of each row what it is."""


def _value(value: object, names: Pseudonyms, kind: str) -> object:
    if isinstance(value, bytes):  # nothing of a diagnosis stands in one
        return None
    if not isinstance(value, str):
        return value
    if kind and value:
        names.count(kind)
        return names.of(kind, value)
    return redact(value, names)
