"""The collectives of a recording, as several diagnostics look at them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording

    Integers = NDArray[np.int64]

PACKET_BYTES = {"SDMA": 16_000_000, "RDMA": 1_000_000}
"""A collective that moves less over such a link is small (PACKET)."""
CONTENTION_GB_PER_S = 18.0
"""Bandwidth of SDMA between two devices (CONTENTION)."""
CONTENTION_SHARE = 0.8
"""Share of it below which something is wrong."""
LEAST_SHARE = 0.01
"""Share of the step from which a collective is worth telling, as for FUSIBLE."""
_TOTALS = r".*Total Op Info.*"


def of_steady_steps(rows: pd.DataFrame, recording: Recording) -> tuple[pd.DataFrame, int]:
    """Return the rows of the steady steps, without totals over other rows, and how many steps.

    Where the steps of the file are not those of the recording, all of its rows count.
    """
    names = [str(name) for name in rows["name"].cat.categories]
    totals = [name for name in names if re.fullmatch(_TOTALS, name)]
    rows = rows[~rows["name"].isin(totals)]
    steady = {str(step) for step in recording.steps["step"].dropna()}
    numbers = {step: _number(str(step)) for step in rows["step"].cat.categories}
    own = [step for step, number in numbers.items() if number in steady]
    kept = rows[rows["step"].isin(own)]
    if kept.empty:
        kept = rows
    return kept, max(1, int(kept["step"].nunique()))


def _number(step: str) -> str:
    return step.removeprefix("step")


def kernels_of(names: pd.Series[str], recording: Recording) -> pd.DataFrame:
    """Return the kernels of the collectives with these names; the file may add ``@group``."""
    bare = {str(name).split("@", maxsplit=1)[0] for name in names.unique()}
    kernels = recording.kernels
    return kernels[kernels["communication"].to_numpy(bool) & kernels["name"].isin(list(bare))]


def labels(kernels: pd.DataFrame) -> frozenset[int]:
    """Return the index labels of kernels."""
    return frozenset(int(label) for label in kernels.index)


def moving_ns(rows: pd.DataFrame, recording: Recording) -> Integers:
    """Return how long the collective of each row of ``transports`` moved data.

    Links work side by side, so that the times of ``transports`` add up to more than has passed;
    where the time of the collective itself is known, that counts.
    """
    collectives = recording.signals.collectives
    known = collectives[collectives["transit_ns"] > 0]
    keys = ["step", "kind", "name", "group"]
    own = known.astype(dict.fromkeys(keys, str)).groupby(keys)["transit_ns"].sum()
    import pandas as pd

    of_row = pd.MultiIndex.from_frame(rows[keys].astype(str))
    stated = own.reindex(of_row).to_numpy(np.float64)
    summed = rows["transit_ns"].to_numpy(np.float64)
    moved: Integers = np.fmin(stated, summed).astype(np.int64)
    return moved


def waiting_ratio(rows: pd.DataFrame) -> pd.Series[float]:
    """Return the share of waiting in what a collective does, 0 where it did nothing."""
    busy = rows["wait_ns"] + rows["transit_ns"]
    return (rows["wait_ns"] / busy.where(busy > 0, np.nan)).fillna(0.0)
