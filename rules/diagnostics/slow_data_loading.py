"""The device waits for the next batch of the DataLoader.

What: while ``next()`` of a DataLoader waits, the device is idle for 1 % of the step or more.

Why it is slow on the NPU: the batch is not ready when the step begins. Nothing can be launched
until it is, so the step begins with idle time.

Evidence: the operators ``enumerate(DataLoader)#...__next__`` of the host (of MindSpore
``Dataset::Pipeline::AsyncWait``), and how long the device is idle while they last. A slow call
behind which the device still works costs nothing and is not told. Where the device itself takes
batches from a queue (the sink mode of MindSpore), the time of the kernels ``GetNext``.

Use instead: more workers (as many as make a batch in the time of the rest of a step), ``persistent_workers=True``,
``prefetch_factor``, ``pin_memory=True``; data on a local disk, not in archives that must be
unpacked; every device reads its own shard instead of receiving it from rank 0.

Safety: results stay the same, but the order of random augmentations over workers may change.

References: dataloader.yaml of msprof-analyze (which tells calls above 10 ms); data_loading_optimization.md of the
FrameworkPTAdapter guide.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.recording.kernel_groups import LEAST_SHARE
from npufix.rules.shared.recording.observing import (
    BATCH_QUEUE,
    NEXT_BATCH,
    WORKERS,
    find_named,
    idle_time,
    is_named,
    per_step,
    places,
    share,
)
from npufix.rules.shared.recording.pauses import (
    sooner_without_calls,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.observing import Integers

_CORES, _MORE_OFTEN, _SURELY = 24, 4, 1.2
"""Workers of a device at most: 192 cores for 8 devices; and how many times as many as there are may
be had where that is not known, likely and surely: of one worker 24 times, of twenty 1.2 times."""
_HALF = 0.5
_OF_MINDSPORE = "Dataset::.*"
_QUEUE = (
    "more num_parallel_workers and prefetch_size in mindspore.dataset, python_multiprocessing=True "
    "where Python makes the batches; minddata_pipeline_summary_*.csv names the slow operation"
)
_SHORTEST_NS, _SHORTEST_SHARE = 200_000, 0.02
"""A call that takes less, or less than this share of the longest one, has found its batch ready."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for the slow calls together, and one for waits of the device itself."""
    yield from _at_the_queue(recording)
    calls = find_named(recording.host_ops, NEXT_BATCH)
    least = max(_SHORTEST_NS, _SHORTEST_SHARE * calls["duration_ns"].max()) if len(calls) else 0
    slow = calls[calls["duration_ns"] > least]
    if slow.empty or recording.kernels.empty:
        return
    start, duration = slow["start_ns"].to_numpy(), slow["duration_ns"].to_numpy()
    waited = idle_time(recording, to_marks=True).covered(start, start + duration)
    cost = per_step(waited.sum(), recording)
    if share(cost, recording) < LEAST_SHARE:
        return
    # What no worker does is done by the host itself: it waits for nobody meanwhile.
    own = ~is_named(slow, WORKERS, "name")
    needs = _find_needs(calls, cost, recording)
    yield Observation(
        what=(
            f"{len(slow)} of {len(calls)} calls for the next batch had to wait for it, the longest "
            f"{milliseconds(duration.max())}; the device is idle for {milliseconds(cost)} of them "
            f"per step ({percent(share(cost, recording))} of the step)"
        ),
        evidence=(
            (
                "host held",
                f"{milliseconds(duration.sum() / max(1, recording.step_count))} per step",
            ),
            *needs.evidence,
        ),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most the idle time, if each batch is ready when its step begins",
        places=places(slow, waited, recording),
        host_ops=frozenset(map(int, calls.index)),
        sooner_ns=sooner_without_calls(start[own], duration[own], recording),
        at_least_ns=needs.at_least_ns,
        at_worst_ns=needs.at_worst_ns,
        is_idle=True,
        is_divided=True,
        advice=_QUEUE if is_named(slow, _OF_MINDSPORE, "name").any() else "",
    )


def _at_the_queue(recording: Recording) -> Iterator[Observation]:
    """Yield an observation for kernels that wait for a batch (the sink mode of MindSpore)."""
    kernels = recording.kernels
    takes = find_named(kernels, BATCH_QUEUE, "type")
    slow = takes[takes["duration_ns"] > _SHORTEST_NS]
    cost = per_step(int(slow["duration_ns"].sum()), recording)
    if share(cost, recording) < LEAST_SHARE:
        return
    yield Observation(
        what=(
            f"{len(slow)} of {len(takes)} kernels {slow['type'].iloc[0]} had to wait for the next batch, "
            f"the longest {milliseconds(slow['duration_ns'].max())}; that takes {milliseconds(cost)} "
            f"per step ({percent(share(cost, recording))} of the step)"
        ),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most that time, if each batch is in the queue when its step begins",
        places=places(slow, slow["duration_ns"].to_numpy(), recording),
        kernels=Labels(slow.index),
        advice=_QUEUE,
    )


class _Needs(NamedTuple):
    """What it takes for batches to come in time."""

    at_least_ns: int
    """How often one comes from as many workers as a host has cores for."""
    evidence: tuple[tuple[str, str], ...]
    at_worst_ns: int = 0


def _find_needs(calls: pd.DataFrame, cost_ns: int, recording: Recording) -> _Needs:
    """Return how many workers keep up: each makes a batch in the time that one takes now.

    What the host loads itself takes as long as the call; of workers it is known how many there are
    where each fourth call waits, as each of four brings one.
    """
    own = ~is_named(calls, WORKERS, "name")
    waits = calls["duration_ns"].to_numpy()
    rest = max(1.0, 0.95 * (recording.step_ns - cost_ns))
    workers = 1 if own.all() else _count_workers(waits)
    batches = len(calls) / max(1, recording.step_count)
    one = float(waits[own].mean()) if own.all() else recording.step_ns / batches * workers
    needed = math.ceil(one * batches / rest)
    if not workers or own.any() != own.all():
        more = recording.step_ns / rest
        least = recording.step_ns / _MORE_OFTEN if more > _MORE_OFTEN else 0.0
        worst = recording.step_ns / min(more, _SURELY)
        return _Needs(
            round(least), (("times as many workers keep up", f"{more:.1f}"),), round(worst)
        )
    facts = [
        ("a batch takes one worker", milliseconds(one)),
        ("workers that keep up", str(needed)),
    ]
    most = min(needed, _CORES)
    least = one * batches / most if needed > most else 0.0
    if needed > most:
        facts.append(("with as many as there are cores", f"{milliseconds(least)} per step"))
    return _Needs(round(least), tuple(facts))


def _count_workers(waits_ns: Integers) -> int:
    """Return in how many calls one waits, where it is the same number each time, else 0."""
    long = np.flatnonzero(waits_ns > _HALF * waits_ns.max())
    apart = np.diff(long)
    is_even = len(apart) and (apart == apart[0]).all() and apart[0] > 1
    return int(apart[0]) if is_even else 0


RULE = Diagnostic(
    id="NPU408",
    name="slow-data-loading",
    summary="the device waits for the next batch",
    advice=(
        "DataLoader(..., num_workers=8, persistent_workers=True, prefetch_factor=4, "
        "pin_memory=True), and as many workers as keep up; keep the data on a local disk and "
        "unpacked"
    ),
    check=check,
    gpu_advice=(
        "DataLoader(..., num_workers=8, persistent_workers=True, prefetch_factor=4, "
        "pin_memory=True), and as many workers as keep up; keep the data on a local disk and "
        "unpacked"
    ),
)
