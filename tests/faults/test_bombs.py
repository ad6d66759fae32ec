"""Dumps that mean harm: bombs, endless fields, databases whose schema does something."""

from __future__ import annotations

import gzip
import resource
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from benchmarks.generator.dump import OUTPUT
from commands import MANY, Npufix, dump, some

if TYPE_CHECKING:
    from collections.abc import Callable

_MEBIBYTES = 4096
"""Of addresses: much less than what some of these inputs would unpack to."""
_HEADER = b"Name,Type,Accelerator Core,Start Time(us),Duration(us)\n"
_ROW = b"Mul,Mul,AI_CORE,1736408883000852.603,9\n"
_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
_SCHEMAS = {
    "a view without end": [
        "ALTER TABLE {t} RENAME TO kept",
        "CREATE VIEW {t} AS " + _ENDLESS + " i AS name, i AS startNs, i AS endNs FROM n",
    ],
    "a view of itself": [
        "ALTER TABLE {t} RENAME TO kept", "CREATE VIEW other AS SELECT * FROM kept",
        "CREATE VIEW {t} AS SELECT * FROM other",
    ],
    "a virtual table": ["DROP TABLE {t}", "CREATE VIRTUAL TABLE {t} USING fts5(name, startNs)"],
    "a trigger": [
        "CREATE TRIGGER harm AFTER INSERT ON {t} BEGIN DELETE FROM {t}; END",
        "INSERT INTO {t} DEFAULT VALUES",
    ],
    "a column that is computed": [
        "ALTER TABLE {t} ADD COLUMN more GENERATED ALWAYS AS (zeroblob(900000000)) VIRTUAL",
    ],
    "a blob in place of a number": [
        "UPDATE {t} SET {c} = zeroblob(200000000) WHERE rowid = (SELECT min(rowid) FROM {t})",
    ],
    "an index over an expression": ["CREATE INDEX i ON {t}(abs({c}))"],
    "no table of ours": ["DROP TABLE {t}"],
    "a name without end": ['CREATE TABLE "' + "x" * 900_000 + '" (a)'],
    "two thousand columns": [
        "CREATE TABLE wide (" + ", ".join(f"c{n}" for n in range(2000)) + ")",
    ],
}  # fmt: skip


def _csv(folder: Path, text: bytes, name: str = "kernel_details.csv") -> None:
    (folder / name).write_bytes(text)


def _json(folder: Path, text: bytes) -> None:
    _csv(folder, text, "trace_view.json")


def _packed(folder: Path, part: bytes, times: int) -> None:
    (folder / "trace_view.json").unlink()
    with gzip.open(folder / "trace_view.json.gz", "wb", 9) as file:
        file.write(b"[")
        for _ in range(times):
            file.write(part)


def _pack_of_packs(folder: Path) -> None:
    (folder / "trace_view.json").unlink()
    once = gzip.compress(bytes(1 << 26))
    (folder / "trace_view.json.gz").write_bytes(gzip.compress(once * 50))


_EVENT = b'{"ph":"X","name":"%s","ts":"1736408883000852.6","dur":1,"pid":1,"tid":1,"args":{}},'
_FILES: dict[str, Callable[[Path], None]] = {
    "a pack of spaces": lambda to: _packed(to, b" " * (1 << 22), 512),
    "a pack of events": lambda to: _packed(to, _EVENT % b"a" * 10_000, 60),
    "a pack of packs": _pack_of_packs,
    "a field of 200 MB": lambda to: _csv(to, _HEADER + _ROW.replace(b"Mul", b"M" * 200_000_000, 1)),
    "a quote that is never closed": lambda to: _csv(to, _HEADER + b'"' + _ROW * 500_000),
    "a header of a million columns": lambda to: _csv(
        to, _HEADER[:-1] + b",x" * 1_000_000 + b"\n" + _ROW
    ),
    "a row of a million columns": lambda to: _csv(to, _HEADER + _ROW[:-1] + b",9" * 1_000_000),
    "a million empty lines": lambda to: _csv(to, _HEADER + b"\n" * 1_000_000 + _ROW),
    "a number of a million digits": lambda to: _csv(
        to, _HEADER + _ROW.replace(b"9\n", b"9" * 1_000_000 + b"\n")
    ),
    "zeros": lambda to: _csv(to, bytes(50_000_000)),
    "JSON a million deep": lambda to: _json(to, b"[" * 1_000_000),
    "objects a million deep": lambda to: _json(to, b'[{"a":' + b'{"a":' * 1_000_000),
    "arguments a million deep": lambda to: _json(
        to, b'[{"ph":"X","name":"a","ts":1,"args":{"a":' + b"[" * 1_000_000
    ),
    "a name of 100 MB": lambda to: _json(to, b"[" + _EVENT % (b"a" * 100_000_000)),
    "a number of JSON of a million digits": lambda to: _json(
        to, b'[{"ph":"X","name":"a","ts":' + b"9" * 1_000_000 + b"}]"
    ),
    "a communication.json that is deep": lambda to: _csv(
        to, b'{"step1":' * 200_000, "communication.json"
    ),
    "a communication.json of many steps": lambda to: _csv(
        to,
        b"{" + b",".join(b'"step%d":{}' % n for n in range(300_000)) + b"}",
        "communication.json",
    ),
}


_CHEAP = ("a million empty lines", "a number of a million digits", "JSON a million deep")


def _bounded() -> None:
    # What the worker of pytest has mapped, torch perhaps, is not the command's: without room for
    # the stacks of threads, Arrow waits for one that never starts.
    mapped = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    most = mapped + (_MEBIBYTES << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


@pytest.mark.fault(kind="bombs and endless fields")
@pytest.mark.parametrize("name", _FILES if MANY else _CHEAP)
def test_what_unpacks_nests_or_goes_on_is_read_in_bounds_or_refused(
    npufix: Npufix, name: str
) -> None:
    whole = dump(npufix.root)
    _FILES[name](whole / OUTPUT)
    try:
        npufix("diagnose", whole, spoil=_bounded)
    finally:
        shutil.rmtree(whole)


@pytest.mark.fault(kind="hostile databases")
@pytest.mark.parametrize("name", some([*_SCHEMAS]))
def test_nothing_of_a_schema_is_run_and_nothing_is_written(npufix: Npufix, name: str) -> None:
    whole = dump(npufix.root, "db")
    file = min((whole / OUTPUT).glob("ascend_pytorch_profiler*.db"))
    _spoil(file, _SCHEMAS[name])
    before, beside = file.read_bytes(), sorted(file.parent.iterdir())
    try:
        npufix("diagnose", whole, spoil=_bounded)
        assert file.read_bytes() == before
        assert sorted(file.parent.iterdir()) == beside
    finally:
        shutil.rmtree(whole)


def _spoil(file: Path, statements: list[str]) -> None:
    connection = sqlite3.connect(file)
    try:
        tables = [
            row[0]
            for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        table = next(t for t in ("TASK", "COMPUTE_TASK_INFO", *tables) if t in tables)
        column = connection.execute(f'PRAGMA table_info("{table}")').fetchone()[1]
        for statement in statements:
            text = statement.replace("{t}", f'"{table}"').replace("{c}", f'"{column}"')
            connection.execute(text)
        connection.commit()
    finally:
        connection.close()
