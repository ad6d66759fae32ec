"""How each step splits into compute, communication and idle time, from its kernels alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_OUTSIDE = np.iinfo(np.int64).min
"""Stands for the step of a kernel that is in none."""


_TIMES = (
    "computing_ns",
    "communication_exposed_ns",
    "overlapped_ns",
    "communication_ns",
    "free_ns",
)


def no_steps() -> pd.DataFrame:
    """Return the table of a dump that does not say how its steps split."""
    empty = {column: np.empty(0, np.int64) for column in _TIMES}
    step = pd.array([], dtype="Int64")
    bubble = np.empty(0, np.int64)
    return pd.DataFrame(
        {
            "step": step,
            "device": np.empty(0, np.int32),
            **empty,
            "bubble_ns": bubble,
            "preparing_ns": bubble,
        }
    )


def steps_from_kernels(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return ``Profile.steps`` computed from ``Profile.kernels``: one row per device and step.

    Free time lies between the first and the last kernel of the step: what comes before the first
    is unknown here. Kernels outside of all steps are left out; without a schedule, the whole run
    of a device is one row whose ``step`` is <NA>. What a pipeline waits is unknown, too.
    """
    step = kernels["step"].to_numpy(np.int64, na_value=_OUTSIDE)
    inside = step != _OUTSIDE
    if inside.any() and not inside.all():
        kernels, step = kernels[inside], step[inside]
    device = kernels["device"].to_numpy()
    group, steps, devices = _groups(step, device)
    start, duration = kernels["start_ns"].to_numpy(), kernels["duration_ns"].to_numpy()
    communication = kernels["communication"].to_numpy()
    if len(steps) > 1 or np.any(start[1:] < start[:-1]):
        order = np.lexsort((start, group))
        group, start = group[order], start[order]
        duration, communication = duration[order], communication[order]
    split = _split(group, start, duration, communication)
    outside = steps == _OUTSIDE
    ids = pd.arrays.IntegerArray(np.where(outside, 0, steps), outside)
    bubble = np.full(len(ids), -1, np.int64)
    return pd.DataFrame(
        {"step": ids, "device": devices, **split, "bubble_ns": bubble, "preparing_ns": bubble}
    )


def steps_apart(
    kernels: pd.DataFrame, begins: Integers, ends: Integers, steps: pd.DataFrame
) -> pd.DataFrame:
    """Return ``steps`` (of one device, in order) split anew by what runs in periods of the device.

    Each kernel counts where it runs, of whichever step it is; the periods do not overlap.
    """
    start = kernels["start_ns"].to_numpy()
    end = start + kernels["duration_ns"].to_numpy()
    first = np.searchsorted(ends, start, side="right")
    count = (np.searchsorted(begins, end, side="left") - first).clip(min=0)
    rows = np.repeat(np.arange(len(start)), count)
    period = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count) + first[rows]
    start, end = np.maximum(start[rows], begins[period]), np.minimum(end[rows], ends[period])
    inside = pd.DataFrame(
        {
            "step": pd.array(period, dtype="Int64"),
            "device": np.int32(0),
            "start_ns": start,
            "duration_ns": end - start,
            "communication": kernels["communication"].to_numpy(bool)[rows],
        }
    )
    split = steps_from_kernels(inside).set_index("step")[list(_TIMES)]
    found = steps.assign(
        **split.reindex(range(len(begins)), fill_value=0)
        .reset_index(drop=True)
        .set_axis(steps.index)
    )
    busy = found["computing_ns"] + found["communication_exposed_ns"]
    free = (ends - begins) - busy
    return found.assign(free_ns=free, preparing_ns=np.minimum(steps["preparing_ns"], free))


def _groups(
    step: Integers, device: NDArray[np.int32]
) -> tuple[NDArray[np.int32], Integers, NDArray[np.int32]]:
    """Return the group of each kernel, and step and device of each group, by device and step."""
    step_codes, steps = pd.factorize(step, sort=True)
    device_codes, devices = pd.factorize(device, sort=True)
    pairs = step_codes + device_codes * len(steps)
    codes, found = pd.factorize(pairs, sort=True)
    return codes.astype(np.int32), steps[found % len(steps)], devices[found // len(steps)]


def _split(
    group: NDArray[np.int32], start: Integers, duration: Integers, communication: NDArray[np.bool_]
) -> dict[str, Integers]:
    """Return the columns of ``Profile.steps`` from kernels in order of group and start."""
    count = int(group.max(initial=-1)) + 1
    end = start + duration
    starts_at = np.searchsorted(group, np.arange(count))
    origin = start[starts_at]
    span = np.maximum.reduceat(end, starts_at) - origin if count else origin
    # One time line on which the groups follow each other, so that one pass serves them all.
    shift = (np.concatenate([[0], np.cumsum(span)[:-1]]) if count else span) - origin
    start = shift[group] + start
    end = start + duration

    def union(rows: NDArray[np.bool_] | slice) -> Integers:
        return _sums(group[rows], _find_uncovered(start[rows], end[rows]), count)

    computing, communicating, busy = union(~communication), union(communication), union(slice(None))
    return {
        "computing_ns": computing,
        "communication_exposed_ns": busy - computing,
        "overlapped_ns": communicating + computing - busy,
        "communication_ns": communicating,
        "free_ns": span - busy,
    }


def _find_uncovered(start: Integers, end: Integers) -> Integers:
    """Return for intervals in start order the part of each that none before it covers."""
    if not len(start):
        return start
    latest = np.maximum.accumulate(end)
    begin = start.copy()
    np.maximum(begin[1:], latest[:-1], out=begin[1:])
    np.subtract(end, begin, out=begin)
    return np.maximum(begin, 0, out=begin)


def _sums(group: NDArray[np.int32], values: Integers, count: int) -> Integers:
    """Return the sum of each group; ``group`` is in ascending order, and exact as no float is."""
    totals = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=totals[1:])
    edges = np.searchsorted(group, np.arange(count + 1))
    sums: Integers = np.diff(totals[edges])
    return sums
