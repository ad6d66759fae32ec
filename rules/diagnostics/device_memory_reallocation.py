"""Device memory is taken from and given back to the driver while the steps run.

What: the calls that allocate or free device memory take more than 10 ms.

Why it is slow on the NPU: the allocator of PyTorch keeps what it has and hands it out again for
next to nothing. When no free block is large enough it asks the driver, and when that has nothing
left it gives unused blocks back first, which waits for the device.

Evidence: aclrtMalloc, aclrtFree and their relatives in api_statistic.csv; reserved against
allocated memory in memory_record.csv.

Use instead: ``PYTORCH_NPU_ALLOC_CONF=expandable_segments:True``. Where the run had that already and
still asks the driver, the memory is full: a smaller batch; remove ``torch.npu.empty_cache()`` from
the loop. Where segments cannot be expandable, ``garbage_collection_threshold:0.95,
max_split_size_mb:50`` keeps blocks from being split up. ``MULTI_STREAM_MEMORY_REUSE=0`` keeps
streams from sharing blocks: unset it.

Safety: results stay the same. expandable_segments cannot be combined with
garbage_collection_threshold or max_split_size_mb.

References: memory.yaml of msprof-analyze (threshold 10 ms); optimization_recommendations.md of the
FrameworkPTAdapter guide.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import format_count, milliseconds
from npufix.rules.shared.recording.observing import (
    AS_LONG,
    count_recorded_steps,
    find_named,
    free_ns,
    host_calls,
    measure_within_ns,
    per_step,
)
from npufix.rules.shared.recording.pauses import (
    ALLOCATES,
    ONLY_ALLOCATES,
    SHORTEST_PAUSE_NS,
    SYNCHRONISES,
    find_pauses,
    sooner_in_pauses,
    sooner_without,
)
from npufix.rules.shared.recording.run_settings import advice, find_recorded

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording

MEM_10_MS = 10_000_000
"""Nanoseconds in all steps together."""
# Not aclrtMallocHost and aclrtFreeHost: that is memory of the host.
_MOST = 0.8
"""Share of a pause from which such calls are all of it."""
_STALLED = 10
"""Times as long as usual an operator takes that waits for the driver."""
_SPAN = ["start_ns", "duration_ns"]
_GIB = 1 << 30
_ALLOC_CONF = "PYTORCH_NPU_ALLOC_CONF"
_EXPANDABLE = f"export {_ALLOC_CONF}=expandable_segments:True"
_SPLIT = f"export {_ALLOC_CONF}=garbage_collection_threshold:0.95,max_split_size_mb:50"
_EXCLUDED = ("garbage_collection_threshold", "max_split_size_mb")
"""Options that expandable segments cannot be combined with."""
_EMPTY_CACHE = "remove torch.npu.empty_cache() from the loop"


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where the driver is asked for memory for long."""
    calls = host_calls(recording, ALLOCATES)
    if calls.per_step_ns * count_recorded_steps(recording) <= MEM_10_MS:
        return
    sooner = _in_their_pauses(recording) or sooner_in_pauses(calls.per_step_ns, recording)
    held = per_step(sum(sooner.values()), recording)
    cost = min(max(round(calls.per_step_ns), held), free_ns(recording))
    yield Observation(
        what=(
            f"{format_count(calls.per_step, 'call')} per step that allocate or free device memory "
            f"take {milliseconds(calls.per_step_ns)}, the longest "
            f"{milliseconds(calls.longest_ns)}{_with_waits(held, round(calls.per_step_ns))}"
        ),
        evidence=(*_memory(recording), ("PYTORCH_NPU_ALLOC_CONF", _setting(recording))),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most the free time of the step: the rest hides behind kernels",
        sooner_ns=sooner,
        is_idle=True,
        advice=_advice(recording),
    )


def _with_waits(held_ns: int, calls_ns: int) -> str:
    """Return how long the device is idle with what the calls wait for first, where that is more."""
    if held_ns <= calls_ns:
        return ""
    idle = milliseconds(held_ns)
    return f"; with the synchronisations that they begin with, the device is idle for {idle}"


