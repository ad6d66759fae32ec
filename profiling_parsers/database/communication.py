"""Collectives of a db export: analysis.db has what communication.json and _matrix.json say.

Where analysis.db has none, COMMUNICATION_OP still says when each collective ran.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from npufix.profiling_parsers.database.kernels import COMMUNICATION
from npufix.profiling_parsers.database.query import LATEST_NS, Query
from npufix.profiling_parsers.signals import SCHEMAS, empty
from npufix.profiling_parsers.tables.collective_units import (
    DIFFERENCES,
    LARGEST,
    LATEST_US,
    in_units,
)
from npufix.profiling_parsers.tables.columns import NONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.profiling_parsers.database.tables import Database
    from npufix.profiling_parsers.database.texts import Texts

    Tables = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]

TIMES, BANDWIDTHS, MATRIX = "CommAnalyzerTime", "CommAnalyzerBandwidth", "CommAnalyzerMatrix"
_ENTRY = {"step": "step", "kind": "type", "name": "hccl_op_name", "group": "group_name"}
_MOVED = {"size_bytes": "transit_size", "transit_ns": "transit_time", "gb_per_s": "bandwidth"}
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "collectives": {
        **_ENTRY,
        "start_ns": "start_timestamp",
        "elapse_ns": "elapse_time",
        "transit_ns": "transit_time",
        "wait_ns": "wait_time",
        "synchronization_ns": "synchronization_time",
        "idle_ns": "idle_time",
    },
    "transports": {
        **_ENTRY,
        "transport": "transport_type",
        **_MOVED,
        "large_packet_ratio": "large_packet_ratio",
    },
    "links": {
        **_ENTRY,
        "source": "src_rank",
        "destination": "dst_rank",
        "transport": "transport_type",
        **_MOVED,
    },
}
_OPERATIONS = Query(
    COMMUNICATION,
    {
        "name": ("opName",),
        "group": ("groupName",),
        "start_ns": ("startNs",),
        "end_ns": ("endNs",),
    },
    required=("start_ns", "end_ns"),
)
_POINT_TO_POINT = re.compile("send|recv|receive", re.IGNORECASE)


def read_communication(database: Database, texts: Texts, analysis: Database | None) -> Tables:
    """Return ``collectives``, ``transports`` and ``links`` of ``Signals``."""
    collectives, transports, links = empty("collectives"), empty("transports"), empty("links")
    if analysis is not None:
        collectives, transports, links = read_analysed(analysis)
    if collectives.empty:
        collectives = _operations(database, texts)
    return collectives, transports, links


def find_lost_collectives(database: Database, analysis: Database | None) -> None:
    """Tell of collectives that analysis.db times and the main file no longer has."""
    if analysis is None or COMMUNICATION in database or TIMES not in analysis:
        return
    if count := len(_table(analysis, TIMES, "collectives")):
        where = analysis.path.name
        database.damaged(f"has no table {COMMUNICATION}, though {where} times {count} collectives")


def read_analysed(analysis: Database) -> Tables:
    """Return what analysis.db alone says of the three."""
    # A row per size of packet: each repeats what all of them moved together.
    transports = _table(analysis, BANDWIDTHS, "transports").drop_duplicates(
        ["step", "kind", "name", "group", "transport"], ignore_index=True
    )
    moved = (transports["size_bytes"] != 0) | (transports["transit_ns"] != 0)
    collectives = _table(analysis, TIMES, "collectives")
    return collectives, transports[moved].reset_index(drop=True), _table(analysis, MATRIX, "links")


def _table(database: Database, table: str, signal: str) -> pd.DataFrame:
    """Read one table in the units of the schema, without the rows that are none."""
    names, schema = _COLUMNS[signal], SCHEMAS[signal]
    numbers = {key: (name,) for key, name in names.items() if schema[key] != "category"}
    words = {key: (name,) for key, name in names.items() if schema[key] == "category"}
    reals = dict.fromkeys(numbers, np.float64)
    found = database.columns(Query(table, numbers, required=tuple(numbers), dtypes=reals))
    texts = database.values(table, words, "TEXT")
    if len(texts) != (count := len(next(iter(found.values())))):
        if count:  # else it is told already
            database.damaged(f"{table} is not whole and left out")
        return empty(signal)
    columns: dict[str, Any] = {
        **dict(zip(words, zip(*texts, strict=True) if texts else [()] * len(words), strict=True)),
        **found,
    }
    columns = {key: columns[key] for key in schema}
    columns["step"] = [(text or "").strip().removeprefix("step") for text in columns["step"]]
    frame = pd.DataFrame(columns)
    usable = np.logical_and.reduce([_usable(key, frame[key]) for key in numbers])
    if malformed := int(np.count_nonzero(~usable)):
        database.damaged(f"{malformed} of {count} rows of {table} are malformed and left out")
    frame = frame[usable].reset_index(drop=True)
    texts_of = {key: frame[key].fillna("").tolist() for key in words}
    return in_units({**{key: frame[key].to_numpy() for key in found}, **texts_of}, signal)


def _usable(key: str, column: pd.Series[float]) -> pd.Series[bool]:
    """Return which numbers a collective can have, the same as in communication.json."""
    inside = column.abs() < (LATEST_US if key == "start_ns" else LARGEST)  # False for NaN
    return inside if key in DIFFERENCES else inside & (column >= 0)


def _operations(database: Database, texts: Texts) -> pd.DataFrame:
    """Return when each collective ran; how it spent the time is not known."""
    rows = database.columns(_OPERATIONS)
    start, end = rows["start_ns"], rows["end_ns"]
    usable = (start > 0) & (end >= start) & (end < LATEST_NS)
    if not usable.any():
        return empty("collectives")
    names = texts.category(rows["name"])
    kinds = ["p2p" if _POINT_TO_POINT.search(name) else "collective" for name in names.categories]
    frame = pd.DataFrame(
        {
            "step": "",
            "kind": np.array(kinds, object)[names.codes],
            "name": names,
            "group": texts.category(rows["group"]),
            "start_ns": start,
            "elapse_ns": end - start,
        }
    )
    unknown = [key for key in SCHEMAS["collectives"] if key not in frame]
    frame = frame.assign(**dict.fromkeys(unknown, NONE))[usable]
    ordered = frame.sort_values("start_ns", kind="stable", ignore_index=True)
    return ordered.astype(dict(SCHEMAS["collectives"]))
