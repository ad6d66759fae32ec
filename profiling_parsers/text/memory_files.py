"""memory_record.csv and operator_memory.csv: the device memory over time, and who asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.tables.side_csv import read_side_csv

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from npufix.profiling_parsers.profile import Problem

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
