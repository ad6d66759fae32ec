"""The device computes nothing while data is copied between it and the host.

What: copies between host and device that no kernel runs beside, 1 % of the step or more.

Why it is slow on the NPU: as on any device, a copy over PCIe moves a fraction of what its memory
does. Memory that is not
pinned is copied twice, and the host waits meanwhile.

Evidence: the tasks ``Memcpy HtoD`` and ``Memcpy DtoH`` of a trace of a GPU, less the time in which a
kernel runs. Dumps of an NPU hold no such tasks: there it is blocking-copy-to-device.

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
from npufix.rules.shared.quantities import milliseconds, number, percent
from npufix.rules.shared.recording.kernel_groups import LEAST_SHARE
from npufix.rules.shared.recording.observing import COPIES, find_named, per_step, places, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.observing import Integers

_ADVICE = (
    "DataLoader(..., pin_memory=True) and x.to(device, non_blocking=True); copy the next batch "
    "while this one is computed; fewer and larger copies"
)


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all copies together."""
    copies = find_named(recording.kernels, COPIES, "type")
    if copies.empty:
        return
    alone = _alone_ns(copies, recording.kernels.drop(index=copies.index))
    cost = per_step(int(alone.sum()), recording)
    if share(cost, recording) < LEAST_SHARE:
        return
    whole = per_step(int(copies["duration_ns"].sum()), recording)
    yield Observation(
        what=(
            f"copying between host and device takes {milliseconds(whole)} per step; for "
            f"{milliseconds(cost)} of it nothing else runs ({percent(share(cost, recording))} of "
            "the step)"
        ),
        evidence=(
            ("copies", f"{number(len(copies) / max(1, recording.step_count))} per step"),
            ("longest copy", milliseconds(int(copies["duration_ns"].max()))),
        ),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most that time, if the copies are made while the device computes",
        places=places(copies, alone, recording),
        is_idle=True,
    )


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
