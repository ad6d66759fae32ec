"""The db export of ranks that belong together: what the text export says of their groups."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Json = dict[str, Any]
    Rows = Iterator[tuple[object, ...]]

_TIMES = (
    "Start Timestamp(us)", "Elapse Time(ms)", "Transit Time(ms)", "Wait Time(ms)",
    "Synchronization Time(ms)", "Idle Time(ms)",
)  # fmt: skip


def write_groups(output: Path, communication: Json, matrix: Json, metadata: Json) -> None:
    """Replace what the databases say of collectives, and add who is in which group."""
    with closing(sqlite3.connect(output / "analysis.db")) as database:
        for table, rows in (
            ("CommAnalyzerTime", _times(communication)),
            ("CommAnalyzerBandwidth", _bandwidth(communication)),
            ("CommAnalyzerMatrix", _links(matrix)),
        ):
            _replace(database, table, rows)
        database.commit()
    (main,) = output.glob("ascend_pytorch_profiler_*.db")
    with closing(sqlite3.connect(main)) as database:
        stated = [(name, json.dumps(value)) for name, value in metadata.items()]
        database.executemany("DELETE FROM META_DATA WHERE name = ?", [row[:1] for row in stated])
        database.executemany("INSERT INTO META_DATA VALUES (?, ?)", stated)
        database.commit()


def _replace(database: sqlite3.Connection, table: str, rows: Rows) -> None:
    found = database.execute(f"PRAGMA table_info({table})").fetchall()
    if found:  # at Level0 there is none
        places = ",".join("?" * len(found))
        database.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names
        database.executemany(f"INSERT INTO {table} VALUES ({places})", rows)  # noqa: S608 - same


def _collectives(steps: Json) -> Iterator[tuple[str, str, str, str, Json]]:
    """Yield name, group, step, kind and content of each entry."""
    for step, kinds in steps.items():
        for kind, entries in kinds.items():
            for key, content in entries.items():
                name, _, group = key.rpartition("@")
                yield name, group, step, kind, content


def _times(communication: Json) -> Rows:
    for name, group, step, kind, content in _collectives(communication):
        times = content["Communication Time Info"]
        yield (name, group, *(times[key] for key in _TIMES), step, kind)


def _bandwidth(communication: Json) -> Rows:
    for name, group, step, kind, content in _collectives(communication):
        for transport, link in content["Communication Bandwidth Info"].items():
            size, time = link["Transit Size(MB)"], link["Transit Time(ms)"]
            speed, large = link["Bandwidth(GB/s)"], link["Large Packet Ratio"]
            if size:
                yield name, group, transport, size, time, speed, large, size, 1, time, step, kind


def _links(matrix: Json) -> Rows:
    for name, group, step, kind, content in _collectives(matrix):
        for pair, link in content.items():
            size, time = link["Transit Size(MB)"], link["Transit Time(ms)"]
            yield (name, group, *pair.split("-"), link["Transport Type"], size, time,
                   link["Bandwidth(GB/s)"], step, kind, name)  # fmt: skip
