"""What a dump says beside its kernels: host calls, memory, links, clocks. All of it optional."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd

    from npufix.profiling_parsers.profile import CallSite

LONG_CALL_NS = 500_000
"""Of a Python function that may be what a device waits for."""
_CATEGORY, _INT, _FLOAT = "category", "int64", "float64"

SCHEMAS: Mapping[str, Mapping[str, str]] = {
    "apis": {
        "level": _CATEGORY, "name": _CATEGORY, "count": _INT, "total_ns": _INT, "max_ns": _INT,
    },
    "long_calls": {
        "level": _CATEGORY, "name": _CATEGORY, "start_ns": _INT, "duration_ns": _INT,
    },
    "copies": {"start_ns": _INT, "duration_ns": _INT, "asked_ns": _INT},
    "gc": {"start_ns": _INT, "duration_ns": _INT},
    "functions": {"name": _CATEGORY, "start_ns": _INT, "duration_ns": _INT},
    "frequency": {"device": _INT, "start_ns": _INT, "mhz": _FLOAT},
    "memory": {
        "component": _CATEGORY, "device": _CATEGORY, "time_ns": _INT, "allocated_bytes": _INT,
        "reserved_bytes": _INT,
    },
    "allocations": {
        "name": _CATEGORY, "size_bytes": _INT, "allocated_ns": _INT, "duration_ns": _INT,
    },
    "l2_cache": {"name": _CATEGORY, "hit_rate": _FLOAT, "victim_rate": _FLOAT},
    "collectives": {
        "step": _CATEGORY, "kind": _CATEGORY, "name": _CATEGORY, "group": _CATEGORY,
        "start_ns": _INT, "elapse_ns": _INT, "transit_ns": _INT, "wait_ns": _INT,
        "synchronization_ns": _INT, "idle_ns": _INT,
    },
    "transports": {
        "step": _CATEGORY, "kind": _CATEGORY, "name": _CATEGORY, "group": _CATEGORY,
        "transport": _CATEGORY, "size_bytes": _INT, "transit_ns": _INT, "gb_per_s": _FLOAT,
        "large_packet_ratio": _FLOAT,
    },
    "links": {
        "step": _CATEGORY, "kind": _CATEGORY, "name": _CATEGORY, "group": _CATEGORY,
        "source": _INT, "destination": _INT, "transport": _CATEGORY, "size_bytes": _INT,
        "transit_ns": _INT, "gb_per_s": _FLOAT,
    },
    "payloads": {"name": _CATEGORY, "size_bytes": _INT},
    "operator_totals": {
        "name": _CATEGORY, "input_dims": _CATEGORY, "stack": _INT, "host_self_ns": _INT,
        "device_self_ns": _INT,
    },
}  # fmt: skip
"""Columns of each table. Times are int64 nanoseconds, since the epoch where they are a moment;
-1 is "the dump does not say". Rates and ratios are 0..1."""


def empty(table: str) -> pd.DataFrame:
    """Return a table of ``Signals`` without rows."""
    return _empty(table).copy()


@cache
def _empty(table: str) -> pd.DataFrame:
    """Make the table once: a copy takes a twentieth of the time, and most tables stay empty."""
    import pandas as pd

    return pd.DataFrame({name: pd.Series([], dtype=kind) for name, kind in SCHEMAS[table].items()})


def _none(table: str) -> Callable[[], pd.DataFrame]:
    return lambda: empty(table)


@dataclass(frozen=True)
class Signals:
    """One table per kind of record; ``SCHEMAS`` says the columns. Empty where not recorded."""

    apis: pd.DataFrame = field(default_factory=_none("apis"))
    """Calls of the host into CANN, per API (api_statistic)."""
    long_calls: pd.DataFrame = field(default_factory=_none("long_calls"))
    """Those of ``LONG_CALL_NS`` or more one by one, where the dump says when they were."""
    copies: pd.DataFrame = field(default_factory=_none("copies"))
    """Copies between host and device of an NPU, which are no kernels there; ``asked_ns`` is when
    the operator of the host began that asked for each."""
    gc: pd.DataFrame = field(default_factory=_none("gc"))
    """Runs of Python's garbage collector."""
    functions: pd.DataFrame = field(default_factory=_none("functions"))
    """Calls of Python functions of ``LONG_CALL_NS`` or more: ``metrics.py(14): track``."""
    frequency: pd.DataFrame = field(default_factory=_none("frequency"))
    """Clock of the AI cores from ``start_ns`` on."""
    memory: pd.DataFrame = field(default_factory=_none("memory"))
    """Device memory over time (memory_record)."""
    allocations: pd.DataFrame = field(default_factory=_none("allocations"))
    """Blocks of device memory and who asked for them (operator_memory)."""
    l2_cache: pd.DataFrame = field(default_factory=_none("l2_cache"))
    collectives: pd.DataFrame = field(default_factory=_none("collectives"))
    """Time of each collective (communication.json)."""
    transports: pd.DataFrame = field(default_factory=_none("transports"))
    """Bandwidth of each collective per kind of link."""
    links: pd.DataFrame = field(default_factory=_none("links"))
    """Bandwidth between two ranks (communication_matrix.json)."""
    payloads: pd.DataFrame = field(default_factory=_none("payloads"))
    """Size of the operand of each collective: its count times the width of its dtype."""
    operator_totals: pd.DataFrame = field(default_factory=_none("operator_totals"))
    """Host operators with their device time (operator_details): leads to lines without a trace.
    ``stack`` is an index into ``operator_stacks``."""
    operator_stacks: tuple[tuple[CallSite, ...], ...] = ()
