"""CANN_API of a db export: what the host called in CANN, and when it launched each kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.database.query import LATEST_NS, Query
from npufix.profiling_parsers.database.texts import Lookup
from npufix.profiling_parsers.signals import LONG_CALL_NS, empty
from npufix.profiling_parsers.tables.columns import NONE, order_of, pick

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.database.query import Columns
    from npufix.profiling_parsers.database.tables import Database
    from npufix.profiling_parsers.database.texts import Texts

    Integers = NDArray[np.int64]

APIS, _LEVELS = "CANN_API", "ENUM_API_TYPE"
_APIS = Query(
    APIS,
    {
        "start_ns": ("startNs",),
        "end_ns": ("endNs",),
        "level": ("type",),
        "connection": ("connectionId",),
        "name": ("name",),
    },
    required=("start_ns", "end_ns", "level"),
    expected=("connection", "name"),
)
_NODE = 10_000
"""The level on which CANN launches kernels, in every version of ENUM_API_TYPE."""
_HALF = 32


@dataclass(frozen=True)
class CannCalls:
    """``apis`` and ``long_calls`` of ``Signals``; when each kernel was launched (-1 unknown)."""

    apis: pd.DataFrame
    long_calls: pd.DataFrame
    launch_ns: Integers


def read_cann_api(database: Database, texts: Texts, connection: Integers) -> CannCalls:
    """Read the calls; ``connection`` is what leads from each kernel to the call."""
    ours = Lookup(connection)
    launches = _Launches(ours, len(connection))
    totals, long = [], []
    for block in database.blocks(_APIS):
        usable = (block["start_ns"] > 0) & (block["end_ns"] < LATEST_NS)
        calls = {key: column[usable] for key, column in block.items()}
        launches.add(calls)
        totals.append(_totals(calls))
        long.append(_long(calls))
    levels = database.texts(_LEVELS, "name")
    return CannCalls(
        apis=_name_calls(totals, levels, texts),
        long_calls=_name_long(long, levels, texts),
        launch_ns=pick(launches.best(), ours(connection)),
    )


class _Launches:
    """When each connection was launched: on the level of nodes, else on any."""

    def __init__(self, ours: Lookup, count: int) -> None:
        self._ours = ours
        self._start = np.full(count, NONE, np.int64)
        self._of_node = np.zeros(count, np.bool_)

    def add(self, calls: Columns) -> None:
        at = self._ours(calls["connection"])
        of_node = calls["level"] == _NODE
        for rows in (~of_node & ~self._of_node[at], of_node):
            launched = at[rows & (at >= 0)]
            self._start[launched] = calls["start_ns"][rows & (at >= 0)]
        self._of_node[at[of_node & (at >= 0)]] = True

    def best(self) -> Integers:
        return self._start


def _totals(calls: Columns) -> pd.DataFrame:
    """Return count, total and maximum per level and name, which come as one number."""
    level, name = (
        np.where((calls[key] >= 0) & (calls[key] < 1 << _HALF - 1), calls[key] + 1, 0)
        for key in ("level", "name")
    )
    codes, distinct = pd.factorize(level << _HALF | name)
    order = order_of(codes)
    # As floats: exact for as long as a run takes, and what somebody made up leaves no int64.
    duration = (calls["end_ns"] - calls["start_ns"]).clip(min=0)[order].astype(np.float64)
    count = np.bincount(codes, minlength=len(distinct))
    first = np.cumsum(count) - count
    return pd.DataFrame(
        {
            "api": distinct,
            "count": count,
            "total_ns": np.add.reduceat(duration, first) if len(first) else first,
            "max_ns": np.maximum.reduceat(duration, first) if len(first) else first,
        }
    )


def _long(calls: Columns) -> pd.DataFrame:
    """Return the calls that may be what a device waits for, with codes for texts."""
    long = calls["end_ns"] - calls["start_ns"] >= LONG_CALL_NS
    rows = pd.DataFrame({key: calls[key][long] for key in ("level", "name", "start_ns")})
    return rows.assign(duration_ns=(calls["end_ns"] - calls["start_ns"])[long])


def _name_long(long: list[pd.DataFrame], levels: Texts, texts: Texts) -> pd.DataFrame:
    if not long:
        return empty("long_calls")
    rows = pd.concat(long).sort_values("start_ns", kind="stable", ignore_index=True)
    return rows.assign(
        level=levels.category(rows["level"].to_numpy()),
        name=texts.category(rows["name"].to_numpy()),
    )


def _name_calls(totals: list[pd.DataFrame], levels: Texts, texts: Texts) -> pd.DataFrame:
    if not totals:
        return empty("apis")
    how = {"count": "sum", "total_ns": "sum", "max_ns": "max"}
    every = pd.concat(totals).groupby("api", sort=False).agg(how).reset_index()
    api = every["api"].to_numpy()
    frame = pd.DataFrame(
        {
            "level": levels.category((api >> _HALF) - 1),
            "name": texts.category((api & ((1 << _HALF) - 1)) - 1),
            **{key: every[key].clip(upper=LATEST_NS).to_numpy(np.int64) for key in how},
        }
    )
    return frame.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)