def _in_their_pauses(recording: Recording) -> dict[int, int]:
    """Return the pauses that are such calls, with the synchronisation in which they begin.

    The allocator waits for the device for 4 of 9 ms before it gives blocks back: without these
    calls that wait goes, too, and what the operator does between them, which hands blocks out in
    microseconds where it has some. Nothing where most of a pause is something else.
    """
    pauses = find_pauses(recording)
    calls = recording.signals.long_calls
    own, waits = find_named(calls, ALLOCATES), find_named(calls, f"{ALLOCATES}|{SYNCHRONISES}")
    import pandas as pd  # here, as a search reads this file and needs none

    waits = pd.concat([waits[_SPAN], _stalled_operators(own, recording)])
    idle, rows = pauses.idle, pauses.rows
    asked, covered = (
        measure_within_ns(each, idle.start_ns, idle.end_ns)[rows] for each in (own, waits)
    )
    return sooner_without(
        pauses, rows[(asked > 0) & (covered >= _MOST * pauses.idle_ns[rows])], recording
    )


def _stalled_operators(own: pd.DataFrame, recording: Recording) -> pd.DataFrame:
    """Return the operators that allocate and take long where they ask the driver.

    Another one, ``aten::mm``, allocates its result: it is stalled where it takes much longer than
    it usually does. What always takes so long does something else besides.
    """
    ops = recording.host_ops
    ops = ops[(ops["duration_ns"] >= SHORTEST_PAUSE_NS * AS_LONG).to_numpy(bool)]
    start, moments = ops["start_ns"].to_numpy(), np.sort(own["start_ns"].to_numpy())
    end = start + ops["duration_ns"].to_numpy()
    ops = ops[np.searchsorted(moments, end) > np.searchsorted(moments, start)]
    names = recording.host_ops["name"]
    usual = {name: _usual_ns(name, recording) for name in names.loc[ops.index].unique()}
    is_stalled = [
        _STALLED * usual[name] <= ns
        for name, ns in zip(ops["name"], ops["duration_ns"], strict=True)
    ]
    stalled: pd.DataFrame = ops.loc[is_stalled, _SPAN]
    return stalled


def _usual_ns(name: str, recording: Recording) -> float:
    """Return what an operator takes usually; nothing where it only allocates."""
    if re.fullmatch(ONLY_ALLOCATES, name):
        return 0.0
    same = recording.host_ops["name"] == name
    return float(recording.host_ops.loc[same.to_numpy(bool), "duration_ns"].median())


def _advice(recording: Recording) -> str:
    """Return what to set; options that exclude each other are named."""
    if find_named(recording.signals.functions, r".*: empty_cache").size:
        return _EMPTY_CACHE
    options = (find_recorded(recording, _ALLOC_CONF) or "").replace(" ", "")
    others = [name for name in _EXCLUDED if name in options]
    if "expandable_segments:True" in options:
        first = "segments are expandable already: a smaller batch, or less memory held"
        if others:
            first = f"remove {' and '.join(others)}: not together with expandable_segments"
    elif others:
        first = f"{_EXPANDABLE} instead of {' and '.join(others)} (not together)"
    else:
        first = f"{_EXPANDABLE}; or, where that fails, {_SPLIT} (not together)"
    shared = "unset MULTI_STREAM_MEMORY_REUSE"
    reuse = shared if find_recorded(recording, "MULTI_STREAM_MEMORY_REUSE") == "0" else ""
    return advice(first, reuse, _EMPTY_CACHE)


def _setting(recording: Recording) -> str:
    return find_recorded(recording, _ALLOC_CONF) or "not recorded or unset"


def _memory(recording: Recording) -> tuple[tuple[str, str], ...]:
    rows = recording.signals.memory
    rows = rows[(rows["allocated_bytes"] >= 0) & (rows["reserved_bytes"] >= 0)]
    if rows.empty:
        return ()
    top = rows.iloc[int(rows["reserved_bytes"].to_numpy().argmax())]
    allocated, reserved = top["allocated_bytes"] / _GIB, top["reserved_bytes"] / _GIB
    return (("most reserved", f"{reserved:.1f} GiB, {allocated:.1f} GiB of it in use"),)


RULE = Diagnostic(
    id="NPU404",
    name="device-memory-reallocation",
    summary="the allocator asks the driver for device memory while the steps run",
    advice=f"{_EXPANDABLE} (not together with {' or '.join(_EXCLUDED)}); {_EMPTY_CACHE}",
    check=check,
)
