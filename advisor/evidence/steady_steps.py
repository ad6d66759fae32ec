"""Which steps an average is taken over: neither warm-up nor outliers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.reports.report import LeftOutStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_FEW = 3
"""With fewer steps nothing tells which of them is the odd one."""
_LEAST_DEVIATION = 0.3
"""Steps closer to the median than this share of it are alike, however little others vary."""
_STARTED = 2
"""The number of a step, counted from 0, by which the processes that load have started."""
_NOISE = 5 * 1.4826
"""Median absolute deviations; times 1.4826 they are standard deviations of normal noise."""
_SAME_KERNELS = 0.97
"""Share of the kernels of a part of a step that are of the same Types as in the whole one."""
_MOSTLY = 0.5
"""Share of the steps, and of their kernels."""
_WHOLE, _WHOLE_OF_TWO = 0.95, 0.7
"""Share of the kernels of others from which a step is whole. Where there is one other step alone,
it may just have done more: the optimizer, a checkpoint."""


def find_cut_off(kernels: pd.DataFrame) -> list[int]:
    """Return the first and the last step where the recording begins or ends within them.

    Of such a step the kernels are those with which the next one ends, or with which the one before
    begins: of 2,000 in each of the others, 700. ``kernels`` are as in ``Profile.kernels``.
    """
    counted = kernels["step"].notna().to_numpy(bool) & ~kernels["communication"].to_numpy(bool)
    step = kernels["step"].to_numpy(np.int64, na_value=-1)
    numbers, counts = np.unique(step[counted], return_counts=True)
    if len(numbers) <= 1:
        return []

    def kinds_of(number: int) -> NDArray[np.int64]:
        rows = kernels[["type", "start_ns"]].iloc[np.flatnonzero(counted & (step == number))]
        kinds = rows.sort_values("start_ns", kind="stable")["type"].cat.codes
        return np.asarray(kinds, np.int64)

    found = []
    for own, other in ((-1, -2), (0, 1)):
        count, most = int(counts[own]), counts.max()
        alike = counts >= _WHOLE * most
        least = _WHOLE if alike.sum() > 1 else _WHOLE_OF_TWO
        if count >= least * most or not alike[1:-1].all() or not alike[other]:
            continue
        whole, cut = kinds_of(int(numbers[other])), kinds_of(int(numbers[own]))
        part = whole[:count] if own else whole[-count:]
        length = len(kernels["type"].cat.categories)
        same = np.minimum(*(np.bincount(kinds, minlength=length) for kinds in (cut, part)))
        if same.sum() >= _SAME_KERNELS * count:
            found.append(int(numbers[own]))
    return found


def are_varied(kernels: pd.DataFrame) -> bool:
    """Tell whether most kernels of most steps have shapes that no other step has.

    Sentences of 1,100, 3,900, 1,300 and 4,000 tokens: no step is odd for how long it computes.
    """
    known = kernels["step"].notna().to_numpy(bool) & ~kernels["communication"].to_numpy(bool)
    at, steps = pd.factorize(kernels["step"].to_numpy(np.int64, na_value=-1)[known])
    if len(steps) < _FEW:
        return False
    shapes = pd.factorize(kernels["input_shapes"])[0][known]
    pairs, counts = np.unique(shapes * len(steps) + at, return_counts=True)
    shape, step = pairs // len(steps) + 1, pairs % len(steps)  # none is -1
    own = np.where(np.bincount(shape)[shape] == 1, counts, 0)
    shares = np.bincount(step, own) / np.bincount(step, counts)
    return bool(np.mean(shares > _MOSTLY) > _MOSTLY)


def split_steps(
    steps: pd.DataFrame,
    loading: Mapping[int, int] | None = None,
    cut_off: Sequence[int] = (),
    *,
    varied: bool = False,
) -> tuple[pd.DataFrame, list[LeftOutStep]]:
    """Return the rows of ``Profile.steps`` that an average may be taken over, and the others.

    Warm-up are the first steps while they are far slower than the second half of the run; an
    outlier is a step that takes far longer than the median of the rest, a first or last one that
    takes far less, and a last one that the end of the recording cut off: it computed less than
    others that are alike. Of fewer than three steps all count but
    those that are known to be ``cut_off`` (``find_cut_off``).

    ``loading`` says how long (ns) each step waited for its batch. That makes none odd but the
    first of a run, where it waits longer than all others for processes that start: of four that
    load too slowly, each fourth step waits for all four. Nor does what a step computes where their
    inputs are ``varied`` (``are_varied``).
    """
    is_cut = steps["step"].isin(list(cut_off)).to_numpy(bool)
    if is_cut.any() and not is_cut.all():
        kept, left_out = split_steps(steps[~is_cut], loading, varied=varied)
        typical = float(_totals(kept).median())
        left = _totals(steps[is_cut])
        for step, total in zip(left.index.tolist(), left.tolist(), strict=True):
            ratio = float(total / typical) if typical else 0.0
            left_out.append(LeftOutStep(int(step), round(total), "outlier", ratio))
        return kept, sorted(left_out, key=lambda each: each.step or 0)
    totals = _totals(steps)
    if len(totals) < _FEW:
        return steps, []
    whole = totals.to_numpy(np.float64)
    waited = totals.index.map(loading or {}).to_numpy(np.float64, na_value=0.0)
    if not totals.index[0] >= _STARTED:
        waited[:1] = np.minimum(waited[:1], waited[1:].max())
    # A device that still ran what was launched before did not stand still for all of the wait.
    least = (whole - waited).clip(min=0.0)
    alone = waited <= _LEAST_DEVIATION * whole
    times = np.clip(np.median(least[alone] if alone.any() else least), least, whole)
    # A step as long as the others is none of both, whatever part of it was a wait.
    alike = np.abs(whole - np.median(whole)) <= _LEAST_DEVIATION * np.median(whole)
    times = np.where(alike & (waited > 0).any(), np.median(times), times)
    computed = steps["computing_ns"].groupby(steps["step"], dropna=False).mean()
    if varied:
        times += float(computed.median()) - computed.to_numpy(np.float64)
    ended = len(times) - _is_cut_off(times, computed.to_numpy(np.float64))
    warm_up = _warm_up(times[:ended]) if ended >= _FEW else 0
    outlier = np.zeros(len(times), np.bool_)
    deviation = _deviation(*[times[warm_up:ended]] * 2)
    # Nothing makes a step shorter by chance: it has less to do, as shorter samples have. Only the
    # recording does, where it begins or ends.
    deviation[1:-1] = deviation[1:-1].clip(min=0.0)
    outlier[warm_up:ended] = np.abs(deviation) > 1
    outlier[ended:] = True
    typical = float(np.median(whole[warm_up:][~outlier[warm_up:]]))
    left_out = [
        LeftOutStep(
            step=None if totals.index.isna()[position] else int(totals.index[position]),
            total_ns=round(whole[position]),
            reason="warm-up" if position < warm_up else "outlier",
            ratio=float(whole[position] / typical) if typical else 0.0,
        )
        for position in range(len(times))
        if position < warm_up or outlier[position]
    ]
    if not left_out:
        return steps, []
    whole_steps = totals.index[[n for n in range(len(times)) if n >= warm_up and not outlier[n]]]
    return steps[steps["step"].isin(list(whole_steps))], left_out


def _totals(steps: pd.DataFrame) -> pd.Series[float]:
    """Return how long each step lasts. One step of several devices is one step."""
    spent = steps["computing_ns"] + steps["communication_exposed_ns"] + steps["free_ns"]
    lengths: pd.Series[float] = spent.groupby(steps["step"], dropna=False).mean()
    return lengths


def _is_cut_off(times: NDArray[np.float64], computed: NDArray[np.float64]) -> bool:
    """Tell whether the recording ended within the last step: 92, 91, 93 and 33 ms.

    A step that is only faster, as no kernel is compiled any more, computes as much as the others.
    """
    for each in (times, computed):
        others = each[:-1]
        typical = float(np.median(others))
        alike = np.abs(others - typical) <= _LEAST_DEVIATION * typical
        if not alike.all() or each[-1] >= (1 - _LEAST_DEVIATION) * typical:
            return False
    return True


def _warm_up(times: NDArray[np.float64]) -> int:
    """Return how many steps at the start are slower than the second half of the run.

    Of four steps the second half is two. If one of them is slow, neither the middle nor the spread
    of both says what is typical, but the faster one does.
    """
    half = times[len(times) // 2 :]
    slow = _deviation(times, half if len(half) > _FEW - 1 else half[half.argmin() :][:1]) > 1
    first_half = len(times) // 2
    return int(np.argmin(np.append(slow[:first_half], False)))


def _deviation(times: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far each time is from the median of the reference, 1 being the limit."""
    median = float(np.median(reference))
    spread = float(np.median(np.abs(reference - median)))
    limit = max(_LEAST_DEVIATION * median, _NOISE * spread, 1.0)
    deviation: NDArray[np.float64] = (times - median) / limit
    return deviation
