"""From what was recorded to a ``StepGraph``."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npufix.advisor.predict.graph.step_graph import StepGraph
from npufix.advisor.predict.waits import (
    Rows,
    find_dependencies,
    find_host_waits,
    find_room,
    without_room_waits,
)
from npufix.profiling_parsers.kernels.launch_order import launches_in_order, stream_numbers
from npufix.profiling_parsers.kernels.whole_steps import host_marks
from npufix.rules.shared.recording.observing import outermost_operators

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.advisor.evidence.lines import Evidence
    from npufix.advisor.predict.graph.step_graph import HostWait
    from npufix.profiling_parsers.kernels.whole_steps import Marks

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

_MOST_STEPS, _MOST_KERNELS = 16, 200_000
_USUAL_STEPS, _USUAL_NEXT = 4, 0.5
"""How much a step is like the one before, and as how many steps seen that counts."""
_LAUNCHES_KNOWN = 0.9
_LATENCY_NS, _GAP_NS = 10_000.0, 1_000.0
"""Where the recording shows none."""
_LONGEST_LATENCY_NS = 1_000_000
"""From a launch to a start on a stream that is free; what takes longer waits for something else."""
_LONGEST_GAP_NS = 20_000
"""What is queued follows the kernel before it sooner than that, unless it waits for more."""
_SHORTEST = 0.05
"""Quantile of the times between kernels that follow each other at once, where few of them do."""
_SOON = 1.2
"""What starts within as many usual latencies of its launch has waited for that."""
_STALL_NS, _SOON_NS = 5_000, 300_000
"""A pause; and behind what ends so soon before, where it may be for the launch as well."""


class _Window(NamedTuple):
    """Steps that follow each other; where none is marked, one."""

    steps: Sequence[int]
    begin: int | None
    """On the host; None where the dump does not say."""
    end: int | None


def step_graph(evidence: Evidence, step_ns: int) -> StepGraph | None:
    """Return the graph of some steady steps, None without a kernel.

    Where the launches were not recorded it is a coarse one: of one step, with the pauses of each
    stream as they are. ``step_ns`` is the length of the recording where it has no steps.
    """
    chosen, step = evidence.steady, evidence.kernels["step"]
    if not chosen.any():
        return None
    known = evidence.kernels["launch_ns"].to_numpy()[chosen] >= 0
    coarse = bool(known.mean() < _LAUNCHES_KNOWN)
    window = _window(evidence, step[chosen].value_counts(), coarse=coarse)
    if window.steps:
        chosen = chosen & step.isin(list(window.steps)).to_numpy(bool)
    kernels = _in_launch_order(evidence.kernels[chosen], evidence.host_ops, coarse=coarse)
    rows = _rows(kernels, evidence.host_ops)
    measured = _look_up_measured(evidence, window) or float(step_ns)
    begin = int(rows.start.min()) if window.begin is None else window.begin
    busy = np.zeros(int(rows.stream.max()) + 1)
    if not coarse and window.begin is not None:
        busy = _busy(kernels, rows, evidence.kernels, begin)
    graph = _graph(kernels, rows, begin, busy, coarse=coarse)
    if not coarse:
        own = _within_operators(evidence.host_ops, rows.launch, graph.delta_ns)
        graph = replace(graph, own_ns=own)
    if coarse:
        beside = measured - int(rows.end.max() - begin)
        graph.gap_ns[0] += max(0.0, beside)  # before the first kernel, and behind the last
        return replace(graph, measured_ns=measured)
    # Where no mark says when the host is done with the step, its last kernel does.
    until = int(rows.end.max()) if window.end is None and window.steps else window.end
    ops = _ops_within(evidence.host_ops, min(begin, int(rows.launch.min())), until)
    loads = _loads_from(evidence.loads, evidence.host_ops)
    waits = find_host_waits(rows, ops, loads, measured, begin, window.end, busy)
    spread, alike = spread_of(np.array([_length(evidence, step) for step in window.steps]))
    last = max(int(rows.launch[-1]), max((moment for _, moment in waits), default=0))
    return replace(
        _with_waits(graph, rows.launch, begin, waits),
        steps=max(1, len(window.steps)),
        measured_ns=measured,
        spread=spread,
        alike=alike,
        rest_ns=float(max(0, window.end - last)) if window.end is not None else 0.0,
        repeats=window.end is not None,
    )


def _window(evidence: Evidence, counts: pd.Series[int], *, coarse: bool) -> _Window:
    """Choose steps that follow each other, as many as are worth it, by their number of kernels."""
    steps = sorted(int(step) for step in counts.index)
    if not steps:
        return _Window((), None, None)
    marks = host_marks(evidence.host_ops)
    if coarse or not all(step in marks for step in steps):
        lengths = {step: _length(evidence, step) for step in steps}
        middle = sorted(steps, key=lambda step: lengths[step])[len(steps) // 2]
        return _Window((middle,), None, None)
    runs = _runs(steps, counts)
    longest = max(map(len, runs))
    lengths = {step: _length(evidence, step) for step in steps}
    mean = sum(lengths.values()) / len(steps)
    # Those that are as long as all of them: first steps, or some with a checkpoint, may be longer.
    chosen = min(
        (run for run in runs if len(run) == longest),
        key=lambda run: abs(sum(lengths[step] for step in run) / len(run) - mean),
    )
    return _Window(chosen, marks[chosen[0]][0], _end(marks, chosen))


def _runs(steps: Sequence[int], counts: pd.Series[int]) -> list[list[int]]:
    """Return what may be chosen: from each step on those that follow, as many as are worth it."""
    runs = []
    for first in range(len(steps)):
        run, known = [steps[first]], int(counts[steps[first]])
        for step in steps[first + 1 : first + _MOST_STEPS]:
            known += int(counts[step])
            if step != run[-1] + 1 or known > _MOST_KERNELS:
                break
            run.append(step)
        runs.append(run)
    return runs


def _end(marks: Marks, steps: Sequence[int]) -> int:
    """Return when the step behind the last one begins: at its mark, or as soon as others do."""
    between = [marks[b][0] - marks[a][1] for a, b in pairwise(steps)]
    return marks[steps[-1]][1] + (round(sum(between) / len(between)) if between else 0)


def _length(evidence: Evidence, step: int) -> float:
    rows = evidence.split[(evidence.split["step"] == step).fillna(value=False)]
    columns = ["computing_ns", "communication_exposed_ns", "free_ns"]
    return float(rows[columns].sum(axis=1).mean()) if len(rows) else 0.0


def _look_up_measured(evidence: Evidence, window: _Window) -> float:
    lengths = [_length(evidence, step) for step in window.steps]
    return sum(lengths) / len(lengths) if lengths and all(lengths) else 0.0


def spread_of(lengths: Floats) -> tuple[float, float]:
    """Return how far steps are from each other, a share of their mean, and how many count as one.

    How much one says of the next is hardly seen in a few: it counts as so many more usual ones.
    """
    count = len(lengths)
    if count <= 1 or not lengths.all():
        return 0.0, 1.0
    off = lengths - lengths.mean()
    squares = float((off**2).sum())
    seen = float((off[1:] * off[:-1]).sum()) / squares + 1 / count if squares else 0.0
    next_ = min(max(0.0, (count * seen + _USUAL_STEPS * _USUAL_NEXT) / (count + _USUAL_STEPS)), 0.8)
    lags = np.arange(1, count)
    alike = 1 + 2 * float(((1 - lags / count) * next_**lags).sum())
    return float(lengths.std(ddof=1) / lengths.mean()), alike


def _in_launch_order(
    kernels: pd.DataFrame, host_ops: pd.DataFrame, *, coarse: bool
) -> pd.DataFrame:
    """Return the kernels as they were launched; where that is unknown, as they started.

    Of a collective it may only be known when it was queued. It leaves the queue behind the kernels
    that were queued before, its operand is one of theirs, and before those that were queued later:
    576 collectives that take the queue 60 us each make the next kernel late, not its operator.
    """
    start = kernels["start_ns"].to_numpy()
    if coarse:
        return kernels.assign(launch_ns=start).iloc[np.argsort(start, kind="stable")]
    launched = launches_in_order(kernels)
    launched = np.where(launched < 0, start, np.minimum(launched, start))
    asked = host_ops["start_ns"].reindex(kernels["host_op"]).to_numpy(np.float64)
    computes = ~kernels["communication"].to_numpy(bool) & ~np.isnan(asked)
    own = np.flatnonzero(~computes & ~np.isnan(asked))
    if computes.any() and len(own):
        order = np.flatnonzero(computes)[np.argsort(asked[computes], kind="stable")]
        latest = np.maximum.accumulate(launched[order])
        at = np.searchsorted(asked[order], asked[own]) - 1
        before = np.where(at >= 0, latest[at.clip(min=0)], launched[own])
        left = np.interp(asked[own], asked[order], latest)
        left = np.where((at >= 0) & (at < len(order) - 1), left, before).astype(np.int64)
        launched[own] = np.minimum(np.maximum(launched[own], left), start[own])
    return kernels.assign(launch_ns=launched).iloc[np.lexsort((start, launched))]


def _rows(kernels: pd.DataFrame, host_ops: pd.DataFrame) -> Rows:
    start = kernels["start_ns"].to_numpy()
    began = host_ops["start_ns"].reindex(kernels["host_op"]).to_numpy(np.float64)
    launch = kernels["launch_ns"].to_numpy()
    return Rows(
        launch=launch,
        start=start,
        end=start + kernels["duration_ns"].to_numpy(),
        stream=stream_numbers(kernels),
        communication=kernels["communication"].to_numpy(bool),
        asked=np.sort(np.where(np.isnan(began), launch, began).astype(np.int64)),
    )


def _graph(
    kernels: pd.DataFrame, rows: Rows, begin: int, busy: Floats, *, coarse: bool
) -> StepGraph:
    """Return the graph without the waits of the host."""
    free = _ends_before(rows, begin, busy)
    latency, gap, stalled = _pauses(rows, free, begin) if coarse else _delays(rows, free)
    waits_for = find_dependencies(rows, stalled, *([_SOON_NS] if coarse else []))
    behind = np.zeros(len(rows.start))
    waiting = np.flatnonzero(waits_for >= 0)
    behind[waiting] = (rows.start[waiting] - rows.end[waits_for[waiting]]).clip(0, 50_000)
    # A collective that waited for its launch does not say how soon it follows its operand.
    behind[waiting] = np.minimum(behind[waiting], max(2_000.0, float(np.median(gap))))
    stall = waiting[stalled[waiting]]
    behind[stall] = (rows.start[stall] - rows.end[waits_for[stall]]).clip(min=0)
    typical = _typical(latency[~stalled], _LATENCY_NS)
    latency[stall] = np.minimum(latency[stall], typical)
    gap[stall] = np.minimum(gap[stall], _typical(gap[~stalled], _GAP_NS))
    if not coarse:  # a copy to the device comes before each step, no kernel before the first one
        later = np.flatnonzero(np.diff(kernels["step"].to_numpy(np.int64, na_value=-1))) + 1
        gap[0] = max(gap[0], _typical(gap[later[rows.stream[later] == rows.stream[0]]], 0.0))
    depth, waited = find_room(rows)
    delta = np.diff(rows.launch, prepend=begin).astype(np.float64)
    basis = kernels["basis"]
    return StepGraph(
        label=kernels.index.to_numpy(np.int64),
        stream=rows.stream,
        duration_ns=(rows.end - rows.start).astype(np.float64),
        delta_ns=np.zeros(len(behind)) if coarse else without_room_waits(delta, waited),
        own_ns=np.zeros(len(behind)),
        latency_ns=latency,
        gap_ns=gap,
        waits_for=waits_for,
        behind_ns=behind,
        host_waits=(),
        rest_ns=0.0,
        depth=0 if coarse else depth,
        steps=1,
        measured_ns=0.0,
        spread=0.0,
        alike=1.0,
        repeats=False,
        coarse=coarse,
        streams=len(busy),
        busy_ns=busy,
        lead_ns=float(busy.max()),
        communication=rows.communication,
        backward=basis.isin(["forward", "forward-function"]).to_numpy(bool),
    )


def _busy(kernels: pd.DataFrame, rows: Rows, everything: pd.DataFrame, begin: int) -> Floats:
    """Return for how long the streams still run what is of the steps before, as these begin."""
    busy = np.zeros(int(rows.stream.max()) + 1)
    ends = everything["start_ns"] + everything["duration_ns"]
    step = everything["step"].to_numpy(np.int64, na_value=-1)
    before = (ends.to_numpy() > begin) & (step >= 0) & (step < int(kernels["step"].min()))
    key = ["device", "stream", "communication"]
    still = ends[before].groupby([everything.loc[before, name] for name in key], observed=True)
    latest = still.max().to_dict()
    names = kernels[key].drop_duplicates()
    for row, name in zip(
        kernels.index.get_indexer(names.index), names.itertuples(index=False), strict=True
    ):
        busy[rows.stream[row]] = max(0, latest.get(tuple(name), 0) - begin)
    return busy


def _ends_before(rows: Rows, begin: int, busy: Floats) -> Floats:
    """Return when the kernel before each one on its stream ended, -inf where there is none."""
    before = np.where(busy > 0, begin + busy, -np.inf)[rows.stream]
    order = np.argsort(rows.stream, kind="stable")
    ends, streams = rows.end[order], rows.stream[order]
    same = np.flatnonzero(streams[1:] == streams[:-1])
    before[order[same + 1]] = ends[same]
    return before


def _delays(rows: Rows, free: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return from launch and from the kernel before to each start, and who waited for neither."""
    since_launch = (rows.start - rows.launch).astype(np.float64)
    since_before = np.where(np.isfinite(free), rows.start - free, np.inf)
    # What was free when it was launched has waited for its launch, what was not for the stream.
    idle = free <= rows.launch
    # A collective on a stream of its own waits for its operand, whenever it was launched.
    # Of a host that is 140 ms ahead, all that finds its stream free waits for another one.
    launched = since_launch[idle & ~rows.communication]
    typical_latency = _typical(launched[launched < _LONGEST_LATENCY_NS], _LATENCY_NS)
    # What was launched just before its stream was free has waited for its launch, too.
    queued = ~idle & (since_launch - since_before > 2 * typical_latency)
    by_launch = idle | (since_launch <= np.maximum(since_before, _SOON * typical_latency))
    # Who waits for a collective, or a collective for its operand, does not say it.
    own = ~rows.communication & (since_before <= _LONGEST_GAP_NS)
    typical_gap = _typical(since_before[queued & own], _GAP_NS)
    if not (queued & own).any() and (~idle & own).any():
        # Launched each 8 µs, 7 before their start, kernels of 3 are never queued and the stream is
        # never idle at a launch: what is between them is the host's, but where one was late.
        typical_gap = min(_GAP_NS, float(np.quantile(since_before[~idle & own], _SHORTEST)))
    latency = np.where(by_launch, since_launch, np.minimum(since_launch, typical_latency))
    gap = np.where(by_launch, np.minimum(since_before, typical_gap), since_before).clip(min=0)
    stalled = since_launch > max(5 * typical_latency, 50_000)
    # The second of 20 collectives in a row waits for the first, long after their operand.
    least = np.where(rows.communication, _LONGEST_GAP_NS, _STALL_NS)
    stalled &= since_before > np.maximum(3 * typical_gap, least)
    return latency, gap, stalled


