"""Changes to an input: its bytes, cells or values.

Each asks a ``Random`` what to do. That of hypothesis (``strategies.randoms``) makes choices that
can be made smaller, so what shortens an input comes first.
"""

from __future__ import annotations

import json
import math
import sqlite3
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
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
    b"{0}", b"[bold]", b"[/]", b",", b";", b":", b"|", b"a" * 5000,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    0, -1, 1, 2, 255, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64,
    10**30, -(10**30), 10**17, 0.5, -0.5, 1e308, -1e308, 1e-320, 1e19, math.nan, math.inf,
    -math.inf, None, True, False, "", "0", "-1", "1.5", "nan", "x" * 3000, "\x1b[31m\x9b",
    "\ud800", "\0", "../../etc/passwd", "[bold]", [], {}, [[]], [None], {"": None},
    {"a": {"a": []}},
)  # fmt: skip
_PIECES = (
    b"x", b"self", b"(", b")", b"*", b"**", b"lambda: 0", b"torch.nn.functional.softmax(x)", b"=",
    b":=", b"async", b"await", b"yield", b"match", b"# npufix: ignore", b"\xe4", b"\\", b'"""',
    b"f'{x!r}'", b"...", b"# -*- coding: utf-16 -*-", b"# coding: rot13", b"0" * 5000,
    b"x." * 300 + b"x", b"del", b"global x;",
)  # fmt: skip
_DEEPEST = 50
"""Deeper than any JSON that is meant."""


