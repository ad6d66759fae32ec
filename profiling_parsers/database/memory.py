"""Device memory of a db export: over time, and who asked for each block. Sizes are in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.database.query import Query
from npufix.profiling_parsers.signals import SCHEMAS
from npufix.profiling_parsers.tables.columns import NONE, category

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.database.query import Columns
    from npufix.profiling_parsers.database.tables import Database
    from npufix.profiling_parsers.database.texts import Texts

    Integers = NDArray[np.int64]

RECORD, PROCESS, BLOCKS, EVENTS = "MEMORY_RECORD", "NPU_MEM", "OP_MEMORY", "NPU_OP_MEM"
_RECORD = Query(
    RECORD,
    {
        "component": ("component",),
        "time_ns": ("timestamp",),
        "allocated_bytes": ("totalAllocated",),
        "reserved_bytes": ("totalReserved",),
        "device": ("deviceId",),
    },
    required=("component", "time_ns"),
)
_PROCESS = Query(
    PROCESS,
    {
        "component": ("type",),
        "time_ns": ("timestampNs",),
        "ddr": ("ddr",),
        "hbm": ("hbm",),
        "device": ("deviceId",),
    },
    required=("component", "time_ns"),
)
_BLOCKS = Query(
    BLOCKS,
    {
        "name": ("name",),
        "size_bytes": ("size",),
        "allocated_ns": ("allocationTime",),
        "duration_ns": ("duration",),
    },
    required=("name", "size_bytes"),
)
_EVENTS = Query(
    EVENTS,
    {
        "name": ("operatorName",),
        "address": ("addr",),
        "kind": ("type",),
        "size_bytes": ("size",),
        "time_ns": ("timestampNs",),
        "allocated_bytes": ("totalAllocate",),
        "reserved_bytes": ("totalReserve",),
        "component": ("component",),
        "device": ("deviceId",),
    },
    required=("name", "address", "kind", "size_bytes", "time_ns"),
)
_APP, _KINDS = "APP", "ENUM_MEMORY"


def read_memory(database: Database, texts: Texts) -> pd.DataFrame:
    """Read ``Signals.memory``: the allocators, and the process as a whole (component ``APP``)."""
    # msprof knows the allocator of CANN only.
    record = database.columns(_RECORD if RECORD in database else _EVENTS)
    process = database.columns(_PROCESS)
    kind = _kinds(database, texts).category(process["component"])
    of_process = np.asarray(kind) == "app"
    process = {key: column[of_process] for key, column in process.items()}
    process["reserved_bytes"] = process["ddr"].clip(0) + process["hbm"].clip(0)
    process["allocated_bytes"] = np.full(len(process["ddr"]), NONE, np.int64)
    component = texts.category(record["component"])
    both = {
        key: np.concatenate([record[key], process[key]])
        for key in ("time_ns", "allocated_bytes", "reserved_bytes", "device")
    }
    for key in ("allocated_bytes", "reserved_bytes"):
        both[key] = both[key].clip(NONE)  # a total below nothing is none
    names = [*component.categories, _APP]
    codes = np.concatenate([component.codes, np.full(len(process["ddr"]), len(names) - 1)])
    frame = pd.DataFrame(
        {
            "component": _merge_categories(codes, names),
            "device": _devices(both.pop("device")),
            **both,
        }
    )
    return _read_times(frame, "memory", "time_ns")


def read_allocations(database: Database, texts: Texts) -> pd.DataFrame:
    """Read ``Signals.allocations``; a block that was never given back has no ``duration_ns``."""
    if BLOCKS in database:
        blocks = database.columns(_BLOCKS)
    else:
        blocks = _pair(database.columns(_EVENTS), _kinds(database, texts))
    frame = pd.DataFrame(
        {
            "name": texts.category(blocks["name"]),
            "size_bytes": blocks["size_bytes"],
            "allocated_ns": blocks["allocated_ns"].clip(NONE),
            "duration_ns": blocks["duration_ns"].clip(NONE),
        }
    )
    return frame.astype(dict(SCHEMAS["allocations"]))


def _kinds(database: Database, texts: Texts) -> Texts:
    """Return the names of the kinds of record, for which some versions have a table."""
    return database.texts(_KINDS, "name") if _KINDS in database else texts


def _pair(events: Columns, kinds: Texts) -> Columns:
    """Return the blocks that were allocated, each until its address was given back."""
    order = np.lexsort((events["time_ns"], events["address"]))
    kind = kinds.category(events["kind"][order])
    allocates = np.asarray(kind) == "allocate"
    address, time = events["address"][order], events["time_ns"][order]
    ends = np.append(address[1:] == address[:-1], False) & np.append(~allocates[1:], False)
    duration = np.where(ends, np.append(time[1:], 0) - time, NONE)[: len(time)]
    return {
        "name": events["name"][order][allocates],
        "size_bytes": events["size_bytes"][order][allocates],
        "allocated_ns": time[allocates],
        "duration_ns": duration[allocates],
    }


def _merge_categories(codes: Integers, names: list[str]) -> pd.Categorical[str]:
    """Return a category of names of which one may be there twice."""
    distinct = {name: code for code, name in enumerate(dict.fromkeys(names))}
    merged = np.array([distinct[name] for name in names], np.int64)
    return category(merged[codes.astype(np.int64)], list(distinct))


def _devices(devices: Integers) -> pd.Categorical[str]:
    """Return devices as the text export names them: ``NPU:0``."""
    codes, distinct = pd.factorize(devices)
    return category(codes, [f"NPU:{number}" if number >= 0 else "" for number in distinct.tolist()])


def _read_times(frame: pd.DataFrame, table: str, time: str) -> pd.DataFrame:
    known = frame[frame[time] > 0].sort_values(time, kind="stable", ignore_index=True)
    return known.astype(dict(SCHEMAS[table]))