def _pauses(rows: Rows, free: Floats, begin: int) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return the same where the launches are unknown: what is not busy is a pause."""
    gap = rows.start - np.maximum(free, begin)
    least = np.where(rows.communication, _LONGEST_GAP_NS, _STALL_NS)
    return np.zeros(len(gap)), gap.clip(min=0), gap > least


def _typical(values: Floats, otherwise: float) -> float:
    return max(0.0, float(np.median(values))) if len(values) else otherwise


def _within_operators(host_ops: pd.DataFrame, launch: Integers, delta_ns: Floats) -> Floats:
    """Return what of ``delta_ns`` the operator takes that launches, and no code around it."""
    outer = host_ops.iloc[outermost_operators(host_ops)]
    if outer.empty:
        return np.zeros(len(launch))
    start = outer["start_ns"].to_numpy()
    end = start + outer["duration_ns"].to_numpy()
    at = np.searchsorted(start, launch, side="right") - 1
    since = np.where((at >= 0) & (launch <= end[at]), launch - start[at], 0)
    own: Floats = np.minimum(since.astype(np.float64), delta_ns)
    return own


def _ops_within(host_ops: pd.DataFrame, begin: int, end: int | None) -> pd.DataFrame:
    if end is None:
        return host_ops
    start = host_ops["start_ns"].to_numpy()
    return host_ops[(start >= begin) & (start < end)]


def _loads_from(loads: pd.DataFrame, steady_ops: pd.DataFrame) -> pd.DataFrame:
    """Return the waits for a batch without those of a warm-up, in which the workers begin."""
    first = steady_ops["start_ns"].min() if len(steady_ops) else 0
    return loads[(loads["start_ns"] >= first).to_numpy(bool)]


def _with_waits(
    graph: StepGraph, launch: Integers, begin: int, waits: Sequence[tuple[HostWait, int]]
) -> StepGraph:
    """Let the host go on from the waits: launches behind one follow it."""
    delta = graph.delta_ns.copy()
    found = []
    at = begin
    for wait, moment in waits:
        at = max(at, int(launch[wait.before - 1]) if wait.before else begin)
        came = max(wait.delta_ns, float(at))
        found.append(replace(wait, delta_ns=came - at, own_ns=min(wait.own_ns, moment - came)))
        at = moment
        if wait.before < len(launch):
            delta[wait.before] = max(0.0, float(launch[wait.before] - moment))
    return replace(graph, delta_ns=delta, host_waits=tuple(found))
