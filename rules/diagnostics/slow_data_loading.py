"""The device waits for the next batch of the DataLoader.

What: while ``next()`` of a DataLoader waits, the device is idle for 1 % of the step or more.

Why it is slow on the NPU: the batch is not ready when the step begins. Nothing can be launched
until it is, so the step begins with idle time.

Evidence: the operators ``enumerate(DataLoader)#...__next__`` of the host, and how long the device
is idle while they last. A slow call behind which the device still works costs nothing and is not
told.

Use instead: more workers (``num_workers`` 4 to 8 per device), ``persistent_workers=True``,
``prefetch_factor``, ``pin_memory=True``; data on a local disk, not in archives that must be
unpacked; every device reads its own shard instead of receiving it from rank 0.

Safety: results stay the same, but the order of random augmentations over workers may change.

References: dataloader.yaml of msprof-analyze (which tells calls above 10 ms); data_loading_optimization.md of the
FrameworkPTAdapter guide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.recording.kernel_groups import LEAST_SHARE
from npufix.rules.shared.recording.observing import (
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

    from npufix.rules.diagnostic import Recording

_SHORTEST_NS = 200_000
"""A call that takes less has found its batch ready."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for the slow calls together."""
    calls = find_named(recording.host_ops, NEXT_BATCH)
    slow = calls[calls["duration_ns"] > _SHORTEST_NS]
    if slow.empty or recording.kernels.empty:
        return
    start, duration = slow["start_ns"].to_numpy(), slow["duration_ns"].to_numpy()
    waited = idle_time(recording, to_marks=True).covered(start, start + duration)
    cost = per_step(waited.sum(), recording)
    if share(cost, recording) < LEAST_SHARE:
        return
    # What no worker does is done by the host itself: it waits for nobody meanwhile.
    own = ~is_named(slow, WORKERS, "name")
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
        ),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most the idle time, if each batch is ready when its step begins",
        places=places(slow, waited, recording),
        host_ops=frozenset(map(int, calls.index)),
        sooner_ns=sooner_without_calls(start[own], duration[own], recording),
        is_idle=True,
    )


RULE = Diagnostic(
    id="NPU408",
    name="slow-data-loading",
    summary="the device waits for the next batch",
    advice=(
        "DataLoader(..., num_workers=8, persistent_workers=True, prefetch_factor=4, "
        "pin_memory=True); keep the data on a local disk and unpacked"
    ),
    check=check,
    gpu_advice=(
        "DataLoader(..., num_workers=8, persistent_workers=True, prefetch_factor=4, "
        "pin_memory=True); keep the data on a local disk and unpacked"
    ),
)
