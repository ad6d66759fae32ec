"""What a trace says beside its kernels: Python's garbage collector and the clock of the device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.profiling_parsers.trace.kernels import device_ids

if TYPE_CHECKING:
    from npufix.profiling_parsers.signals import Signals
    from npufix.profiling_parsers.trace.view import Trace


def trace_signals(trace: Trace, signals: Signals, offset_ns: int = 0) -> Signals:
    """Return ``signals`` with those of the trace; ``offset_ns`` is the start of its clock."""
    gc = trace.gc.sort_values("start_ns", kind="stable", ignore_index=True)
    gc["start_ns"] += offset_ns
    frequency = trace.frequency.sort_values("start_ns", kind="stable", ignore_index=True)
    frequency = frequency.assign(
        device=device_ids(trace, frequency["pid"].to_numpy()),
        start_ns=frequency["start_ns"] + offset_ns,
    )
    return replace(
        signals,
        gc=gc[["start_ns", "duration_ns"]],
        frequency=frequency[["device", "start_ns", "mhz"]].astype({"device": "int64"}),
    )
