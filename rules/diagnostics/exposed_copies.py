"""The device computes nothing while data is copied between it and the host.

What: copies between host and device that no kernel runs beside, 1 % of the step or more. Where the
host waits for a copy to the device, all of that call counts: 240 copies of 1 µs hold it for 9 ms.

Why it is slow on the NPU: as on any device, a copy over PCIe moves a fraction of what its memory
does. Memory that is not
pinned is copied twice, and the host waits meanwhile.

Evidence: the tasks ``Memcpy HtoD`` and ``Memcpy DtoH`` of a trace of a GPU, and the operators
``aten::copy_`` that last until such a copy to the device is done, less the time in which a kernel
runs. Of an NPU the tasks over PCIe of its trace, in the time in which no kernel runs; small copies
for which the host waits are blocking-copy-to-device there.

Use instead: ``DataLoader(..., pin_memory=True)`` with ``x.to(device, non_blocking=True)``, the next
batch on a stream of its own while this one is computed; fewer and larger copies.

Safety: results stay the same, as long as the memory of the host is not changed before the copy is
done.

References: CUDA semantics of PyTorch (use pinned memory buffers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, number, percent
from npufix.rules.shared.recording.kernel_groups import LEAST_SHARE
from npufix.rules.shared.recording.observing import (
    COPIES,
    find_named,
    free_ns,
    idle_time,
    is_named,
    per_step,
    places,
    rows_where,
    share,
)
from npufix.rules.shared.recording.pauses import (
    SHORTEST_PAUSE_NS,
    ends_step,
    with_copies_around,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.observing import Idle, Integers

_SPAN = ["start_ns", "duration_ns"]
_CALLS = r"aten::(copy_|to|_to_copy)"
_TO_DEVICE = r"Memcpy\sHtoD|CopyHostToDevice"
_PINNED = 0.2
"""Of the time of a copy out of pageable memory, that out of pinned memory: 22 and 4.5 GB/s."""
_ADVICE = (
    "DataLoader(..., pin_memory=True) and x.to(device, non_blocking=True); copy the next batch "
    "while this one is computed; fewer and larger copies"
)


_ASIDE = (
    "copy on a stream of its own (torch.npu.Stream): the next batch while this one is computed, "
    "results and what is offloaded while the device goes on; fewer and larger copies"
)


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all copies together."""
    copies = find_named(recording.kernels, COPIES, "type")
    if copies.empty:
        yield from _beside_kernels(recording)
        return
    held, blocks = _with_calls(copies, recording.host_ops)
    alone = _alone_ns(held, recording.kernels.drop(index=copies.index))
    cost = per_step(int(alone.sum()), recording)
    if share(cost, recording) < LEAST_SHARE:
        return
    steps = max(1, recording.step_count)
    whole = per_step(int(copies["duration_ns"].sum()), recording)
    what = (
        f"copying between host and device takes {milliseconds(whole)} per step; for "
        f"{milliseconds(cost)} of it nothing else runs ({percent(share(cost, recording))} of "
        "the step)"
    )
    waited = per_step(int(alone[blocks].sum()), recording)
    if 2 * waited > cost:
        what = (
            f"the host waits for {format_count(blocks.sum() / steps, 'copy', 'copies')} to the "
            f"device per step, which computes nothing for {milliseconds(waited)} meanwhile "
            f"({percent(share(waited, recording))} of the step)"
        )
    yield Observation(
        what=what,
        evidence=(
            ("copies", f"{number(len(copies) / steps)} per step"),
            ("longest copy", milliseconds(int(copies["duration_ns"].max()))),
        ),
        cost_ns=cost,
        saving_ns=(0, cost),
        likely_ns=round(cost - _PINNED * waited),
        basis="at most that time, if the copies are made while the device computes",
        places=places(copies, alone, recording),
        host_ops=frozenset(map(int, copies["host_op"][blocks])),
        hidden=Labels(copies.index),
        is_idle=True,
    )


