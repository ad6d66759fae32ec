"""When the device waits for the host: reads and copies that empty the queue, and other pauses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npufix.rules.diagnostic import keep_result
from npufix.rules.shared.recording.observing import (
    AS_LONG,
    COPIES,
    NEXT_BATCH,
    Idle,
    count_recorded_steps,
    find_named,
    free_ns,
    host_calls,
    idle_time,
    measure_covered_ns,
    per_step,
    rows_where,
    step_marks,
)
from npufix.rules.shared.recording.recorded_shapes import elements, shapes

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording

    Integers = NDArray[np.int64]

SYNCHRONISE = r"aclrtSynchronizeStream\w*|StreamSynchronize\w*"
"""Calls with which the host waits for a stream."""
SYNCHRONISES = r"(aclrtSynchronizeDevice|(cuda|hip)DeviceSynchronize)\w*"
"""Calls with which it waits for all of the device."""
ALLOCATES = (
    r"aclMallocMemInner|aclrtMalloc(Align32|Cached|Physical|WithCfg)?|aclrtFree(Physical)?"
    r"|aclrt(ReserveMemAddress|ReleaseMemAddress|MapMem|UnmapMem)|Dev(Malloc|Free)\w*"
)
"""Calls that ask the driver for memory, or give it back, behind a wait for the device."""
ONLY_ALLOCATES = r"aten::(empty|empty_strided|resize_|zeros|new_.*)"
"""Operators that do nothing on the host but ask for memory."""
OF_SYNCHRONISATIONS = (
    "torch.npu.synchronize() out of the step: with an empty queue the device waits for whatever "
    "the host does next; time with events (torch.npu.Event(enable_timing=True))"
)
OF_COLLECTIONS = (
    "gc.freeze() after building the model, gc.disable() before the loop, gc.collect() every N "
    "steps on all ranks at once"
)
COMPILES = r"aclopCompileAndExecute\w*"
"""Calls in which the host, or the thread that launches for it, compiles an operator."""
SPELLINGS = {
    "aten::_local_scalar_dense": ".item(), float(), bool() or print() of a tensor",
    "aten::copy_": ".cpu() or another copy to the host",
    "acl_memcpy_device_to_host": ".cpu() or another copy to the host",
    "aten::nonzero": "nonzero or a boolean index",
    "aten::masked_select": "masked_select",
    "aten::equal": "torch.equal",
    "aten::is_nonzero": "bool() of a tensor",
    "aten::_unique2": "unique",
    "aten::unique_dim": "unique",
    "aten::unique_consecutive": "unique_consecutive",
}
SHORTEST_NS = 15_000
"""No copy from a device returns sooner: the fastest of both real dumps takes 19 µs."""
_LONGEST_LAUNCH_NS = 1_000_000
"""What the device waits longer than that is no launch after the other."""
SHORTEST_PAUSE_NS = 1_000_000
"""A host that is merely slow launches many kernels in that time."""
_USUAL_GAP_NS = 2_000
"""Between kernels of which the next one has long been launched."""
_TYPICAL_GAPS = 10
"""Times the median gap: where all gaps are long, none is a pause."""


class Pauses(NamedTuple):
    """Gaps of ``idle``; ``idle_ns`` is what no other finding explains, 0 where it is no pause."""

    idle: Idle
    idle_ns: Integers

    @property
    def rows(self) -> NDArray[np.int64]:
        """Return which gaps are pauses."""
        return np.flatnonzero(self.idle_ns)


@keep_result
def find_pauses(recording: Recording) -> Pauses:
    """Return the gaps of 1 ms or more whose kernel was launched only after the device ran dry.

    A wait for a batch, for a value of the device and for the garbage collector is none, nor is a
    call that compiles. What lies
    between the mark of a step and its first kernel, or its last one and the end, is a gap as well.
    """
    idle = idle_time(recording, to_marks=True)
    gaps = idle.end_ns - idle.start_ns
    none = np.zeros(len(gaps), np.int64)
    if not len(gaps):
        return Pauses(idle, none)
    launched = recording.kernels["launch_ns"].to_numpy()[idle.next_kernel]
    launched = np.where(ends_step(recording, idle), idle.end_ns, launched)
    late = np.where(launched >= 0, np.clip(launched - idle.start_ns, 0, gaps), 0)
    late = np.where(2 * late < gaps, np.maximum(late, _measure_held_ns(recording, idle)), late)
    left = np.minimum(late, np.clip(gaps - measure_explained_ns(recording, idle), 0, None))
    short = gaps[gaps < SHORTEST_PAUSE_NS]
    usual = float(np.median(short)) if len(short) else 0.0
    return Pauses(idle, np.where(left >= max(SHORTEST_PAUSE_NS, _TYPICAL_GAPS * usual), left, none))


def measure_launches_ns(rows: pd.DataFrame, recording: Recording) -> int:
    """Return for how long the device waits for the launches of some kernels, per step.

    It is what lies before each of them, but for pauses and for what else is known: a fused kernel
    in the place of ten is launched once.
    """
    idle = idle_time(recording)
    gaps = idle.end_ns - idle.start_ns
    launched = recording.kernels["launch_ns"].to_numpy()[idle.next_kernel]
    labels = recording.kernels.index.to_numpy()[idle.next_kernel]
    late = (gaps < SHORTEST_PAUSE_NS) & (gaps > _USUAL_GAP_NS)
    late &= (launched < 0) | (launched > idle.start_ns)
    late &= np.isin(labels, rows.index.to_numpy())
    left = np.clip(gaps - measure_explained_ns(recording, idle), 0, None)
    return min(per_step(int(left[late].sum()), recording), free_ns(recording))


def sooner_without(pauses: Pauses, rows: Integers, recording: Recording) -> dict[int, int]:
    """Return ``Observation.sooner_ns`` for some of the pauses."""
    index = recording.kernels.index.to_numpy()[pauses.idle.next_kernel[rows]]
    labels = np.where(ends_step(recording, pauses.idle)[rows], ~index, index)
    return dict(zip(labels.tolist(), pauses.idle_ns[rows].tolist(), strict=True))


def sooner_in_pauses(calls_ns: float, recording: Recording) -> dict[int, int]:
    """Return ``Observation.sooner_ns`` without calls that take ``calls_ns`` of a step at some time.

    They may have held up the longest pauses; the last of these at least half of the way.
    """
    pauses = find_pauses(recording)
    rows = pauses.rows[np.argsort(-pauses.idle_ns[pauses.rows], kind="stable")]
    most = calls_ns * max(1, recording.step_count)
    idle = pauses.idle_ns[rows]
    return sooner_without(pauses, rows[np.cumsum(idle) - idle / 2 <= most], recording)


def sooner_without_calls(
    start_ns: Integers, duration_ns: Integers, recording: Recording
) -> dict[int, int]:
    """Return ``Observation.sooner_ns`` where the host no longer spends its time on some calls."""
    launched = recording.kernels["launch_ns"].sort_values(kind="stable")
    behind = np.searchsorted(launched.to_numpy(), start_ns + duration_ns)
    # Behind the last kernel it is the end of the step that comes sooner.
    labels = np.append(launched.index.to_numpy(), ~launched.index.to_numpy()[-1:])
    sooner: dict[int, int] = {}
    for row, ns in zip(behind.tolist(), duration_ns.tolist(), strict=True):
        if row < len(labels):
            sooner[int(labels[row])] = sooner.get(int(labels[row]), 0) + ns
    return sooner


def ends_step(recording: Recording, idle: Idle) -> NDArray[np.bool_]:
    """Tell behind which idle times no kernel of the recording follows."""
    found: NDArray[np.bool_] = (
        recording.kernels["start_ns"].to_numpy()[idle.next_kernel] < idle.start_ns
    )
    return found


def _measure_held_ns(recording: Recording, idle: Idle) -> Integers:
    """Return for how long of each long gap the host was in one call that is about as long.

    A copy that blocks for 493 ms: whatever it waits for, nothing is launched meanwhile, also where
    the next kernel had been launched before.
    """
    gaps = idle.end_ns - idle.start_ns
    ops = recording.host_ops
    long = ops[(ops["duration_ns"] >= SHORTEST_PAUSE_NS * AS_LONG).to_numpy(bool)]
    start, length = long["start_ns"].to_numpy(), long["duration_ns"].to_numpy()
    held = np.zeros(len(gaps), np.int64)
    for at in np.flatnonzero(gaps >= SHORTEST_PAUSE_NS).tolist() if len(long) else ():
        inside = np.minimum(start + length, idle.end_ns[at]) - np.maximum(start, idle.start_ns[at])
        alike = (inside >= AS_LONG * gaps[at]) & (length * AS_LONG <= gaps[at])
        held[at] = inside[alike].max(initial=0)
    return held


@keep_result
def copies_to_device(recording: Recording) -> pd.DataFrame:
    """Return the copies to the device: the operators that contain the copy of CANN.

    Versions that hand the copy to the queue name none: there it is what the kernels read.
    """
    copies = find_named(recording.host_ops, r"aten::copy_")
    named = _holding(copies, find_named(recording.host_ops, r"acl_memcpy_host_to_device"))
    if copies.empty or named.any():
        return rows_where(copies, named)
    other = _holding(copies, find_named(recording.host_ops, r"acl_memcpy_\w*"))
    asked = copies.index.isin(recording.kernels["host_op"].to_numpy())
    silent = ~(other | asked) & (copies["duration_ns"] >= SHORTEST_NS).to_numpy(bool)
    return rows_where(copies, silent & _are_read_later(copies, silent, recording))


def with_copies_around(calls: pd.DataFrame, recording: Recording) -> frozenset[int]:
    """Return the labels of calls, and of the copies around them, which are what waits."""
    copies = find_named(recording.host_ops, r"aten::copy_")
    return frozenset(map(int, calls.index.append(copies.index[_holding(copies, calls)])))


def _holding(copies: pd.DataFrame, inner: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which copies, in order, have one of other calls inside."""
    start, moments = copies["start_ns"].to_numpy(), np.sort(inner["start_ns"].to_numpy())
    around = np.searchsorted(start, moments, side="right") - 1
    holds = np.zeros(len(copies), np.bool_)
    holds[around[around >= 0]] = True
    end = start + copies["duration_ns"].to_numpy()
    holds &= np.searchsorted(moments, end) > np.searchsorted(moments, start)
    return holds


