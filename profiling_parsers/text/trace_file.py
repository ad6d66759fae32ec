"""trace_view.json as one file of a dump: what it says beside kernels, what its damage costs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.profile import Problem
from npufix.profiling_parsers.special_files import kind_of
from npufix.profiling_parsers.tables.file_damage import damage_problem
from npufix.profiling_parsers.tables.payloads import payload_table
from npufix.profiling_parsers.text.trace_kernels import find_devices

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.profiling_parsers.attribution.launches import LinkedKernels
    from npufix.profiling_parsers.signals import Signals
    from npufix.profiling_parsers.trace.view import Trace

_ENDS_BYTES = 4096


def add_trace_signals(signals: Signals, found: LinkedKernels) -> Signals:
    """Return ``signals`` with what Python and CANN did for long, and the clock of the device."""
    trace, offset_ns = found.trace, found.attribution.offset_ns
    copies = trace.copies.sort_values("start_ns", kind="stable", ignore_index=True)
    asked = copies["asked_ns"].to_numpy()
    copies = copies.assign(
        start_ns=copies["start_ns"] + offset_ns,
        asked_ns=np.where(asked >= 0, asked + offset_ns, -1),
    )
    gc = trace.gc.sort_values("start_ns", kind="stable", ignore_index=True)
    gc["start_ns"] += offset_ns
    functions = trace.functions.sort_values("start_ns", kind="stable", ignore_index=True)
    functions["start_ns"] += offset_ns
    calls = trace.long_calls.sort_values("start_ns", kind="stable", ignore_index=True)
    calls["start_ns"] += offset_ns
    calls["level"] = pd.Categorical(["acl"] * len(calls))
    frequency = trace.frequency.sort_values("start_ns", kind="stable", ignore_index=True)
    frequency = frequency.assign(
        device=find_devices(trace, frequency["pid"].to_numpy()),
        start_ns=frequency["start_ns"] + offset_ns,
    )
    return replace(
        signals,
        copies=copies[["start_ns", "duration_ns", "asked_ns"]],
        gc=gc[["start_ns", "duration_ns"]],
        functions=functions[["name", "start_ns", "duration_ns"]],
        long_calls=calls[["level", "name", "start_ns", "duration_ns"]],
        payloads=payload_table(trace.payloads),
        frequency=frequency[["device", "start_ns", "mhz"]].astype({"device": "int64"}),
    )


def unread_problem(file: Path, error: OSError, remedy: str) -> Problem:
    """Say why a trace could not be read at all."""
    if isinstance(error, FileNotFoundError):
        what = "missing, so no kernel is led to a line, and a step begins with its first kernel"
        return Problem(file.name, what, remedy)
    what = f"cannot be read ({error.strerror}), so no kernel is led to a line"
    return Problem(file.name, what, "make the file readable", damaged=True)


def damage_problems(file: Path, trace: Trace, remedy: str) -> list[Problem]:
    """Say what of a trace could not be read."""
    faults = []
    if trace.cut is not None:
        faults.append(f"breaks off or is malformed at byte {trace.cut}; the events before are used")
    if trace.malformed:
        faults.append(f"{trace.malformed} events are malformed and left out")
    return [Problem(file.name, what, remedy, damaged=True) for what in faults]


def find_cut(file: Path) -> list[Problem]:
    """Tell of a trace that has no end, by its first and last bytes: it may have gigabytes.

    What is malformed within it shows only when it is read as a whole. Of a packed one the end is
    not known.
    """
    if kind_of(file) or not file.is_file() or file.suffix != ".json":
        return []
    try:
        with file.open("rb") as opened:
            first = opened.read(_ENDS_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
            opened.seek(max(0, file.stat().st_size - _ENDS_BYTES))
            last = b"".join(opened.read().split())
    except OSError as error:
        return [damage_problem(file, str(error.strerror))]
    # A list of events ends behind one; within an event, lists end behind texts and numbers.
    is_whole = last.endswith((b"}]", b"[]")) if first == b"[" else last.endswith(b"}")
    return [] if is_whole and first in {b"[", b"{"} else [damage_problem(file, "breaks off")]


def link_problems(file: Path, found: LinkedKernels, dump: Path) -> list[Problem]:
    """Say why kernels were not led to operators, or operators not to lines."""
    trace, attribution = found.trace, found.attribution
    if trace.cut is not None:
        return []  # what is missing may lie behind the cut, which is told
    told = []
    if trace.operators.empty:
        what = "holds no host operators (cpu_op), so no kernel is led to a line"
        told.append((what, remedies.PROFILE_HOST))
    elif not attribution.stacks:
        what = "holds no call stacks, so no kernel is led to a line"
        told.append((what, remedies.PROFILE_WITH_STACKS))
    elif not any(trace.stacks):
        what = "holds no call stacks: kernels are led to functions, not to the lines in them"
        told.append((what, remedies.PROFILE_WITH_STACKS))
    if trace.flow_ends.empty:
        what = "holds no flows from operators to kernels (async_npu)"
        told.append((what, remedies.PROFILE_HOST))
    elif not attribution.shared_clock:
        what = "has relative timestamps or is of another run: no start of a kernel agrees"
        told.append((what, remedies.analyse(dump)))
    elif not (attribution.host_op >= 0).any():
        what = "none of its flows leads from an operator to a kernel"
        told.append((what, remedies.analyse(dump)))
    return [Problem(file.name, what, remedy) for what, remedy in told]