def _beside_kernels(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for the copies of an NPU, which are none of the kernels."""
    copies = recording.signals.copies
    start = copies["start_ns"].to_numpy().copy()
    end = np.maximum.accumulate(start + copies["duration_ns"].to_numpy())
    start[1:] = np.maximum(start[1:], end[:-1])  # two at a time are one time
    idle = idle_time(recording, to_marks=True)
    alone = idle.covered(start, np.maximum(start, end))
    cost = min(per_step(int(alone.sum()), recording), free_ns(recording))
    if share(cost, recording) < LEAST_SHARE:
        return
    count = format_count((alone > 0).sum() / max(1, recording.step_count), "copy", "copies")
    calls = recording.host_ops.drop_duplicates("start_ns").set_index("start_ns", drop=False)
    known = copies["asked_ns"].isin(calls.index).to_numpy(bool)
    asked = calls.loc[copies["asked_ns"][known]]
    own = asked["start_ns"].to_numpy()
    prepared = idle.covered(own, np.maximum(own, start[known]))
    blocks = (asked["start_ns"] + asked["duration_ns"]).to_numpy() >= end[known]
    long = int(alone[known][blocks & (prepared >= SHORTEST_PAUSE_NS)].sum())
    blocks &= prepared < SHORTEST_PAUSE_NS
    waits = _blocking(asked, blocks, alone[known], recording.host_ops)
    freed = {} if waits else _freed_ns(start, alone, idle, recording)
    held = 2 * long >= int(alone.sum())
    starts = recording.host_ops["start_ns"].isin(asked["start_ns"])
    long_calls = rows_where(recording.host_ops, starts.to_numpy(bool))
    yield Observation(
        what=(
            f"for {milliseconds(cost)} per step ({percent(share(cost, recording))} of the step) the "
            f"device does nothing but copy from or to the host: {count}"
        ),
        evidence=(("longest copy", milliseconds(int(copies["duration_ns"].max()))),),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most that time, if the copies are made while the device computes",
        places=places(asked, alone[known], recording),
        host_ops=with_copies_around(long_calls, recording) if held else waits,
        freed_ns={} if held else freed,
        # Of a call that prepares its copy for 32 ms, then waits 8 for it, another finding tells.
        sooner_ns=freed if held else {},
        at_least_ns=per_step(int(copies["duration_ns"].sum()), recording),
        is_idle=True,
        advice="" if waits or 2 * alone[known].sum() < alone.sum() else _ASIDE,
    )


def _freed_ns(
    start_ns: Integers, alone_ns: Integers, idle: Idle, recording: Recording
) -> dict[int, int]:
    """Return how much sooner the device is free for the kernel behind each idle time."""
    at = (np.searchsorted(idle.start_ns, start_ns, side="right") - 1).clip(min=0)
    freed = np.bincount(at, alone_ns, len(idle.start_ns)).astype(np.int64)
    freed = np.where(ends_step(recording, idle), 0, freed)
    own = np.flatnonzero(freed)
    labels = recording.kernels.index.to_numpy()[idle.next_kernel[own]]
    return dict(zip(labels.tolist(), freed[own].tolist(), strict=True))


def _blocking(
    asked: pd.DataFrame, blocks: NDArray[np.bool_], alone_ns: Integers, host_ops: pd.DataFrame
) -> frozenset[int]:
    """Return the labels of calls in which the host waits until their copy has been made.

    None where that is the smaller part: kernels that wait for a copy of 20 ms wait as long when a
    read of one number no longer holds up the host.
    """
    if 2 * alone_ns[blocks].sum() < alone_ns.sum():
        return frozenset()
    waits = asked["start_ns"].to_numpy()[blocks]
    return frozenset(map(int, host_ops.index[host_ops["start_ns"].isin(waits)]))


def _with_calls(
    copies: pd.DataFrame, host_ops: pd.DataFrame
) -> tuple[pd.DataFrame, NDArray[np.bool_]]:
    """Return the copies, those with all of their call that blocked the host, and which these are.

    A call that returns before its copy is done (pinned memory, ``non_blocking=True``) blocked none.
    What lasts much longer than the copy itself, 493 ms for 20 µs, waits for something else.
    """
    calls = find_named(host_ops, _CALLS)
    rows = calls.assign(at=np.arange(len(calls)))["at"]
    at = rows.reindex(copies["host_op"], fill_value=-1).to_numpy(np.int64)
    blocks = is_named(copies, _TO_DEVICE, "type") & (at >= 0)
    blocks &= ~copies["host_op"].duplicated().to_numpy()
    spans = copies[_SPAN].to_numpy(np.int64, copy=True)
    own = calls[_SPAN].to_numpy(np.int64)[at[blocks]]
    lasts = own.sum(axis=1) >= spans[blocks].sum(axis=1)
    blocks[blocks] = lasts & (own[:, 1] - spans[blocks][:, 1] < SHORTEST_PAUSE_NS)
    spans[blocks] = calls[_SPAN].to_numpy(np.int64)[at[blocks]]
    return copies.assign(**dict(zip(_SPAN, spans.T, strict=True))), blocks


def _alone_ns(copies: pd.DataFrame, kernels: pd.DataFrame) -> Integers:
    """Return how long each copy runs while no kernel of its device does."""
    alone = np.zeros(len(copies), np.int64)
    for device in copies["device"].unique():
        own = (copies["device"] == device).to_numpy()
        there = kernels[(kernels["device"] == device).to_numpy()].sort_values(
            "start_ns", kind="stable"
        )
        starts = there["start_ns"].to_numpy()
        ends = np.maximum.accumulate(starts + there["duration_ns"].to_numpy())
        busy = np.concatenate([[0], np.cumsum(ends - np.maximum(starts, _before(ends)))])
        begin = copies["start_ns"].to_numpy()[own]
        end = begin + copies["duration_ns"].to_numpy()[own]
        alone[own] = (
            end - begin - (_busy(end, starts, ends, busy) - _busy(begin, starts, ends, busy))
        )
    return alone


def _before(ends: Integers) -> Integers:
    """Return the end of all before each; what overlaps it counts once."""
    return np.concatenate([ends[:1] - ends[:1], ends[:-1]])


def _busy(moments: Integers, starts: Integers, ends: Integers, busy: Integers) -> Integers:
    """Return how long kernels have run before each moment."""
    at = np.searchsorted(starts, moments, side="right")
    last = np.maximum(at - 1, 0)
    beyond = np.where(at > 0, np.maximum(ends[last] - moments, 0), 0) if len(ends) else 0
    whole: Integers = busy[at] - beyond
    return whole


RULE = Diagnostic(
    id="NPU410",
    name="exposed-copies",
    summary="nothing runs while data is copied between host and device",
    advice=_ADVICE,
    check=check,
    gpu_advice=_ADVICE,
)
