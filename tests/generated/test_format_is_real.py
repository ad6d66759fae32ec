"""Generated files have the columns, keys and tables of real dumps, where those are at hand."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.generator.dump import OUTPUT, TEXT_FILES, write_dump
from benchmarks.generator.parameters import Parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

REAL = Path(__file__).parents[3] / "shared" / "dumps"
ALEXNET = REAL / "alexnet_910b_2ranks"
TABLES = [name for name in TEXT_FILES if name.endswith(".csv")]
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="no real dumps")


def first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline()


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    ("version", "dump"),
    [
        ("cann8.0", ALEXNET / "text/rank0_ascend_pt"),
        ("cann8.3", REAL / "llm_megatron_4ranks/rank_0_ascend_pt"),
    ],
)
def test_tables_have_the_real_header(tmp_path: Path, version: Any, dump: Path, name: str) -> None:
    own = write_dump(Parameters(kernels=60, version=version), tmp_path)
    real = dump / OUTPUT / name
    if not real.exists():
        pytest.skip(f"this dump has no {name}")
    assert first_line(own / OUTPUT / name) == first_line(real)


def kinds(path: Path) -> Iterator[tuple[object, ...]]:
    """Yield what tells the kinds of events apart, and the types of the fields of each."""
    events = json.loads(path.read_text(encoding="utf-8"))
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    for event in events:
        fields = {
            (key, type(value).__name__.replace("int", "float")) for key, value in event.items()
        }
        yield event["ph"], event.get("cat"), names[event["pid"]], frozenset(fields)


def test_events_of_a_trace_are_those_of_a_real_one(tmp_path: Path) -> None:
    own = write_dump(Parameters(kernels=120), tmp_path) / OUTPUT / "trace_view.json"
    real = ALEXNET / "text/rank0_ascend_pt" / OUTPUT / "trace_view.json"
    made = {kind for kind in kinds(own) if kind[2] != "Python GC"}
    assert made <= set(kinds(real))


def schema(path: Path) -> dict[str, dict[str, str]]:
    with closing(
        sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    ) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            table: {
                row[1]: row[2] for row in database.execute(f"PRAGMA table_info({table})").fetchall()
            }
            for (table,) in names
        }


@pytest.mark.parametrize("name", ["ascend_pytorch_profiler_0.db", "analysis.db"])
def test_databases_have_the_real_tables(tmp_path: Path, name: str) -> None:
    own = schema(write_dump(Parameters(kernels=60), tmp_path, "db") / OUTPUT / name)
    real = schema(ALEXNET / "db/rank0_ascend_pt" / OUTPUT / name)
    own.pop("GC_RECORD", None)  # that run did not watch the garbage collector
    for table, columns in own.items():
        added = {"depth", "waitNs"}  # by MindStudio Insight, which opened the real one
        there = {key: kind for key, kind in real[table].items() if key not in added}
        assert columns == there, table
