"""Which ranks are worth reading as a whole: the ends, the middle, and the odd ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SLOWEST, FASTEST, MEDIAN, OUTLIER, ASKED = "slowest", "fastest", "median", "outlier", "asked"
_MOST_OUTLIERS = 4
_FEWEST = 5
"""Of fewer ranks nothing tells which of them is the odd one."""
_FAR = 3.5 * 1.4826
"""Median absolute deviations: three and a half standard deviations of normal noise."""
_AS_LONG = 0.8
"""Share of the longest step from which a rank may be the one that is waited for."""
_LEAST = 0.03
"""Of the typical step: a smaller difference is no reason to look, however alike the others are."""


def own_ns(means: pd.DataFrame) -> Floats:
    """Return the time that each rank computes and idles per step.

    The others wait for the slowest in their collectives, so the length of a step tells nothing.
    """
    own: Floats = (means["computing_ns"] + means["free_ns"]).to_numpy(np.float64)
    return own


def find_slowest(means: pd.DataFrame) -> int:
    """Return the row of the rank that the job waits for: the busiest of those with the long steps.

    Ranks that no collective joins within the recording (pairs of a slow and of quick links) do not
    wait for each other: there a step of 16 ms tells nothing about a job that takes 73.
    """
    own = own_ns(means)
    whole = own + means["communication_exposed_ns"].to_numpy(np.float64)
    return int(np.where(whole >= _AS_LONG * whole.max(initial=0), own, -1.0).argmax())


def roles(means: pd.DataFrame) -> dict[int, str]:
    """Return the rows of ``means`` (one a rank, times per step) to read as a whole, and why."""
    if means.empty:
        return {}
    own = own_ns(means)
    order = np.argsort(-own, kind="stable")
    found = {find_slowest(means): SLOWEST}
    found.setdefault(int(order[-1]), FASTEST)
    for row in _outliers(means):
        found.setdefault(row, OUTLIER)
    found.setdefault(int(order[len(order) // 2]), MEDIAN)
    return found


def _outliers(means: pd.DataFrame) -> list[int]:
    """Return the rows farthest from the median in what they compute or idle, the farthest first."""
    if len(means) < _FEWEST:
        return []
    least = _LEAST * float(np.median(own_ns(means)))
    away = np.zeros(len(means))
    for column in ("computing_ns", "free_ns"):
        values = means[column].to_numpy(np.float64)
        distance = np.abs(values - np.median(values))
        limit = max(_FAR * float(np.median(distance)), least, 1.0)
        away = np.maximum(away, distance / limit)
    return [int(row) for row in np.argsort(-away, kind="stable")[:_MOST_OUTLIERS] if away[row] > 1]
