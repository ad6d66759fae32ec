"""The device waits for a copy from the host.

What: copies to the device (``x.to("npu")``) during which the device is idle.

Why it is slow on the NPU: memory that is not pinned cannot be copied in the background, so the host
waits for the copy and launches nothing meanwhile, ``non_blocking=True`` or not. Many small copies
cut the queue of launches just as one large copy does.

Evidence: the operators ``aten::copy_`` with ``acl_memcpy_host_to_device`` inside (where a version
names no such call, those that launch no kernel and whose size the next kernels read and none before
wrote), and the idle time of the device while they last.

Use instead: ``DataLoader(..., pin_memory=True)`` with ``x.to("npu", non_blocking=True)``; copy the
next batch while this one is computed; create constants on the device
(``torch.arange(n, device=x.device)``).

Safety: results stay the same, as long as the memory of the host is not changed before the copy is
done.

References: positioning_process of the troubleshooting guide (HOST-H2D: frequent copies from host to
device); data_loading_optimization.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.kineto.names import DTYPES
from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.observing import (
    idle_time,
    measure_covered_ns,
    per_step,
    places,
    runs_on_gpu,
    share,
)
from npufix.rules.shared.recording.pauses import copies_to_device, copy_waits
from npufix.rules.shared.recording.recorded_cells import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.observing import Idle, Integers

_PINNED, _PINNED_BYTES_PER_NS = 0.4, 10.0
"""Of the time of a copy out of pageable memory, which is copied into pinned memory first; and what
no such copy reaches."""
_OF_NPU = 20.0
"""Bytes a nanosecond out of pinned memory, over the links of servers with NPUs."""
_AT_WORST = 2.5
"""Times as long as a copy out of pinned memory may take: 8 instead of 20 GB/s."""
LEAST_SHARE = 0.01
"""Share of the step from which it is told, as for fusible windows (FUSIBLE)."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all copies together."""
    copies = copies_to_device(recording)
    if copies.empty or recording.kernels.empty:
        return
    idle = idle_time(recording, to_marks=True)
    start = copies["start_ns"].to_numpy()
    duration = copies["duration_ns"].to_numpy()
    inside = idle.covered(start, start + duration)
    waited = _with_next_launch(inside, copies, idle, recording)
    cost = per_step(waited.sum(), recording)
    if share(cost, recording) < LEAST_SHARE:
        return
    steps = max(1, recording.step_count)
    stays = _stays_ns(copies, inside, recording)
    held = np.array([worst for _, worst in stays.values()], np.int64)
    certain = per_step(int((waited - held)[held < inside].sum()), recording)
    behind = " and until the next launch" if waited.sum() > inside.sum() else ""
    yield Observation(
        what=(
            f"{format_count(len(copies) / steps, 'copy', 'copies')} from the host per step; the "
            f"device is idle for {milliseconds(cost)} meanwhile{behind} "
            f"({percent(share(cost, recording))} of the step)"
        ),
        evidence=(
            ("host held", f"{milliseconds(duration.sum() / steps)} per step"),
            ("longest copy", milliseconds(duration.max())),
        ),
        cost_ns=cost,
        saving_ns=(certain, cost),
        basis="at most the idle time, if the copies are made while the device computes",
        places=places(copies, waited, recording),
        host_ops=frozenset(map(int, copies.index)),
        stays_ns=stays,
        is_idle=True,
        is_divided=True,
    )


def _with_next_launch(
    inside: Integers, copies: pd.DataFrame, idle: Idle, recording: Recording
) -> Integers:
    """Return how long the device is idle in each copy, or until the launch behind one that waited.

    A copy that waits for the queue leaves the device without work until the host has gone on. Of
    several in one gap, the first has all of it.
    """
    if not len(idle.start_ns):
        return inside
    waits = copy_waits(recording, idle).sort_values("gap", kind="stable")
    begin = idle.start_ns[waits["gap"].to_numpy()]
    start = copies["start_ns"].to_numpy()
    told = measure_covered_ns(
        begin, begin + waits["high"].to_numpy(), start, start + copies["duration_ns"].to_numpy()
    )
    waited: Integers = np.maximum(inside - told, 0)
    waited[copies.index.get_indexer(waits.index)] = waits["high"].to_numpy()
    return waited


def _stays_ns(
    copies: pd.DataFrame, waited: Integers, recording: Recording
) -> dict[int, tuple[int, int]]:
    """Return how long each copy holds the device up where its memory is pinned: likely, at worst.

    The host no longer waits for it, but what is launched behind it does: at best the next batch is
    copied on a stream of its own.
    """
    cells = copies[["input_dims", "input_types"]].astype(str).itertuples(index=False)
    sizes = np.array([_copied_bytes(dims, types) for dims, types in cells])
    # The call may have waited for the queue before: the device is idle for the copy alone.
    taken = np.minimum(copies["duration_ns"].to_numpy(), np.maximum(waited, 1))
    is_quick = sizes >= _PINNED_BYTES_PER_NS * taken
    stays = np.where(is_quick, 1.0, _PINNED) * waited
    if not runs_on_gpu(recording):
        stays = np.where(is_quick | (sizes == 0), stays, np.minimum(waited, sizes / _OF_NPU))
    # What the device is busy with a copy itself, it is out of pinned memory as well.
    stays = np.maximum(stays, np.minimum(waited, _copying_ns(copies, recording)))
    worst = np.where(sizes > 0, np.minimum(waited, stays * _AT_WORST), waited)
    both = zip(stays.round().astype(int).tolist(), worst.round().astype(int).tolist(), strict=True)
    return dict(zip(map(int, copies.index), both, strict=True))


def _copying_ns(copies: pd.DataFrame, recording: Recording) -> Integers:
    """Return how long the device copies during each call, by the trace; 0 where that has none."""
    own, start = recording.signals.copies, copies["start_ns"].to_numpy()
    begin = own["start_ns"].to_numpy()
    end = np.maximum.accumulate(begin + own["duration_ns"].to_numpy())
    begin = np.maximum(begin, np.append(0, end[:-1]))  # two at a time are one time
    return measure_covered_ns(
        begin, np.maximum(begin, end), start, start + copies["duration_ns"].to_numpy()
    )


def _copied_bytes(dims: str, types: str) -> int:
    """Return the size of the first tensor of ``4096,8;4096,8`` and ``float;float``."""
    kind = DTYPES.get(types.partition(";")[0], "")
    return max(tensor_bytes(dims.partition(";")[0], kind), default=0) if dims and kind else 0


RULE = Diagnostic(
    id="NPU407",
    name="blocking-copy-to-device",
    summary="the device is idle while data is copied to it",
    advice=(
        'DataLoader(..., pin_memory=True) and x.to("npu", non_blocking=True); copy the next batch '
        "while this one is computed; create constants on the device"
    ),
    check=check,
)
