"""What a db export says beside its kernels, to ``Signals``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.database.communication import read_communication
from npufix.profiling_parsers.database.kernels import COMMUNICATION
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


def read_signals(
    database: Database, texts: Texts, analysis: Database | None, apis: pd.DataFrame
) -> Signals:
    """Read all that is recorded; ``analysis`` is analysis.db, ``apis`` are read already."""
    collectives, transports, links = read_communication(database, texts, analysis)
    return Signals(
        apis=apis,
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
