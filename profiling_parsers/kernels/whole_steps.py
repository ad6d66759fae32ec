"""Steps from mark to mark: with what lies before their first kernel and behind the last."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from npufix.profiling_parsers.kernels.steps import steps_apart, steps_from_kernels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MARK = re.compile(r"ProfilerStep#(\d{1,18})")
_BUSY = ["computing_ns", "communication_exposed_ns", "free_ns"]
Marks = dict[int, tuple[int, int]]
"""Begin and end of each step on the host."""


class _Row(NamedTuple):
    device: int
    step: int
    stated: int
    """From the first kernel on, as the dump splits it."""
    preparing: int


def host_marks(host_ops: pd.DataFrame) -> Marks:
    """Return the steps that ``ProfilerStep#7`` marks among the operators of the host."""
    names = host_ops["name"].cat
    numbers = [_MARK.fullmatch(str(name)) for name in names.categories]
    known = np.array([found is not None for found in numbers] + [False])
    rows = host_ops[known[names.codes]]
    found: Marks = {}
    for name, start, duration in rows[["name", "start_ns", "duration_ns"]].itertuples(index=False):
        step = int(str(name).removeprefix("ProfilerStep#"))
        begin, end = found.get(step, (start, start))
        found[step] = min(begin, int(start)), max(end, int(start + duration))
    return found


def steps_between(kernels: pd.DataFrame, marks: Marks) -> pd.DataFrame:
    """Return ``Profile.steps`` of a recording whose marks and kernels alone say what a step is.

    The steps of a device follow each other: where it copies the batch of step 8 while it still
    computes step 7, or runs behind the host, step 8 begins when step 7 has ended.
    """
    steps = whole_steps(steps_from_kernels(kernels), kernels, marks)
    firsts = _first_kernels(kernels)
    numbers = steps["step"].to_numpy(np.int64, na_value=-1)
    found = []
    for device in dict.fromkeys(steps["device"].tolist()):
        at = np.flatnonzero((steps["device"] == device).to_numpy() & (numbers >= 0))
        at = at[np.argsort(numbers[at], kind="stable")]
        own = steps.iloc[at]
        first = np.array([firsts[device, number] for number in numbers[at].tolist()])
        begins = first - own["preparing_ns"].to_numpy()
        ends = begins + own[_BUSY].sum(axis=1).to_numpy(np.int64)
        before = np.maximum.accumulate(ends)
        if (begins[1:] < before[:-1]).any():
            begins[1:] = np.maximum(begins[1:], before[:-1])
            rows = kernels[(kernels["device"] == device).to_numpy()]
            own = steps_apart(rows, begins, np.maximum(ends, begins), own)
        found.append(own)
    outside = steps[numbers < 0]
    return pd.concat([*found, outside], ignore_index=True) if found else outside


def whole_steps(
    steps: pd.DataFrame,
    kernels: pd.DataFrame | None = None,
    marks: Marks | None = None,
    collectives: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return steps as ``Profile.steps`` from those that begin with their first kernel.

    A step lasts from its mark to the next one. Of 150 ms of which the first kernel runs after 20 ms
    and the last ends after 148, these 20 and 2 are free, too; the 20 are ``preparing_ns``. Where
    the device still runs the step before when the mark is set, the step begins behind that. Without
    ``marks`` the column Preparing says where the mark was (-1 in ``preparing_ns``: unknown);
    without ``kernels`` that is only used where the step before was not recorded. Else the first of
    the ``collectives`` (as ``Signals.collectives``) says how far two steps are apart: 42 ms with
    17 ms of work in the first leave 25 ms before the second, if that prepared for so long.
    """
    reached = {} if collectives is None else _first_collectives(collectives)
    firsts = {} if kernels is None else _first_kernels(kernels)
    heads, tails = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.int64)
    last: _Row | None = None
    ended = 0
    for at, row in _in_order(steps):
        follows = last is not None and (last.device, last.step + 1) == (row.device, row.step)
        if kernels is None:
            heads[at] = max(0, row.preparing)
            if last is not None and follows:
                pair = reached.get(row.step - 1), reached.get(row.step)
                heads[at] = min(heads[at], _between(*pair, last.stated))
            last = row
            continue
        last = row
        first = firsts.get((row.device, row.step), firsts.get((-1, row.step)))
        if first is None:
            last = None
            continue
        mark = (marks or {}).get(row.step, (first - max(0, row.preparing), 0))
        begin = min(first, max(mark[0], ended) if follows else mark[0])
        stated_end = first + row.stated
        ended = max(stated_end, mark[1])
        heads[at], tails[at] = first - begin, ended - stated_end
    return steps.assign(free_ns=steps["free_ns"] + heads + tails, preparing_ns=heads)


def bounds(marks: Marks, *, stated: bool) -> str:
    """Return ``Profile.step_bounds`` of steps that ``whole_steps`` returned."""
    return "marks" if marks else "stated" if stated else "kernels"


def _in_order(steps: pd.DataFrame) -> Iterator[tuple[int, _Row]]:
    stated = steps[_BUSY].sum(axis=1).to_numpy(np.int64)
    preparing = steps["preparing_ns"].to_numpy(np.int64)
    number = steps["step"].to_numpy(np.int64, na_value=-1)
    device = steps["device"].to_numpy(np.int64)
    for at in np.lexsort((number, device)):
        if number[at] >= 0:
            yield int(at), _Row(*(int(v[at]) for v in (device, number, stated, preparing)))


def _between(before: int | None, own: int | None, stated: int) -> int:
    """Return what lies between two steps, of which the first is busy for ``stated``."""
    return 0 if before is None or own is None else max(0, own - before - stated)


def _first_collectives(rows: pd.DataFrame) -> dict[int, int]:
    """Return when the first collective of each step began, of steps where that is known."""
    known = rows[rows["start_ns"] > 0]
    first = known.groupby(known["step"].astype(str))["start_ns"].min()
    numbers = ((str(name).removeprefix("step"), int(start)) for name, start in first.items())
    return {int(name): start for name, start in numbers if name.isdecimal()}


def _first_kernels(kernels: pd.DataFrame) -> Mapping[tuple[int, int], int]:
    """Return the start of the first kernel by device and step; device -1: on any."""
    rows = kernels[["device", "step", "start_ns"]].dropna(subset="step")
    found: dict[tuple[int, int], int] = {}
    earliest = rows.groupby(["device", "step"], as_index=False)["start_ns"].min()
    columns = (earliest[name].tolist() for name in ("device", "step", "start_ns"))
    for device, step, start in zip(*columns, strict=True):
        found[int(device), int(step)] = int(start)
        found[-1, int(step)] = min(found.get((-1, int(step)), int(start)), int(start))
    return found