def _are_read_later(
    copies: pd.DataFrame, asked: NDArray[np.bool_], recording: Recording
) -> NDArray[np.bool_]:
    """Tell whether the first kernels of the step that have to do with what is copied read it.

    A batch of 64,3,224,224 that nothing wrote and the first convolution reads was copied to the
    device; logits that the last product wrote go to the host. Single numbers are everywhere.
    """
    kernels, start = recording.kernels, copies["start_ns"].to_numpy()
    launched = kernels["launch_ns"].to_numpy()
    moment = np.where(launched >= 0, launched, kernels["start_ns"].to_numpy())
    order = np.argsort(moment, kind="stable")
    moment, step = moment[order], kernels["step"].to_numpy(np.int64, na_value=-1)[order]
    begin = step_marks(recording, start)
    inputs, outputs = (_cells_by_elements(kernels[c]) for c in ("input_shapes", "output_shapes"))
    counts = np.array([elements(shapes(str(dims))[0]) for dims in copies["input_dims"]])
    chosen = np.zeros(len(copies), np.bool_)
    for count in np.unique(counts[asked & (counts > 1)]).tolist():
        at = np.flatnonzero(asked & (counts == count))
        reads = kernels["input_shapes"].isin(inputs.get(count, ())).to_numpy(bool)[order]
        writes = kernels["output_shapes"].isin(outputs.get(count, ())).to_numpy(bool)[order]
        concerned, wrote = np.flatnonzero(reads | writes), np.flatnonzero(writes)
        first = np.searchsorted(moment[concerned], start[at])
        at, first = at[first < len(concerned)], concerned[first[first < len(concerned)]]
        earlier = np.searchsorted(moment[wrote], start[at])
        # Without a mark around the copy it may belong to the step before.
        last = np.append(-2, np.maximum.accumulate(step[wrote]))[earlier]
        written = np.where(
            begin[at] < start[at],
            earlier > np.searchsorted(moment[wrote], begin[at]),
            (earlier > 0) & (last >= step[first] - 1),
        )
        chosen[at] = reads[first] & ~written
    return chosen


