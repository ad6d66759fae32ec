"""From a kernel to the operator that launched it, along the flows of a trace.

kernel -> device event (name and start) -> end of its flow -> start of the flow -> operator at
that place. A second kind of flow tells when the launch was handed to the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.attribution.call_stack import intern_stacks
from npufix.profiling_parsers.attribution.operators import Attribution, attribute_launches
from npufix.profiling_parsers.tables.columns import pick
from npufix.profiling_parsers.tables.time_index import TimeIndex, number_threads, pair_in_order
from npufix.profiling_parsers.trace.device_events import SAME_NS, find_device_events

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.profiling_parsers.trace.view import Trace

    Integers = NDArray[np.int64]

_PLACE = ["pid", "tid", "start_ns"]
_CLOCK_SKEW_NS = 100_000
"""The clocks of host and device agree within this."""


@dataclass(frozen=True)
class Links:
    """What the flows of a trace say of each kernel."""

    launching: NDArray[np.int32]
    """Row of ``Trace.operators``, -1 if unknown."""
    launch_ns: Integers
    """When it was launched, by the clock of the kernels; -1 if unknown."""
    offset_ns: int | None
    """What to add to a time of the trace to get one of the kernels, None if unknown."""


@dataclass(frozen=True)
class LinkedKernels:
    """Kernels that are led to operators, the trace that leads them there, and those operators."""

    kernels: pd.DataFrame
    trace: Trace
    """Without the tables that only lead from kernels to operators."""
    attribution: Attribution


def link_kernels(kernels: pd.DataFrame, read_trace: Callable[[], Trace]) -> LinkedKernels:
    """Add the columns that say who asked for each kernel, along the flows of a trace.

    The trace is read here so that nobody else holds it: the tables that ``find_links`` follows are
    the largest of it, and are let go before ``attribute_kernels`` needs as much again. Its
    device events have the codes of the category ``kernels["name"]``.

    Raise ``OSError`` if ``read_trace`` cannot read it.
    """
    trace = read_trace()
    links = find_links(kernels, trace)
    copies = trace.copies.assign(asked_ns=_asked_ns(trace.copies, trace))
    trace = replace(trace.without_links(), copies=copies)
    found = attribute_kernels(links, trace)
    return LinkedKernels(kernels.assign(**found.columns(), launch_ns=found.launch_ns), trace, found)


def find_links(kernels: pd.DataFrame, trace: Trace) -> Links:
    """Find the operator and the launch of each kernel.

    ``trace`` was read with the codes of the category ``kernels["name"]``.
    """
    launching = np.full(len(kernels), -1, np.int32)
    launch = np.full(len(kernels), -1, np.int64)
    if trace.device.empty:
        return Links(launching, launch, None)
    names = kernels["name"].cat.codes.to_numpy().astype(np.int64)
    offset, events = find_device_events(names, kernels["start_ns"].to_numpy(), trace.device)
    places = trace.device[_PLACE].iloc[events[events >= 0]]
    rows = np.flatnonzero(events >= 0)
    flows = _flow_starts(places, trace.flow_starts, trace.flow_ends)
    launching[rows] = _operators_at(flows, trace.flow_starts, trace.operators)
    launch[rows] = _launch_times(places, flows, trace)
    return Links(launching, np.where(launch >= 0, launch + (offset or 0), -1), offset)


def _asked_ns(tasks: pd.DataFrame, trace: Trace) -> Integers:
    """Return when the operators began that asked for some tasks of the device, -1 if unknown."""
    flows = _flow_starts(tasks[_PLACE], trace.flow_starts, trace.flow_ends)
    operators = _operators_at(flows, trace.flow_starts, trace.operators)
    return pick(trace.operators["start_ns"].to_numpy(), operators)


def attribute_kernels(links: Links, trace: Trace) -> Attribution:
    """Find operator, line, module and launch of each kernel; ``trace`` may be without its links."""
    stacks, numbers = intern_stacks(trace.stacks)
    operators = trace.operators.assign(stack=numbers[trace.operators["stack"]])
    found = attribute_launches(operators, stacks, links.launching, trace.calls)
    if trace.device.empty:
        return found
    moved = links.offset_ns or 0
    return replace(
        found,
        host_ops=_shift(found.host_ops, moved),
        launch_ns=links.launch_ns,
        shared_clock=links.offset_ns is not None,
        offset_ns=moved,
    )


def _shift(host_ops: pd.DataFrame, by: int) -> pd.DataFrame:
    return host_ops.assign(start_ns=host_ops["start_ns"] + by) if by else host_ops


def _at_places(places: pd.DataFrame, offered: pd.DataFrame) -> Integers:
    """Return the row of ``offered`` at each place (thread and start), -1 if none is there."""
    wanted_threads, threads_offered = number_threads(places, offered)
    index = TimeIndex(threads_offered, offered["start_ns"].to_numpy())
    return index.nearest(wanted_threads, places["start_ns"].to_numpy(), SAME_NS)


def _flow_starts(places: pd.DataFrame, starts: pd.DataFrame, ends: pd.DataFrame) -> Integers:
    """Return the row of ``starts`` where the flow to each place starts, -1 if unknown.

    The id of a flow is the start of its kernel: two kernels may share one. The ends of a flow are
    written together, so the n-th start of an id belongs to its n-th end.
    """
    paired = pair_in_order(ends["flow"].to_numpy(), starts["flow"].to_numpy())
    return pick(paired, _at_places(places, ends))


def _operators_at(flows: Integers, starts: pd.DataFrame, operators: pd.DataFrame) -> Integers:
    """Return the row of ``operators`` at the start of each flow, -1 if unknown."""
    times = np.sort(starts["start_ns"].to_numpy())
    known = operators["start_ns"].to_numpy()
    launching = np.flatnonzero(_is_near(known, times))
    # Of several operators that start at one time, the shortest is the innermost.
    durations = operators["duration_ns"].to_numpy()[launching]
    innermost = launching[np.argsort(durations, kind="stable")]
    at = _at_places(starts[_PLACE], operators[_PLACE].iloc[innermost])
    return pick(pick(innermost, at), flows)


def _is_near(times: Integers, others: Integers) -> NDArray[np.bool_]:
    """Say which times may be one of the others, which are in order."""
    first = np.searchsorted(others, times - SAME_NS)
    is_near = first < len(others)
    is_near[is_near] = others[first[is_near]] <= times[is_near] + SAME_NS
    return is_near


def _launch_times(places: pd.DataFrame, flows: Integers, trace: Trace) -> Integers:
    """Return when each kernel was launched: by CANN where that is recorded, else by torch.

    The id of a launch may come again; the last one before the kernel counts.
    """
    starts = trace.launch_starts["start_ns"].to_numpy()
    calls = TimeIndex(trace.launch_starts["flow"].to_numpy(), starts)
    ends = _at_places(places, trace.launch_ends)
    rows = np.full(len(places), -1, np.int64)
    rows[ends >= 0] = calls.last(
        trace.launch_ends["flow"].to_numpy()[ends[ends >= 0]],
        places["start_ns"].to_numpy()[ends >= 0] + _CLOCK_SKEW_NS,
    )
    by_torch = pick(trace.flow_starts["start_ns"].to_numpy(), flows)
    return np.where(rows >= 0, pick(starts, rows), by_torch)
