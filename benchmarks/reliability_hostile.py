"""Dumps and code that mean harm: bombs, endless fields, hostile databases, attacks of code."""

from __future__ import annotations

import gzip
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.generator.dump import OUTPUT
from benchmarks.reliability_running import command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.reliability_inputs import Place

    Faults = Iterator[str]

_ROOT = Path(__file__).parents[1]
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


def bombs(place: Place) -> Faults:
    """Files that unpack, nest or go on for ever: read in bounds, or refused."""
    for name, make in _FILES.items():
        dump = place.dump()
        make(dump / OUTPUT)
        ended = command(["diagnose", dump], place.root, spoil=_bounded)
        yield _fault(name, ended.fault())
        shutil.rmtree(dump)


def _fault(name: str, fault: str) -> str:
    return f"{name}: {fault}" if fault else ""


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEBIBYTES << 20, _MEBIBYTES << 20))


def _csv(folder: Path, text: bytes, name: str = "kernel_details.csv") -> None:
    (folder / name).write_bytes(text)


def _json(folder: Path, text: bytes, name: str = "trace_view.json") -> None:
    (folder / name).write_bytes(text)


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
    "a communication.json that is deep": lambda to: _json(
        to, b'{"step1":' * 200_000, "communication.json"
    ),
    "a communication.json of many steps": lambda to: _json(
        to,
        b"{" + b",".join(b'"step%d":{}' % n for n in range(300_000)) + b"}",
        "communication.json",
    ),
}


def databases(place: Place) -> Faults:
    """Databases whose schema does something: nothing of it is run, nothing is written."""
    for name, statements in _SCHEMAS.items():
        dump = place.dump("db")
        (file,) = sorted((dump / OUTPUT).glob("ascend_pytorch_profiler*.db"))[:1]
        _spoil(file, statements)
        before = file.read_bytes()
        ended = command(["diagnose", dump], place.root, spoil=_bounded)
        beside = [path.name for path in file.parent.glob("*-journal")]
        beside += [path.name for path in file.parent.glob("*-wal")]
        changed = "" if file.read_bytes() == before and not beside else "the database was written"
        yield _fault(name, ended.fault() or changed)
        shutil.rmtree(dump)


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


def attacks(place: Place) -> Faults:
    """Code under verification that attacks: files, processes, limits, the network."""
    yield from _tests(place, "test_attacks.py")


def hostile_dumps(place: Place) -> Faults:
    """Try the smallest of each kind of hostile dump."""
    yield from _tests(place, "test_hostile_dumps.py")


def _tests(place: Place, name: str) -> Faults:
    """Run tests of the suite, which hold these attempts; one that is skipped counts for nothing."""
    result = place.folder() / "result.xml"
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", f"--junitxml={result}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, str(_ROOT / "tests" / "faults" / name)],
        cwd=_ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "TMPDIR": str(place.folder())},
    )  # fmt: skip
    if not result.exists():
        yield f"{name} does not run: {done.stdout[-300:]}"
        return
    for case in ET.parse(result).getroot().iter("testcase"):  # noqa: S314 - our own
        if case.find("skipped") is not None:
            continue
        broken = [part for kind in ("failure", "error") if (part := case.find(kind)) is not None]
        yield f"{case.get('name')}: {broken[0].get('message')}"[:300] if broken else ""
