"""What a db export says beside its kernels, to ``Signals``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.database.communication import read_communication
from npufix.profiling_parsers.database.kernels import COMMUNICATION, TASK
from npufix.profiling_parsers.database.memory import read_allocations, read_memory
from npufix.profiling_parsers.database.query import LATEST_NS, Query
from npufix.profiling_parsers.signals import SCHEMAS, Signals
from npufix.profiling_parsers.tables.columns import NONE
from npufix.profiling_parsers.tables.payloads import payload, payload_table

if TYPE_CHECKING:
    from npufix.profiling_parsers.database.tables import Database
    from npufix.profiling_parsers.database.texts import Texts

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
    {"start_ns": ("startNs",), "end_ns": ("endNs",), "kind": ("taskType",)},
    required=("start_ns", "end_ns", "kind"),
    dtypes={"kind": np.int32},
)
_COPY = "MEMCPY_ASYNC"
_BLOCKS = ("aten::copy_", "aten::_local_scalar_dense")
"""Operators that wait for a copy from or to the host."""
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
    """Read the copies that the host waits for.

    A task does not say which way it copies, nor who asked for it. One that runs while the host is
    in an ``aten::copy_`` is from or to the host: that returns from copies on the device at once.
    """
    rows = database.columns(_COPIES)
    copied = (texts.category(rows["kind"]) == _COPY) & (rows["start_ns"] > 0)
    frame = pd.DataFrame({"start_ns": rows["start_ns"], "end_ns": rows["end_ns"]})[copied]
    frame = frame[frame["end_ns"].between(frame["start_ns"], LATEST_NS)].sort_values("start_ns")
    waits = host_ops[host_ops["name"].isin(_BLOCKS).to_numpy(bool)]
    begun = waits["start_ns"].to_numpy()
    end = np.maximum.accumulate(begun + waits["duration_ns"].to_numpy())
    at = np.searchsorted(begun, frame["start_ns"].to_numpy() + _LATE_NS, side="right") - 1
    within = (at >= 0) & (frame["end_ns"].to_numpy() <= np.append(end, 0)[at] + _LATE_NS)
    frame, at = frame[within], at[within]
    found = {
        "start_ns": frame["start_ns"],
        "duration_ns": frame["end_ns"] - frame["start_ns"],
        "asked_ns": begun[at],
    }
    typed: pd.DataFrame = pd.DataFrame(found).reset_index(drop=True).astype(dict(SCHEMAS["copies"]))
    return typed


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
