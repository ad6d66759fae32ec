"""Changes to an input: its bytes, cells or values. The same seed makes the same changes."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    Mutation = Callable[[Random, bytes, Sequence[bytes]], bytes]

LONGEST = 1 << 18
"""An input grows no further: size has targets of its own, and slow inputs try little."""
WORDS = (
    b"", b"0", b"-1", b"1", b"N/A", b"nan", b"NaN", b"inf", b"-inf", b"Infinity", b"1e308",
    b"1e-400", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808",
    b"18446744073709551616", b"1" * 400, b"0x10", b"1_000", b"1.5.2", b"1,5", b"null", b"true",
    b"[]", b"{}", b'""', b'"', b"'", b"\t", b"\r", b"\n", b"\r\n", b"\0", b"\x1b[31m",
    b"\x1b]0;x\x07", b"\x9b31m", b"\xc2\x9b31m", b"\x7f", b"\xff\xfe", b"\xef\xbb\xbf",
    b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xe2\x80\xae", b"\xe2\x80\xa8",
    b"\\", b"\\ud800", b"\\u0000", b"/", b"../../etc/passwd", b"C:\\x\\y.py", b"<script>", b"%s",
    b"{0}",
    b"[bold]", b"[/]", b",", b";", b":", b"|", b"a" * 5000,
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 255, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64,
    10**30, -(10**30), 10**17, 0.5, -0.5, 1e308, -1e308, 1e-320, 1e19, float("nan"), float("inf"),
    float("-inf"),
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *NUMBERS, None, True, False, "", "0", "-1", "1.5", "nan", "x" * 3000, "\x1b[31m\x9b", "\ud800",
    "\0", "../../etc/passwd", "[bold]", [], {}, [[]], [None], {"": None}, {"a": {"a": []}},
)  # fmt: skip


def of_bytes(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:  # noqa: PLR0911
    """Change bytes wherever they are."""
    at, end = _span(random, len(data))
    kind = random.randrange(8)
    if kind == 0 and data:
        at = random.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + random.choice(WORDS) + data[at:]
    if kind == 2:  # noqa: PLR2004 - a kind
        return data[:at] + random.choice(WORDS) + data[end:]
    if kind == 3:  # noqa: PLR2004 - a kind
        return data[:at] + data[end:]
    if kind == 4:  # noqa: PLR2004 - a kind
        return data[:at] + data[at:end] * random.choice((2, 3, 50)) + data[end:]
    if kind == 5:  # noqa: PLR2004 - a kind
        return data[:at]
    if kind == 6:  # noqa: PLR2004 - a kind
        return data[:at] + random.randbytes(random.randrange(1, 9)) + data[end:]
    other = random.choice(others)
    here, there = _span(random, len(other))
    return data[:at] + other[here:there] + data[end:]


def of_lines(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change a table: a cell, a row, a column, the ends of its lines."""
    lines = data.split(b"\n")
    row = random.randrange(len(lines))
    cells = lines[row].split(b",")
    column = random.randrange(len(cells))
    kind = random.randrange(9)
    if kind < 3:  # noqa: PLR2004 - a third of all: a cell becomes something else
        cells[column] = random.choice(WORDS)
    elif kind == 3:  # noqa: PLR2004 - a kind
        cells[column] = b'"' + cells[column] + random.choice((b"", b'"', b'""', b'"x'))
    elif kind == 4:  # noqa: PLR2004 - a kind
        cells.insert(column, random.choice((b"", cells[column])))
    elif kind == 5:  # noqa: PLR2004 - a kind
        del cells[column]
    elif kind == 6:  # noqa: PLR2004 - a kind
        other = random.randrange(len(lines))
        lines[row], lines[other] = lines[other], lines[row]
        return b"\n".join(lines)
    elif kind == 7:  # noqa: PLR2004 - a kind
        return random.choice((_line_ends, _encoded, _without_column))(random, data)
    else:
        return of_bytes(random, data, others)
    lines[row] = b",".join(cells)
    return b"\n".join(lines)


