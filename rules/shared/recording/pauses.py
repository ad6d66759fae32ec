"""Pauses of the device that no other finding explains, and how much sooner it starts without."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npufix.rules.diagnostic import keep_result
from npufix.rules.shared.recording.observing import (
    AS_LONG,
    Idle,
    free_ns,
    idle_time,
    measure_explained_ns,
    per_step,
)

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording

    Integers = NDArray[np.int64]

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

    A wait for a batch, for a value of the device and for the garbage collector is none. What lies
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