def _cells_by_elements(cells: pd.Series[str]) -> dict[int, list[str]]:
    """Return the cells in which a tensor has so many elements, by that number."""
    found: dict[int, list[str]] = {}
    for cell in cells.unique():
        for count in {elements(own) for own in shapes(str(cell))}:
            found.setdefault(count, []).append(cell)
    return found


def measure_explained_ns(recording: Recording, idle: Idle, *, until: str = "explained") -> Integers:
    """Return how much of each idle time is known: waits, collections, compilations, copies."""
    spans = explained_spans(recording, idle, until=until)
    return measure_covered_ns(*spans, idle.start_ns, idle.end_ns)


def explained_spans(
    recording: Recording, idle: Idle, *, until: str = "explained"
) -> tuple[Integers, Integers]:
    """Return when those waits and collections begin and end, in order and none inside another.

    While 48 copies run one by one, 34 ms, the host may wait for each: only the 70 ms between them
    are its own. ``until``: the column of what a wait for a value explains, ``"high"`` for what the
    host does behind its call too.
    """
    compiling = find_named(recording.signals.long_calls, COMPILES)
    signals = recording.signals
    spans = [find_named(recording.host_ops, NEXT_BATCH), signals.gc, compiling, signals.copies]
    starts = [rows["start_ns"].to_numpy(np.int64) for rows in spans]
    lengths = [rows["duration_ns"].to_numpy(np.int64) for rows in spans]
    if len(recording.host_ops) and len(idle.start_ns):
        import pandas as pd  # here, as a search reads this file and needs none

        waits = pd.concat([host_waits(recording, idle), copy_waits(recording, idle)])
        starts.append(idle.start_ns[waits["gap"].to_numpy()])
        lengths.append(waits[until].to_numpy(np.int64))
    start, length = np.concatenate(starts), np.concatenate(lengths)
    order = np.argsort(start, kind="stable")
    start = start[order]
    end = np.maximum.accumulate(start + length[order])
    start[1:] = np.maximum(start[1:], end[:-1])
    return start, np.maximum(start, end)


