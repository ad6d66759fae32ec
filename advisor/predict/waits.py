"""Who waits for whom in a recording: seen in the times, where no event says it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npufix.advisor.predict.graph.step_graph import HostWait
from npufix.profiling_parsers.tables.columns import find_rows_with
from npufix.rules.shared.recording.observing import NEXT_BATCH, WORKERS
from npufix.rules.shared.recording.pauses import SPELLINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

_AT_ONCE_NS = 20_000
"""What starts so soon behind the end of something else has waited for it."""
_RETURN_NS = 250_000
"""So soon behind the last kernel the host goes on, where it has waited for it."""
_CALL_NS = 20_000
"""Of a call that waits, what it takes where there is nothing to wait for."""
_LOAD_NS, _LOAD_SHARE, _ONE_LOAD_SHARE = 200_000, 0.02, 0.05
_ALIKE, _MUCH = 0.5, 0.1
"""Calls for a batch of which the shortest takes so much of the longest wait for none, up to so much
of the step."""
_PAUSE, _PAUSE_NS, _TAIL = 20, 300_000, 0.05
"""A pause is so many usual ones, and so long; behind the last kernel there is so much of it."""
_ROUND = 8
"""Waits that are so much shorter than the longest are no round of the processes that load."""
_ODD = 3
"""Times as long as the others."""
_USUAL_ROUNDS, _ROUND_SPREAD, _NO_ROUND_SPREAD = 2, 0.1, 0.2
"""As how many rounds counts what is usual, how far those are from each other (batches of 32 samples
that take half more or less each), and few steps from what a round is on average."""
_SHORTEST_NS = 10_000
"""Of a call that asks the device, even where it has nothing to wait for."""
_AS_LONG = 0.5
"""Share of the call around it from which a call is what waits there."""
_SYNCHRONISE = re.compile(r"(?i).*synchroni[sz]e.*")
_BATCH = re.compile(NEXT_BATCH)
_WORKERS = re.compile(WORKERS)
_LEAST_DEPTH, _FULL, _ROOM_NS = 16, 0.02, 5_000
_ENOUGH, _SHORT = 16, 0.1
"""Launches that did not wait for room from which their median counts, else that quantile of all."""


class Rows(NamedTuple):
    """Kernels in the order of their launches; times since the epoch."""

    launch: Integers
    start: Integers
    end: Integers
    stream: Integers
    communication: NDArray[np.bool_]
    asked: Integers
    """When the operator began that asks for each, its launch where that is unknown; in order."""


def find_dependencies(
    rows: Rows, stalled: NDArray[np.bool_], at_once_ns: int = _AT_ONCE_NS
) -> Integers:
    """Return the row of another stream that each kernel waits for, -1 if none.

    A collective waits for what was launched before it on the stream that computes: its operand is
    made there. Another kernel that starts neither when it is launched nor behind the one before
    waits for what has just ended.
    """
    found = np.full(len(rows.start), -1, np.int64)
    by_end = np.argsort(rows.end, kind="stable")
    ends = rows.end[by_end]
    busy = np.where(rows.communication, 0, rows.end - rows.start)
    main = int(np.bincount(rows.stream, busy).argmax()) if len(busy) else 0
    before = np.maximum.accumulate(np.where(rows.stream == main, np.arange(len(found)), -1))
    own = np.flatnonzero(rows.communication & (rows.stream != main) & (before >= 0))
    own = own[rows.end[before[own]] <= rows.start[own] + 1_000]
    found[own] = before[own]
    for row in np.flatnonzero(stalled & (found < 0)).tolist():
        start = rows.start[row]
        first, last = np.searchsorted(ends, (start - at_once_ns, start + 1))
        near = by_end[first:last][::-1]
        others = near[(rows.stream[near] != rows.stream[row]) & (near < row)]
        if len(others):
            found[row] = others[0]
    return found


def find_room(rows: Rows) -> tuple[int, NDArray[np.bool_]]:
    """Return how many launched kernels may wait for the device, and which launches waited for room.

    0 where the host never had to wait. As many as there were at most, if there were so many again
    and again.
    """
    ends = np.sort(rows.end)
    done = np.searchsorted(ends, rows.launch, side="right")
    waiting = np.arange(1, len(rows.launch) + 1) - done
    most = int(waiting.max(initial=0))
    is_full = waiting >= most - 1
    none = np.zeros(len(is_full), np.bool_)
    if most < _LEAST_DEPTH or is_full.sum() < _FULL * len(waiting):
        return 0, none
    # It waited where it went on as soon as there was room.
    since = rows.launch - ends[(done - 1).clip(min=0)]
    if np.median(since[is_full]) >= _ROOM_NS:
        return 0, none
    return most, is_full


def without_room_waits(delta_ns: Floats, waited: NDArray[np.bool_]) -> Floats:
    """Return what the host needs from launch to launch, without what it waited for room.

    How long that was is not recorded: it needs no more than where it did not wait, or where it
    always did, than the shortest of these.
    """
    free = delta_ns[~waited]
    if not waited.any():
        return delta_ns
    usual = np.median(free) if len(free) >= _ENOUGH else np.quantile(delta_ns, _SHORT)
    return np.where(waited, np.minimum(delta_ns, usual), delta_ns)


class _Call(NamedTuple):
    begin: int
    end: int
    operator: int
    loads: bool = False
    copies: bool = False


def find_host_waits(  # noqa: PLR0913, PLR0917 - what was recorded of some steps
    rows: Rows,
    host_ops: pd.DataFrame,
    loads: pd.DataFrame,
    step_ns: float,
    begin: int,
    end: int | None,
    busy: Floats,
) -> list[tuple[HostWait, int]]:
    """Return the waits of the host with the moment when each ends.

    ``delta_ns`` is when the call began, and still to be taken from what is before. ``begin`` is
    when the first step begins and, if that is known, ``end`` when the last one ends on the host.
    ``loads`` are the waits for batches of the whole recording, ``busy`` is for how long each stream
    still runs what is of the steps before.
    """
    calls = list(_calls(host_ops, rows.asked))
    calls = _apart(sorted([*calls, *_pauses(rows, end, [c.begin for c in calls if c.loads])]))
    batches = _batches([c for c in calls if c.loads], list(_calls(loads)), step_ns, begin, end)
    found = []
    latest = _Latest(rows, begin + busy)
    for call in calls:
        before = int(np.searchsorted(rows.launch, call.end, side="right"))
        length = call.end - call.begin
        if call.loads:
            if (loading := _loading(call, before, batches)) is not None:
                found.append((loading, call.end))
            continue
        stream, ended = latest.before(before, call.end)
        if stream < 0:
            continue
        # A copy comes behind the last kernel, however long it is; else that is a part of the wait.
        returned = call.copies or call.end - ended <= max(_RETURN_NS, _TAIL * length)
        waited = ended >= call.begin and returned
        if not waited and call.operator < 0:
            continue
        own = min(length, _CALL_NS) if waited else length
        behind = call.end - max(ended, call.begin) if waited or call.copies else _CALL_NS
        found.append(
            (HostWait(before, call.begin, own, stream, behind, operator=call.operator), call.end)
        )
    return found


class _Batches(NamedTuple):
    """When the processes that load have each batch ready, and how often one, on average."""

    ready: dict[int, float]
    """By the end of the call that asks for it; nanoseconds since the first step began."""
    period_ns: float
    spread: float
    """How far that may be off (one standard deviation), a share of it; 0: nothing says it."""


def _batches(
    own: list[_Call], loads: list[_Call], step_ns: float, begin: int, end: int | None
) -> _Batches | None:
    """Return when the batches come, ``None`` where the loader is ahead of the steps.

    It is the limit where it is waited for, in each step or, of four processes that begin together,
    in each fourth. Which batch was there before it was asked for came with the one before.
    """
    if not own:  # other steps, or none, asked for those that were recorded
        return None
    period = (end - begin) / len(own) if end is not None else step_ns
    # Eight batches of 5 ms in a step of 150 ms are a quarter of it.
    step_ns = min(step_ns, period)
    share = _LOAD_SHARE if len(own) > 1 else _ONE_LOAD_SHARE
    waits = sorted((call.end - call.begin for call in loads), reverse=True)
    # What all calls take alike is taking a batch over, unless that is much of the step.
    if (
        len(waits) > 1
        and waits[-1] >= _ALIKE * waits[0]
        and sum(waits) < _MUCH * len(waits) * step_ns
    ):
        return None
    least = max(_LOAD_NS, share * step_ns)
    blocked = [call for call in loads if call.end - call.begin >= least]
    if not blocked or sum(waits[: len(blocked)]) < share * len(loads) * step_ns:
        return None
    ready, latest = {}, 0.0
    for call in own:
        latest = float(call.end - begin) if call in blocked else latest
        ready[call.end] = latest
    # A batch that came late begins no round: 40, 0, 3, 0, 34, 0, 0, 0 ms are two. One process has
    # a round for each batch.
    second = waits[min(1, len(blocked) - 1)]
    one = 4 * len(blocked) >= 3 * len(loads)
    least = least if one else second / 2
    rounds = [at for at, call in enumerate(loads) if call.end - call.begin >= least]
    if len(rounds) <= 1 or (second * _ROUND < waits[0] and not one):
        return _Batches(ready, period, _NO_ROUND_SPREAD)
    ends = np.array([loads[at].end for at in rounds]) - loads[0].end
    batches, taken = np.diff(rounds), np.diff(ends)
    # In one of them the host may have done something else: a checkpoint is no round.
    usual = taken <= _ODD * np.median(taken / batches) * batches
    batches, taken = batches[usual], taken[usual]
    # Where the host was ahead at first, and took what was ready, rounds say what comes in the end.
    period = max(period, float(taken.sum() / batches.sum()))
    # How long rounds are says how far they are from each other; of few of them the steps as they
    # came are the better average.
    off = taken / taken.mean() - batches / batches.mean()
    count = len(taken)
    variance = (_USUAL_ROUNDS * _ROUND_SPREAD**2 + float((off**2).sum())) / (
        _USUAL_ROUNDS + count - 1
    )
    return _Batches(ready, period, math.sqrt(variance / count))


def _loading(call: _Call, before: int, batches: _Batches | None) -> HostWait | None:
    """Return how the host waits in a call for a batch, ``None`` where it takes no time.

    What it takes long for where no batch is waited for is time of the host.
    """
    length = call.end - call.begin
    if batches:
        own, ready = min(length, _CALL_NS), batches.ready[call.end]
        times = ready, batches.period_ns, batches.spread
        return HostWait(before, call.begin, own, -1, *times, call.operator)
    if length < _LOAD_NS:
        return None
    return HostWait(before, call.begin, length, operator=call.operator)


def has_workers(loads: pd.DataFrame) -> bool:
    """Tell whether other processes make the batches."""
    return any(_WORKERS.fullmatch(str(name)) for name in loads["name"].unique())


def _calls(host_ops: pd.DataFrame, asked: Integers | None = None) -> Iterator[_Call]:
    """Yield the calls that wait for a value of the device, or for a batch of other processes.

    A copy that asks for a kernel stays on the device: ``x.to(dtype)`` is a ``Cast``. What is
    launched meanwhile may have been asked for before: a queue lies in between.
    """
    if host_ops.empty:
        return
    waits = find_rows_with(
        host_ops["name"], lambda name: name in SPELLINGS or bool(_SYNCHRONISE.fullmatch(name))
    )
    copies = (host_ops["name"] == "aten::copy_").to_numpy()
    loads = find_rows_with(
        host_ops["name"], lambda name: bool(_BATCH.fullmatch(name) and _WORKERS.fullmatch(name))
    )
    start, length = host_ops["start_ns"].to_numpy(), host_ops["duration_ns"].to_numpy()
    labels = host_ops.index.to_numpy()
    begin, end = _with_around(start, length, waits & ~copies)
    if asked is not None:
        first, last = np.searchsorted(asked, (start, start + length))
        waits &= ~(copies & (last > first))
    for at in np.flatnonzero((waits & (length >= _SHORTEST_NS)) | loads).tolist():
        span = int(begin[at]), int(end[at])
        yield _Call(*span, int(labels[at]), bool(loads[at]), bool(copies[at]))


def _with_around(
    start: Integers, length: Integers, reads: NDArray[np.bool_]
) -> tuple[Integers, Integers]:
    """Return when calls begin and end, those that read a value with what only calls them.

    ``aten::item`` takes 3 us beside ``aten::_local_scalar_dense``, which go with it.
    """
    begin, end = start.copy(), start + length
    ends = start + length
    for at in np.flatnonzero(reads).tolist():
        outer = at - 1
        while outer >= 0 and ends[outer] >= ends[at] and length[outer] <= length[at] + _CALL_NS:
            begin[at], end[at] = start[outer], ends[outer]
            outer -= 1
    return begin, end


def _pauses(rows: Rows, end: int | None, loads: list[int]) -> Iterator[_Call]:
    """Yield the long pauses between launches that end right behind the last kernel.

    Where the host then asks for a batch, at one of ``loads``, it ends there: a step that ends with
    ``torch.npu.synchronize()``, and the next one begins with 2 ms for its batch.
    """
    last = int(rows.launch[-1])
    launch = np.append(rows.launch, last if end is None else max(end, last))
    done = np.maximum.accumulate(rows.end)
    asked = np.array([*sorted(loads), np.iinfo(np.int64).max])
    until = np.minimum(launch[1:], asked[np.searchsorted(asked, done)])
    between = until - launch[:-1]
    longest = max(_PAUSE * float(np.median(np.diff(launch))), _PAUSE_NS)
    tail = until - done
    waited = (between > longest) & (tail >= 0) & (tail < _TAIL * between)
    waited &= done > launch[:-1]
    for at in np.flatnonzero(waited).tolist():
        yield _Call(int(launch[at]), int(until[at]) - 1, -1)


def _apart(calls: list[_Call]) -> list[_Call]:
    """Return calls that do not overlap: of those around each other the innermost that is as long.

    ``acl_memcpy_device_to_host`` of 10 us in ``aten::_local_scalar_dense`` of 800 us only asks. A
    pause that was seen begins behind a call that reaches into it: the operator that launches.
    """
    kept: list[_Call] = []
    for call in calls:
        if call.operator < 0 and kept and call.begin < kept[-1].end < call.end:
            call = call._replace(begin=kept[-1].end)  # noqa: PLW2901 - the same one, shortened
        while kept and kept[-1].end >= call.end and _is_inside(call, kept[-1]):
            kept.pop()
        if not kept or kept[-1].end <= call.begin:
            kept.append(call)
    return kept


def _is_inside(call: _Call, outer: _Call) -> bool:
    """Tell whether a call is what waits in one around it; a pause only was seen."""
    if outer.loads or call.loads or outer.operator < 0:
        return not outer.loads
    return call.end - call.begin >= _AS_LONG * (outer.end - outer.begin)


class _Latest:
    """The stream whose last kernel has just ended, of those launched so far.

    Before the first launch it is that with the last work of the steps before: the copy with which a
    step begins waits for it, or would, if those of the steps before had been recorded.
    """

    def __init__(self, rows: Rows, free: Floats) -> None:
        self._rows = rows
        busy = np.bincount(rows.stream, rows.end - rows.start, len(free))
        stream = int(np.lexsort((busy, free))[-1]) if len(free) else -1
        self._before = (stream, int(free.max(initial=0)))
        streams = range(int(rows.stream.max(initial=-1)) + 1)
        self._own = [np.flatnonzero(rows.stream == stream) for stream in streams]

    def before(self, row: int, moment: int) -> tuple[int, int]:
        """Return the stream and the end of its last kernel, (-1, 0) if none has ended."""
        if not row:
            return self._before if self._before[1] <= moment + 5_000 else (-1, 0)
        best = (-1, 0)
        for stream, own in enumerate(self._own):
            at = int(np.searchsorted(own, row)) - 1
            if at >= 0:
                end = int(self._rows.end[own[at]])
                if best[1] < end <= moment + 5_000:
                    best = stream, end
        return best
