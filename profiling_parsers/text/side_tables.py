"""The files beside the kernels that are plain tables: calls into CANN, memory, the L2 cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.profile import Problem
from npufix.profiling_parsers.tables.side_csv import read_side_csv

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.profiling_parsers.tables.side_csv import SideCsv

_APIS = {
    "level": ("Level",),
    "name": ("API Name",),
    "count": ("Count",),
    "total": ("Time", "Total Time"),  # the second is msprof-analyze's, made from a database
    "max": ("Max", "Max Time"),
}
# The profiler of PyTorch writes megabytes and "Device Type", msprof kilobytes and "Device".
_RECORD = {
    "component": ("Component",),
    "time": ("Timestamp",),
    "allocated": ("Total Allocated",),
    "reserved": ("Total Reserved",),
    "device": ("Device Type", "Device"),
}
_OPERATOR = {
    "name": ("Name",),
    "size": ("Size",),
    "allocated": ("Allocation Time",),
    "duration": ("Duration",),
}
_L2_CACHE = {"hit": ("Hit Rate",), "victim": ("Victim Rate",), "name": ("Op Name",)}


def read_api_statistic(path: Path) -> tuple[pd.DataFrame, list[Problem]]:
    """Read ``Signals.apis`` and what is wrong with it; raise ``DumpError`` if it is none."""
    file = read_side_csv(
        path,
        _APIS,
        required=("name", "count", "total", "max"),
        categories=("level", "name"),
    )
    count, counted = file.count("count")
    total, timed = file.duration_ns("total")
    longest, bounded = file.duration_ns("max")
    columns = {
        "level": file.category("level"),
        "name": file.category("name"),
        "count": count,
        "total_ns": total,
        "max_ns": longest,
    }
    return file.frame("apis", columns, counted & timed & bounded)


def read_memory_record(path: Path) -> tuple[pd.DataFrame, list[Problem]]:
    """Read ``Signals.memory`` and what is wrong with it; raise ``DumpError`` if it is none.

    The process as a whole (component ``APP``) has no ``allocated_bytes``.
    """
    names = ("component", "device")
    file = read_side_csv(path, _RECORD, required=tuple(_RECORD), categories=names)
    time, timed = file.moment_ns("time")
    allocated, known = file.size_bytes("allocated", optional=True)
    reserved, sized = file.size_bytes("reserved", optional=True)
    columns = {
        "component": file.category("component"),
        "device": file.category("device"),
        "time_ns": time,
        "allocated_bytes": np.maximum(allocated, -1),
        "reserved_bytes": np.maximum(reserved, -1),
    }
    return file.frame("memory", columns, timed & known & sized)


def read_operator_memory(path: Path) -> tuple[pd.DataFrame, list[Problem]]:
    """Read ``Signals.allocations`` and what is wrong with it; raise ``DumpError`` if it is none.

    A block that was there before the profiler has no ``allocated_ns``, one that was never given
    back no ``duration_ns``; a size is negative where a block was given back only.
    """
    file = read_side_csv(path, _OPERATOR, required=tuple(_OPERATOR), categories=("name",))
    size, sized = file.size_bytes("size", optional=True)
    time, timed = file.moment_ns("allocated", optional=True)
    duration, known = file.signed_ns("duration", optional=True)
    columns = {
        "name": file.category("name"),
        "size_bytes": size,
        "allocated_ns": time,
        "duration_ns": np.maximum(duration, -1),
    }
    return file.frame("allocations", columns, sized & timed & known)


def read_l2_cache(path: Path) -> tuple[pd.DataFrame, list[Problem]]:
    """Read ``Signals.l2_cache`` and what is wrong with it; raise ``DumpError`` if it is none.

    A rate is NaN where the counters of the chip do not give it (``N/A``), or where it is none.
    """
    file = read_side_csv(path, _L2_CACHE, required=tuple(_L2_CACHE), categories=("name",))
    hit, has_hit = _rate(file, "hit")
    victim, has_victim = _rate(file, "victim")
    columns = {
        "name": file.category("name"),
        "hit_rate": _inside(hit),
        "victim_rate": _inside(victim),
    }
    frame, problems = file.frame("l2_cache", columns, has_hit & has_victim)
    outside = int(np.count_nonzero((hit != _inside(hit)) & ~np.isnan(hit)))
    outside += int(np.count_nonzero((victim != _inside(victim)) & ~np.isnan(victim)))
    if outside:
        what = f"{outside} rates are not between 0 and 1 and count as unknown"
        remedy = "nothing: the counters of the chip disagree with each other"
        problems.append(Problem(path.name, what, remedy))
    return frame, problems


def _rate(file: SideCsv, key: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return a rate; msprof divides two counters, a percentage would say so in its header."""
    values = file.number(key) / (100.0 if file.units[key] == "%" else 1.0)
    return values, ~np.isnan(values) | file.absent(key)


def _inside(rate: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where((rate >= 0) & (rate <= 1), rate, np.nan)