@keep_result
def host_waits(recording: Recording, idle: Idle) -> pd.DataFrame:
    """Return the calls during which the device ran dry, with what they cost."""
    return _waits_of(blocking_calls(recording), idle)


@keep_result
def copy_waits(recording: Recording, idle: Idle) -> pd.DataFrame:
    """Return the same of copies to the device: out of pageable memory they wait for the queue.

    Two of them per layer, of a few kilobytes each, and the host is never ahead.
    """
    held, kernels = _longest_calls(recording), recording.kernels
    waits = _waits_of(held[held.index.isin(copies_to_device(recording).index)], idle)
    # At the mark of a step nothing says that the device had been busy before.
    ends = (kernels["start_ns"] + kernels["duration_ns"]).to_numpy()
    found: pd.DataFrame = waits[np.isin(idle.start_ns[waits["gap"].to_numpy()], ends)]
    return found


def _waits_of(ops: pd.DataFrame, idle: Idle) -> pd.DataFrame:
    start = ops["start_ns"].to_numpy()
    end = start + ops["duration_ns"].to_numpy()
    gap = np.searchsorted(idle.start_ns, end, side="right") - 1
    at = gap.clip(min=0)
    waited = (gap >= 0) & (idle.start_ns[at] >= start) & (idle.end_ns[at] >= end)
    ops, at = ops[waited], at[waited]
    blocked = ops["duration_ns"].to_numpy()
    # Behind the call the host launches again, or does what is no matter of the call: it loads.
    called = end[waited] - idle.start_ns[at]
    beyond = beyond_typical(idle, at)[at]
    cost = np.minimum(beyond, called + _LONGEST_LAUNCH_NS)
    # What else it does began as the call ended: 12 ms of logging are a pause of 12, not of 11.
    own = np.where(beyond > called + _LONGEST_LAUNCH_NS, called, cost)
    rows = ops.assign(
        gap=at, blocked=blocked, low=np.minimum(cost, blocked), high=cost, explained=own
    )
    # Of calls around each other, the innermost is the one that waited.
    innermost: pd.DataFrame = rows.sort_values("start_ns", kind="stable").drop_duplicates(
        "gap", keep="last"
    )
    return innermost


