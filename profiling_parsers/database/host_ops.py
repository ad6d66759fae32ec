"""PYTORCH_API of a db export: torch operators and Python functions, and the kernels they led to."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.database.query import LATEST_NS, Query
from npufix.profiling_parsers.database.texts import Lookup, in_start_order
from npufix.profiling_parsers.tables.columns import NONE, find_rows_with, one_line, pick
from npufix.profiling_parsers.trace.rows import BUILT_IN, MODULE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.database.call_chains import CallChains
    from npufix.profiling_parsers.database.query import Columns
    from npufix.profiling_parsers.database.tables import Database
    from npufix.profiling_parsers.database.texts import Texts

    Integers = NDArray[np.int64]
    Rows = NDArray[np.int32]

HOST, CONNECTIONS = "PYTORCH_API", "CONNECTION_IDS"
_EVENT = {
    "start_ns": ("startNs",),
    "end_ns": ("endNs",),
    "thread": ("globalTid",),
    "name": ("name",),
    "type": ("type",),
}
_OPERATOR = {
    **_EVENT,
    "connection": ("connectionId",),
    "sequence": ("sequenceNumber",),
    "input_dims": ("inputShapes",),
    "input_types": ("inputDtypes",),
    "stack": ("callchainId",),
}
_SMALL = dict.fromkeys(("name", "type", "input_dims", "input_types", "stack"), np.int32)
_REQUIRED = ("start_ns", "end_ns", "type")
_OPERATORS = Query(
    HOST,
    _OPERATOR,
    _REQUIRED,
    expected=("name", "thread", "connection", "sequence", "stack"),
    dtypes=_SMALL,
    only={"type": Lookup(np.array([50001]))},
)
_FUNCTIONS = Query(HOST, _EVENT, _REQUIRED, dtypes=_SMALL, only={"type": Lookup(np.array([50003]))})
_LINKS = Query(
    CONNECTIONS,
    {"id": ("id",), "connection": ("connectionId",)},
    required=("id", "connection"),
)
_THREAD_BITS = 32
_LETTER = re.compile(r"[A-Za-z]")


@dataclass(frozen=True)
class HostOperators:
    """``frame`` in start order, with the columns that ``attribution`` works on."""

    frame: pd.DataFrame
    connection: Integers
    """What leads from the operator, through CONNECTION_IDS, to its kernels."""
    malformed: int


def read_host_operators(database: Database, texts: Texts, chains: CallChains) -> HostOperators:
    """Read the operators (type 50001), not the queue and the Python functions beside them."""
    rows, malformed = _events(database, _OPERATORS)
    shapes = texts.category(rows.pop("input_dims"), one_line)
    types = texts.category(rows.pop("input_types"), one_line)
    if any(_LETTER.search(text) for text in shapes.categories):
        # torch_npu writes the shapes into the column of the types and the other way round.
        shapes, types = types, shapes
    frame = pd.DataFrame(
        {
            "name": texts.category(rows.pop("name"), one_line),
            **_places(rows),
            "sequence": rows.pop("sequence"),
            "input_dims": shapes,
            "input_types": types,
            "stack": chains.of(rows.pop("stack")),
        },
        copy=False,
    )
    return HostOperators(frame, rows["connection"], malformed)


def read_python_calls(database: Database, texts: Texts) -> pd.DataFrame | None:
    """Read the modules (``nn.Module: Conv2d_0``) and Python functions that were running.

    Those that are no place in a source are most of the table, and left out.
    """
    wanted = Lookup(texts.where(lambda name: not name.startswith(BUILT_IN)))
    rows, _ = _events(database, replace(_FUNCTIONS, only={**_FUNCTIONS.only, "name": wanted}))
    if not len(rows["start_ns"]):
        return None
    names = texts.category(rows.pop("name"), one_line)
    return pd.DataFrame({"name": names, **_places(rows)}, copy=False)


def modules_of(calls: pd.DataFrame | None) -> pd.DataFrame | None:
    """Return the modules: functions say nothing new where operators have their call stacks."""
    found = None
    if calls is not None:
        found = calls[find_rows_with(calls["name"], lambda name: name.startswith(MODULE))]
    return found if found is not None and len(found) else None


def find_launching_operators(
    database: Database, operators: HostOperators, connection: Integers
) -> Rows:
    """Return the row of the operator that each kernel is connected to, -1 if unknown.

    A connection leads from several operators only between forward and backward; the innermost,
    which is the shortest, counts.
    """
    links = database.columns(_LINKS)
    hosts = np.flatnonzero(operators.connection != NONE).astype(np.int32)
    duration = operators.frame["duration_ns"].to_numpy()
    launches = Lookup(operators.connection[hosts])
    if not launches.unique:
        hosts = hosts[np.argsort(duration[hosts], kind="stable")]
        launches = Lookup(operators.connection[hosts])
    operator = pick(hosts, launches(links["id"]))
    kernels = Lookup(links["connection"])
    if not kernels.unique:
        length = np.where(operator >= 0, pick(duration, operator), LATEST_NS)
        operator, targets = (
            column[np.argsort(length, kind="stable")] for column in (operator, links["connection"])
        )
        kernels = Lookup(targets)
    return pick(operator, kernels(connection))


def _events(database: Database, query: Query) -> tuple[Columns, int]:
    """Return the events that have a time, in start order, and how many have none."""
    rows = database.columns(query)
    del rows["type"]
    start = rows["start_ns"]
    usable = (start >= 1) & (start <= LATEST_NS)
    return in_start_order(rows, usable), int(np.count_nonzero(~usable))


def _places(rows: Columns) -> Columns:
    """Return where each event ran and when; ``rows`` loses that, to save memory."""
    thread, start, duration = rows.pop("thread"), rows.pop("start_ns"), rows.pop("end_ns")
    np.clip(duration, 0, LATEST_NS, out=duration)
    duration -= start
    np.maximum(duration, 0, out=duration)
    pid = (thread >> _THREAD_BITS).astype(np.int32)
    tid = thread.astype(np.uint32)  # its lower half
    return {"pid": pid, "tid": tid, "start_ns": start, "duration_ns": duration}