def of_json(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change values of JSON, which stays JSON; what is none any more has its bytes changed."""
    try:
        made = json.loads(data)
    except (ValueError, RecursionError):
        return of_bytes(random, data, others)
    if random.randrange(4) == 0:
        return of_bytes(random, data, others)
    holder = [made]
    places = list(_places(holder, 0))
    for _ in range(random.choice((1, 1, 2, 5))):
        where, key = random.choice(places)
        _change(random, where, key)
    return json.dumps(holder[0]).encode("utf-8", "replace") if holder else b""


def of_python(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change source: swap, copy, indent or drop lines and words."""
    lines = data.split(b"\n")
    row, other = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.randrange(6)
    if kind == 0:
        lines[row], lines[other] = lines[other], lines[row]
    elif kind == 1:
        lines.insert(row, lines[other])
    elif kind == 2:  # noqa: PLR2004 - a kind
        lines[row] = random.choice((b" ", b"    ", b"\t", b"\x0c")) + lines[row]
    elif kind == 3:  # noqa: PLR2004 - a kind
        words = lines[row].split(b" ")
        words[random.randrange(len(words))] = random.choice(_PIECES)
        lines[row] = b" ".join(words)
    elif kind == 4:  # noqa: PLR2004 - a kind
        del lines[row]
    else:
        return random.choice((of_bytes, _wrapped))(random, data, others)
    return b"\n".join(lines)


def of_database(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change values or the schema of an SQLite file, which stays one, or bytes of its pages."""
    if random.randrange(2):
        return _page(random, data) if random.randrange(4) else of_bytes(random, data, others)
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(data)
        for _ in range(random.choice((1, 1, 3))):
            _statement(random, connection)
        connection.commit()
        return connection.serialize()
    except (sqlite3.Error, OverflowError, UnicodeError, MemoryError):
        return _page(random, data)
    finally:
        connection.close()


_PIECES = (
    b"x", b"self", b"(", b")", b"*", b"**", b"lambda: 0", b"torch.nn.functional.softmax(x)", b"=",
    b":=", b"async", b"await", b"yield", b"match", b"# npufix: ignore", b"\xe4", b"\\", b'"""',
    b"f'{x!r}'", b"...", b"# -*- coding: utf-16 -*-", b"# coding: rot13", b"0" * 5000,
    b"x." * 300 + b"x", b"del", b"global x;",
)  # fmt: skip


def _wrapped(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Put brackets around one line, as deep as no person would."""
    lines = data.split(b"\n")
    row = random.randrange(len(lines))
    deep = random.choice((1, 20, 90, 250, 3000))
    around = ((b"(", b")"), (b"[", b"]"), (b"-", b""), (b"x+", b""), (b"not ", b""))
    first, last = random.choice(around)
    lines[row] = lines[row] + b" = " * (not others) + first * deep + b"x" + last * deep
    return b"\n".join(lines)


def _span(random: Random, length: int) -> tuple[int, int]:
    at = random.randrange(length + 1)
    return at, min(length, at + random.choice((0, 1, 2, 4, 16, 64, 1024)))


def _line_ends(random: Random, data: bytes) -> bytes:
    plain = data.replace(b"\r\n", b"\n")
    return plain.replace(b"\n", random.choice((b"\n", b"\r\n", b"\r", b"\n\n")))


def _encoded(random: Random, data: bytes) -> bytes:
    encodings = ("utf-16", "utf-8-sig", "utf-32", "utf-16-be")
    return data.decode("latin-1").encode(random.choice(encodings))


def _without_column(random: Random, data: bytes) -> bytes:
    rows = [line.split(b",") for line in data.split(b"\n")]
    column = random.randrange(len(rows[0]))
    return b"\n".join(b",".join(row[:column] + row[column + 1 :]) for row in rows)


def _places(value: Any, depth: int) -> Any:  # noqa: ANN401 - what JSON may hold
    """Yield every container and key; the first ones of a long list stand for the rest."""
    if depth > 50:  # noqa: PLR2004 - deeper than any file that is meant
        return
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for key, inner in items[:300]:
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _places(inner, depth + 1)


def _change(random: Random, where: Any, key: Any) -> None:  # noqa: ANN401 - what JSON may hold
    try:
        value = where[key]
    except (KeyError, IndexError):  # a change before this one took it away
        return
    kind = random.randrange(8)
    if kind < 4:  # noqa: PLR2004 - half of all
        where[key] = random.choice(VALUES)
    elif kind == 4:  # noqa: PLR2004 - a kind
        where[key] = random.choice(([value], {"x": value}, str(value), [value] * 50))
    elif kind == 5 and isinstance(value, (int, float)):  # noqa: PLR2004 - a kind
        real = float(value) if abs(value) < 1e300 else 0.5  # noqa: PLR2004 - what a float holds
        text = str(value) if abs(value) < 1e300 else "1" * 5000  # noqa: PLR2004 - what Python spells
        where[key] = random.choice((-value, value + 1, real, text, -1 - value))
    elif kind == 6 and len(where) > 1:  # noqa: PLR2004 - a kind
        del where[key]
    elif isinstance(where, dict):
        where[random.choice(("", "x", "\x1b[31m", str(key).upper(), f"{key} "))] = value
    else:
        where.append(value)


def _page(random: Random, data: bytes) -> bytes:
    """Change a few bytes of one page, most often of its header or its pointers to cells."""
    size = 4096
    page = random.randrange(max(1, len(data) // size)) * size
    at = page + random.choice((random.randrange(16), random.randrange(128), random.randrange(size)))
    new = random.choice((b"\0", b"\xff", b"\xff\xff\xff\xff", b"\0\0\0\1", random.randbytes(2)))
    return data[:at] + new + data[at + len(new) :]


def _statement(random: Random, connection: sqlite3.Connection) -> None:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    tables = [name for (name,) in rows]
    if not tables:
        return
    table = random.choice(tables)
    info = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
    column = random.choice(info)[1]
    value = random.choice((*VALUES[:40], b"\0\xff", b""))
    if isinstance(value, (list, dict)) or (isinstance(value, int) and abs(value) >= 1 << 63):
        value = str(value)
    few = f'rowid IN (SELECT rowid FROM "{table}" ORDER BY rowid % 7 LIMIT 3)'  # noqa: S608
    kind = random.randrange(9)
    if kind < 4:  # noqa: PLR2004 - half of all
        where = f" WHERE {few}" if random.randrange(3) else ""
        connection.execute(f'UPDATE "{table}" SET "{column}" = ?{where}', (value,))  # noqa: S608
        return
    connection.execute(
        {
            4: f'ALTER TABLE "{table}" DROP COLUMN "{column}"',
            5: f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "x"',
            6: f'DELETE FROM "{table}"' + random.choice(("", f" WHERE {few}")),  # noqa: S608
            7: random.choice(
                (
                    f'DROP TABLE "{table}"',
                    f'INSERT INTO "{table}" SELECT * FROM "{table}"',  # noqa: S608
                )
            ),
            8: f'ALTER TABLE "{table}" RENAME TO "was_{table}"',
        }[kind]
    )
    if kind == 8 and random.randrange(2):  # noqa: PLR2004 - a kind
        wide = ", ".join(f"{name[1]}" for name in info)
        connection.execute(f'CREATE VIEW "{table}" AS SELECT {wide} FROM "was_{table}"')  # noqa: S608
