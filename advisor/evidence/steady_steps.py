"""Which steps an average is taken over: neither warm-up nor outliers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.reports.report import LeftOutStep

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from numpy.typing import NDArray

_FEW = 3
"""With fewer steps nothing tells which of them is the odd one."""
_LEAST_DEVIATION = 0.3
"""Steps closer to the median than this share of it are alike, however little others vary."""
_STARTED = 2
"""The number of a step, counted from 0, by which the processes that load have started."""
_NOISE = 5 * 1.4826
"""Median absolute deviations; times 1.4826 they are standard deviations of normal noise."""


def split_steps(
    steps: pd.DataFrame, loading: Mapping[int, int] | None = None
) -> tuple[pd.DataFrame, list[LeftOutStep]]:
    """Return the rows of ``Profile.steps`` that an average may be taken over, and the others.

    Warm-up are the first steps while they are far slower than the second half of the run; an
    outlier is a step far from the median of the rest, and a last one that the end of the recording
    cut off: it computed less than others that are alike. Of fewer than three steps all count.

    ``loading`` says how long (ns) each step waited for its batch. That makes none odd but the
    first of a run, where it waits longer than all others for processes that start: of four that
    load too slowly, each fourth step waits for all four.
    """
    spent = steps["computing_ns"] + steps["communication_exposed_ns"] + steps["free_ns"]
    # One step of several devices is one step.
    totals = spent.groupby(steps["step"], dropna=False).mean()
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
    ended = len(times) - _is_cut_off(times, computed.to_numpy(np.float64))
    warm_up = _warm_up(times[:ended]) if ended >= _FEW else 0
    outlier = np.zeros(len(times), np.bool_)
    outlier[warm_up:ended] = np.abs(_deviation(*[times[warm_up:ended]] * 2)) > 1
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
    kept = set(totals.index[[i for i in range(len(times)) if i >= warm_up and not outlier[i]]])
    return steps[steps["step"].isin(list(kept))], left_out


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