def of_bytes(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change bytes wherever they are."""
    changes: tuple[Callable[[bytes, bytes, bytes], bytes], ...] = (
        lambda head, _part, _tail: head,
        lambda head, _part, tail: head + tail,
        lambda head, part, tail: head + _word(random) + part + tail,
        lambda head, _part, tail: head + _word(random) + tail,
        lambda head, part, tail: head + part * random.choice((2, 3, 50)) + tail,
        lambda head, _part, tail: head + random.randbytes(random.randrange(1, 9)) + tail,
        lambda head, _part, tail: head + _split(random, random.choice(others))[1] + tail,
        lambda head, part, tail: (
            head + bytes(byte ^ 1 << random.randrange(8) for byte in part[:1]) + part[1:] + tail
        ),
    )
    return random.choice(changes)(*_split(random, data))


def of_lines(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change a table: a cell, a row, a column, the ends of its lines."""
    lines = data.split(b"\n")
    row, other = random.randrange(len(lines)), random.randrange(len(lines))
    cells = lines[row].split(b",")
    column = random.randrange(len(cells))
    cell = cells[column]
    kind = random.choice(("bytes", "cell", "cell", "cell", "cell", "cell", "swap", "whole"))
    if kind == "bytes":
        return of_bytes(random, data, others)
    if kind == "whole":
        return random.choice((_line_ends, _encode, _without_column))(random, data)
    if kind == "swap":
        lines[row], lines[other] = lines[other], lines[row]
    else:
        quoted = b'"' + cell + random.choice((b"", b'"', b'""', b'"x'))
        word = [_word(random)]
        cells[column : column + 1] = random.choice(
            ([], word, word, word, [b"", cell], [cell, cell], [quoted])
        )
        lines[row] = b",".join(cells)
    return b"\n".join(lines)


def of_json(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change values of JSON, which stays JSON; what is none any more has its bytes changed."""
    try:
        holder = [json.loads(data)]
    except (ValueError, RecursionError):
        return of_bytes(random, data, others)
    if random.randrange(4) == 0:
        return of_bytes(random, data, others)
    places = list(_places(holder, 0))
    for _ in range(random.choice((1, 1, 2, 5))):
        _change(random, *random.choice(places))
    return json.dumps(holder[0]).encode("utf-8", "replace") if holder else b""


def of_python(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change source: drop, copy, indent lines, swap words, nest as deep as no person would."""
    lines = data.split(b"\n")
    row, other = random.randrange(len(lines)), random.randrange(len(lines))
    line, words = lines[row], lines[row].split(b" ")
    words[random.randrange(len(words))] = random.choice(_PIECES)
    first, last = random.choice(
        ((b"(", b")"), (b"[", b"]"), (b"-", b""), (b"x+", b""), (b"not ", b""))
    )
    deep = random.choice((1, 20, 90, 250, 3000))
    indent = random.choice((b" ", b"    ", b"\t", b"\x0c"))
    changed = random.choice((
        None, [], [indent + line], [b" ".join(words)], [lines[other], line], [lines[other]],
        [line + first * deep + b"x" + last * deep],
    ))  # fmt: skip
    if changed is None:
        return of_bytes(random, data, others)
    lines[row : row + 1] = changed
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


def _word(random: Random) -> bytes:
    return random.choice(WORDS)


def _split(random: Random, data: bytes) -> tuple[bytes, bytes, bytes]:
    at = random.randrange(len(data) + 1)
    end = at + random.choice((0, 1, 2, 4, 16, 64, 1024))
    return data[:at], data[at:end], data[end:]


def _line_ends(random: Random, data: bytes) -> bytes:
    plain = data.replace(b"\r\n", b"\n")
    return plain.replace(b"\n", random.choice((b"\n", b"\r\n", b"\r", b"\n\n")))


def _encode(random: Random, data: bytes) -> bytes:
    encodings = ("utf-16", "utf-8-sig", "utf-32", "utf-16-be")
    return data.decode("latin-1").encode(random.choice(encodings))


def _without_column(random: Random, data: bytes) -> bytes:
    rows = [line.split(b",") for line in data.split(b"\n")]
    column = random.randrange(len(rows[0]))
    return b"\n".join(b",".join(row[:column] + row[column + 1 :]) for row in rows)


def _places(value: Any, depth: int) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 - what JSON may hold
    """Yield every container and key; the first ones of a long list stand for the rest."""
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for key, inner in items[:300]:
        yield value, key
        if isinstance(inner, (dict, list)) and depth < _DEEPEST:
            yield from _places(inner, depth + 1)


def _change(random: Random, where: Any, key: Any) -> None:  # noqa: ANN401 - what JSON may hold
    try:
        value = where[key]
    except (KeyError, IndexError):  # a change before this one took it away
        return
    kind = random.choice(("delete", "set", "set", "set", "set", "nest", "number", "add"))
    if kind == "delete" and len(where) > 1:
        del where[key]
    elif kind == "set":
        where[key] = random.choice(VALUES)
    elif kind == "nest":
        few = 2 if isinstance(value, (list, dict)) else 50  # lists of lists would fill the memory
        where[key] = random.choice(([value], {"x": value}, str(value), [value] * few))
    elif kind == "number" and isinstance(value, (int, float)):
        small = abs(value) < 1e300  # noqa: PLR2004 - what a float holds, and Python spells
        real, text = (float(value), str(value)) if small else (0.5, "1" * 5000)
        where[key] = random.choice((-value, value + 1, real, text, -1 - value))
    elif isinstance(where, dict):
        where[random.choice(("", "x", "\x1b[31m", str(key).upper(), f"{key} "))] = value
    else:
        where.append(value)


def _page(random: Random, data: bytes) -> bytes:
    """Change a few bytes of one page, most often of its header or its pointers to cells."""
    size = 4096
    page = random.randrange(max(1, len(data) // size)) * size
    at = page + random.randrange(random.choice((16, 128, size)))
    new = random.choice((b"\0", b"\xff", b"\xff\xff\xff\xff", b"\0\0\0\1", random.randbytes(2)))
    return data[:at] + new + data[at + len(new) :]


def _statement(random: Random, connection: sqlite3.Connection) -> None:
    """Run a statement that changes the values or the schema of one table."""
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    if not rows:
        return
    table = random.choice(rows)[0]
    info = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
    column = random.choice(info)[1]
    value = random.choice((*VALUES[:40], b"\0\xff", b""))
    if isinstance(value, int) and abs(value) >= 1 << 63:
        value = str(value)
    few = f' WHERE rowid IN (SELECT rowid FROM "{table}" ORDER BY rowid % 7 LIMIT 3)'  # noqa: S608
    update = f'UPDATE "{table}" SET "{column}" = ?'  # noqa: S608
    renamed = f'ALTER TABLE "{table}" RENAME TO "was_{table}"'
    wide = ", ".join(f"{name[1]}" for name in info)
    first, *more = random.choice(
        (
            *[(update + few,)] * 5, *[(update,)] * 3,
            (f'DROP TABLE "{table}"',),
            (f'ALTER TABLE "{table}" DROP COLUMN "{column}"',),
            (f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "x"',),
            (f'DELETE FROM "{table}"',), (f'DELETE FROM "{table}"{few}',),  # noqa: S608
            (f'INSERT INTO "{table}" SELECT * FROM "{table}"',),  # noqa: S608
            (renamed,),
            (renamed, f'CREATE VIEW "{table}" AS SELECT {wide} FROM "was_{table}"'),  # noqa: S608
        )
    )  # fmt: skip
    connection.execute(first, (value,) if "?" in first else ())
    for statement in more:
        connection.execute(statement)