def blocking_calls(recording: Recording) -> pd.DataFrame:
    """Return the calls that may have waited: the longest, as many as CANN says that the host did.

    ``.item()`` of a tensor of the host has the same name, but it is shorter.
    """
    ops = _longest_calls(recording)
    found: pd.DataFrame = ops[~ops.index.isin(copies_to_device(recording).index)]
    return found


@keep_result
def _longest_calls(recording: Recording) -> pd.DataFrame:
    """Return those calls, and the copies to the device among them."""
    ops, calls = recording.host_ops, host_calls(recording, SYNCHRONISE).count
    # Where the dump counts the waits, the longest calls are those; else what copied, or is long.
    copied = find_named(recording.kernels, COPIES, "type")["host_op"]
    long = (ops["duration_ns"] >= (0 if calls else SHORTEST_NS)) | ops.index.isin(copied)
    ops = ops[ops["name"].isin(list(SPELLINGS)) & long]
    # A copy that launches a kernel stays on the device.
    launches = np.zeros(int(ops.index.max()) + 1 if len(ops) else 0, np.bool_)
    asked = recording.kernels["host_op"].to_numpy()
    launches[asked[(asked >= 0) & (asked < len(launches))]] = True
    ops = ops[~((ops["name"] == "aten::copy_").to_numpy() & launches[ops.index.to_numpy()])]
    ops = _without_inner(ops)
    if calls:
        most = math.ceil(calls * recording.step_count / count_recorded_steps(recording))
        ops = ops.nlargest(max(most, 1), "duration_ns")
    return ops


def _without_inner(ops: pd.DataFrame) -> pd.DataFrame:
    """Return the calls without those that are most of one around them: ``.item()`` is one wait.

    100 reads of 20 µs hold 100 copies of 18 µs: CANN waited 100 times, not 200.
    """
    rows = ops.sort_values(["start_ns", "duration_ns"], ascending=[True, False], kind="stable")
    start, length = rows["start_ns"].to_numpy(), rows["duration_ns"].to_numpy()
    end = start + length
    inner = np.append(False, (end[1:] <= end[:-1]) & (length[1:] >= AS_LONG * length[:-1]))
    kept: pd.DataFrame = rows[~inner[: len(rows)]].sort_index()
    return kept


def beyond_typical(idle: Idle, waits: Integers) -> Integers:
    """Return how much longer each idle time is than the median one that a launch may take.

    ``waits`` are the gaps behind waits of the host: none of them is typical, however many there are
    (30 reads of a value per step and a gap between the steps).
    """
    gaps = idle.end_ns - idle.start_ns
    own = np.unique(waits)
    others = np.delete(gaps, own)
    short = others[others < _LONGEST_LAUNCH_NS]
    typical = round(float(np.median(short))) if len(short) > len(own) else 0
    beyond: Integers = np.maximum(gaps - typical, 0)
    return beyond
