"""What a db export says beside its kernels, to ``Signals``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.database.cann_api import APIS
from npufix.profiling_parsers.database.communication import read_communication
from npufix.profiling_parsers.database.host_ops import HOST
from npufix.profiling_parsers.database.kernels import COMMUNICATION, TASK
from npufix.profiling_parsers.database.memory import read_allocations, read_memory
from npufix.profiling_parsers.database.query import LATEST_NS, Query
from npufix.profiling_parsers.database.texts import Lookup
from npufix.profiling_parsers.signals import SCHEMAS, Signals
from npufix.profiling_parsers.tables.columns import NONE, find_rows_with, pick
from npufix.profiling_parsers.tables.payloads import payload, payload_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.database.tables import Database
    from npufix.profiling_parsers.database.texts import Texts

    Integers = NDArray[np.int64]

COLLECTOR, FREQUENCY = "GC_RECORD", "AICORE_FREQ"
_COLLECTOR = Query(
    COLLECTOR,
    {"start_ns": ("startNs",), "end_ns": ("endNs",)},
    required=("start_ns", "end_ns"),
)
_FREQUENCY = Query(
    FREQUENCY,
    {"device": ("deviceId",), "start_ns": ("timestampNs",), "mhz": ("freq",)},
    required=("start_ns", "mhz"),
    dtypes={"mhz": np.float64},
)


_DTYPES = "ENUM_HCCL_DATA_TYPE"
_PAYLOADS = Query(
    COMMUNICATION,
    {"name": ("opName",), "count": ("count",), "dtype": ("dataType",)},
    required=("name",),
    dtypes={"name": np.int32},
)


_COPIES = Query(
    TASK,
    {
        "start_ns": ("startNs",),
        "end_ns": ("endNs",),
        "kind": ("taskType",),
        "connection": ("connectionId",),
    },
    required=("start_ns", "end_ns", "kind"),
    dtypes={"kind": np.int32},
)
_CALLS = Query(
    APIS,
    {"start_ns": ("startNs",), "connection": ("connectionId",), "name": ("name",)},
    required=("start_ns", "connection", "name"),
    dtypes={"name": np.int32},
)
_QUEUED = Query(
    HOST,
    {"start_ns": ("startNs",), "end_ns": ("endNs",), "name": ("name",)},
    required=("start_ns", "end_ns", "name"),
    dtypes={"name": np.int32},
)
_COPY = "MEMCPY_ASYNC"
_BLOCKS = ("aten::copy_", "aten::_local_scalar_dense")
"""Operators that wait for a copy from or to the host."""
_ASKS = ("acl_memcpy_host_to_device", "acl_memcpy_device_to_host")
"""What they put into the queue, whether they wait or not; ``Dequeue@...`` calls CANN."""
_LEAVES = "Dequeue@"
_LATE_NS = 50_000
"""How far the clocks of both may be apart."""


def read_signals(
    database: Database,
    texts: Texts,
    analysis: Database | None,
    apis: pd.DataFrame,
    host_ops: pd.DataFrame,
) -> Signals:
    """Read all that is recorded; ``analysis`` is analysis.db, ``apis`` are read already."""
    collectives, transports, links = read_communication(database, texts, analysis)
    return Signals(
        apis=apis,
        copies=_read_copies(database, texts, host_ops),
        gc=_read_collector(database),
        frequency=_read_frequency(database),
        memory=read_memory(database, texts),
        allocations=read_allocations(database, texts),
        collectives=collectives,
        transports=transports,
        links=links,
        payloads=_read_payloads(database, texts),
    )


def _read_payloads(database: Database, texts: Texts) -> pd.DataFrame:
    rows = database.columns(_PAYLOADS)
    dtypes = dict(database.values(_DTYPES, {"id": ("id",), "name": ("name",)}, "TEXT"))
    names = texts.category(rows["name"])
    return payload_table(
        {
            str(name): payload(int(count), dtypes.get(str(dtype), ""))
            for name, count, dtype in zip(names, rows["count"], rows["dtype"], strict=True)
        }
    )


def _read_copies(database: Database, texts: Texts, host_ops: pd.DataFrame) -> pd.DataFrame:
    """Read the copies from and to the host.

    A task does not say which way it copies, nor who asked for it. One that runs while the host is
    in an ``aten::copy_`` is from or to the host: that returns from copies on the device at once.
    One that does not (``non_blocking=True``) is told by the call that launched it.
    """
    rows = database.columns(_COPIES)
    copied = (texts.category(rows.pop("kind")) == _COPY) & (rows["start_ns"] > 0)
    frame = pd.DataFrame(rows)[copied]
    frame = frame[frame["end_ns"].between(frame["start_ns"], LATEST_NS)].sort_values("start_ns")
    waits = host_ops[host_ops["name"].isin(_BLOCKS).to_numpy(bool)]
    begun = waits["start_ns"].to_numpy()
    end = np.maximum.accumulate(begun + waits["duration_ns"].to_numpy())
    at = np.searchsorted(begun, frame["start_ns"].to_numpy() + _LATE_NS, side="right") - 1
    within = (at >= 0) & (frame["end_ns"].to_numpy() <= np.append(end, 0)[at] + _LATE_NS)
    asked = np.where(within, np.append(begun, NONE)[at], NONE)
    if not within.all():
        queued = _find_queued(database, texts, frame["connection"].to_numpy(), host_ops)
        asked = np.where(within, asked, queued)
    frame = frame.assign(duration_ns=frame["end_ns"] - frame["start_ns"], asked_ns=asked)
    known = frame[asked >= 0].reset_index(drop=True)[list(SCHEMAS["copies"])]
    typed: pd.DataFrame = known.astype(dict(SCHEMAS["copies"]))
    return typed


def _find_queued(
    database: Database, texts: Texts, connection: Integers, host_ops: pd.DataFrame
) -> Integers:
    """Return when each copy was asked for, -1 where that is no copy from or to the host.

    Its call of CANN is made by an entry of the queue that says which way it copies. Entries leave
    the queue as they came, so that the third one out is the third that an operator put in.
    """
    wanted = {"name": Lookup(texts.where(lambda name: name.startswith("aclrtMemcpyAsync")))}
    calls = database.columns(replace(_CALLS, only=wanted))
    wanted = {"name": Lookup(texts.where(lambda name: name.removeprefix(_LEAVES) in _ASKS))}
    entries = pd.DataFrame(database.columns(replace(_QUEUED, only=wanted)))
    names = texts.category(entries["name"].to_numpy())
    entries = entries[find_rows_with(pd.Series(names), _leaves_queue)].sort_values("start_ns")
    begun = entries["start_ns"].to_numpy()
    put = host_ops["start_ns"].to_numpy()[host_ops["name"].isin(_ASKS).to_numpy(bool)]
    asked = begun
    if len(put) == len(begun):
        own = host_ops["start_ns"].to_numpy()[host_ops["name"].isin(_BLOCKS).to_numpy(bool)]
        around = np.searchsorted(own, put, side="right") - 1
        asked = np.where(around >= 0, np.append(own, NONE)[around], put)
    at = np.searchsorted(begun, calls["start_ns"], side="right") - 1
    inside = (at >= 0) & (calls["start_ns"] <= np.append(entries["end_ns"].to_numpy(), 0)[at])
    found: Integers = np.where(inside, np.append(asked, NONE)[at], NONE)
    return pick(found, Lookup(calls["connection"])(connection))


def _leaves_queue(name: str) -> bool:
    return name.startswith(_LEAVES)


def _read_collector(database: Database) -> pd.DataFrame:
    runs = database.columns(_COLLECTOR)
    start, end = runs["start_ns"], runs["end_ns"]
    usable = (start > 0) & (end >= start) & (end < LATEST_NS)
    frame = pd.DataFrame({"start_ns": start, "duration_ns": end - start})[usable]
    return frame.sort_values("start_ns", kind="stable", ignore_index=True)


def _read_frequency(database: Database) -> pd.DataFrame:
    """Read the clocks; the table starts with one of a moment that lies behind the next."""
    clocks = pd.DataFrame(database.columns(_FREQUENCY))
    timed = (clocks["start_ns"] > 0) & (clocks["start_ns"] < LATEST_NS)
    known = (clocks["device"] >= NONE) & (clocks["mhz"] >= 0) & np.isfinite(clocks["mhz"])
    usable = clocks[timed & known]
    ordered = usable.sort_values(["device", "start_ns"], kind="stable", ignore_index=True)
    typed: pd.DataFrame = ordered.astype(dict(SCHEMAS["frequency"]))
    return typed
