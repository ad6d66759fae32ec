"""The totals per Type that a dump states (``Profile.op_statistic``), held against its kernels."""

from __future__ import annotations

import numpy as np
import pandas as pd

from npufix.profiling_parsers.kernels.cells import COMMUNICATION_CORES
from npufix.profiling_parsers.tables.columns import category

_ROUNDING_NS = 1_000
_RELATIVE_ROUNDING = 1e-3


def no_op_statistic() -> pd.DataFrame:
    """Return the table of a dump without op_statistic.csv, such as one of Level0."""
    return pd.DataFrame(
        {
            "type": pd.Categorical([]),
            "core": pd.Categorical([]),
            "count": np.empty(0, np.int64),
            "total_ns": np.empty(0, np.int64),
        }
    )


def sum_by_type(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return the totals of the compute kernels, where the dump states none."""
    computing = kernels[~kernels["communication"].to_numpy()]
    grouped = computing.groupby(["type", "core"], observed=True)["duration_ns"]
    totals = grouped.agg(["count", "sum"]).reset_index().rename(columns={"sum": "total_ns"})
    for name in ("type", "core"):
        if not hasattr(totals[name], "cat"):  # of no rows at all
            totals[name] = category(np.empty(0, np.int64), [])
    return totals


def find_disagreements(kernels: pd.DataFrame, op_statistic: pd.DataFrame) -> pd.DataFrame:
    """Return ``count`` and ``total_ns`` of both sides for each compute Type where they differ.

    Collectives are left out: only some versions of the exporter count them.
    """
    mine = _totals(kernels)
    stated = op_statistic[~op_statistic["core"].isin(COMMUNICATION_CORES)]
    theirs = stated.groupby("type", observed=True)[["count", "total_ns"]].sum()
    theirs.columns = pd.Index(["count_stated", "total_ns_stated"])
    theirs.index = theirs.index.astype(str)
    both = mine.join(theirs, how="outer").fillna(0)
    both = both.astype(np.int64)
    apart = (both["total_ns_kernels"] - both["total_ns_stated"]).abs()
    allowed = _ROUNDING_NS + both["total_ns_stated"] * _RELATIVE_ROUNDING
    differ = (apart > allowed) | (both["count_kernels"] != both["count_stated"])
    return both[differ].loc[apart[differ].sort_values(ascending=False, kind="stable").index]


def _totals(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return number and time of the compute kernels of each Type; exact up to 104 days."""
    compute = ~kernels["communication"].to_numpy()
    types = kernels["type"].cat
    codes = types.codes.to_numpy()[compute]
    count = np.bincount(codes, minlength=len(types.categories))
    total = np.bincount(codes, kernels["duration_ns"].to_numpy()[compute], len(types.categories))
    columns = {"count_kernels": count, "total_ns_kernels": total.astype(np.int64)}
    return pd.DataFrame(columns, index=types.categories.astype(str))[count > 0]
