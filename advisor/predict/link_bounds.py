"""The shortest time of collectives: what they move over the rate of their links."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.roofline.work import work_of

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from npufix.profiling_parsers.signals import Signals

    Floats = NDArray[np.float64]

_LARGE_BYTES = 1 << 20
_SHORTEST_NS = 1_000.0
_ALL_REDUCE = re.compile(r"all_?reduce", re.IGNORECASE)


def link_bounds(
    collectives: pd.DataFrame, signals: Signals, link_bytes_per_ns: float | None
) -> Floats:
    """Return nanoseconds for each row of ``Profile.kernels`` that is a collective, 0 if unknown.

    What a collective moves is in communication.json, and how quickly the links of its group can is
    what the quickest of the group shows: the shapes of a ring or a mesh are not recorded. Without
    that file it is the operand over the links of the chip, where its shape was recorded.
    """
    found = np.zeros(len(collectives))
    if link_bytes_per_ns:
        everything = collectives["type"].astype(str).str.contains(_ALL_REDUCE).to_numpy()
        # A rank of n sends (n - 1) / n of the operand, and of a sum twice that: n is 2 at least.
        work = work_of(collectives)
        found = work.moved[work.of_kernel] * np.where(everything, 1.0, 0.5) / link_bytes_per_ns
    known = _by_name(signals) if len(signals.collectives) else _by_size(collectives, signals)
    if len(known):
        named = collectives["name"].astype(str).map(known).to_numpy(np.float64)
        found = np.where(np.isnan(named), found, named)
    return found


def _by_size(collectives: pd.DataFrame, signals: Signals) -> pd.Series[float]:
    """Return the bound of each collective where only its size is known: the quickest is one."""
    rows = signals.payloads
    sizes = rows["size_bytes"].groupby(rows["name"].astype(str)).mean()
    took = collectives["duration_ns"].groupby(collectives["name"].astype(str)).min()
    sizes, took = sizes.align(took[took > 0], join="inner")
    rates = sizes / took
    return sizes / float(rates.max()) if len(rates) and rates.max() > 0 else rates.iloc[:0]


def _by_name(signals: Signals) -> pd.Series[float]:
    """Return the bound of one run of each collective."""
    times = signals.collectives.astype({"name": str, "group": str})
    sent = signals.transports.astype({"name": str})
    # A transfer stands in it once for each layer that it passes: HCCS, and SDMA below.
    sizes = sent.groupby(["name", "transport"], observed=True)["size_bytes"].mean()
    moved = times["name"].map(sizes.groupby("name").max()).fillna(0.0).to_numpy(np.float64)
    elapse = times["elapse_ns"].to_numpy(np.float64)
    # Of what it takes, waiting for others is no work.
    own = np.maximum(elapse - times["wait_ns"].to_numpy(np.float64), _SHORTEST_NS)
    large = (moved >= _LARGE_BYTES) & (elapse > 0)
    rates = times.assign(rate=np.where(large, moved / own, 0.0)).groupby("group")["rate"].max()
    rate = times["group"].map(rates).to_numpy(np.float64)
    rate = np.where(rate > 0, rate, float(rates.max()) if len(rates) else 0.0)
    floor = float(own.min()) if len(own) else 0.0
    moving = np.divide(moved, rate, out=np.zeros(len(moved)), where=rate > 0)
    return times.assign(bound=np.maximum(moving, floor)).groupby("name")["bound"].mean()
