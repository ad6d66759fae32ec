"""op_statistic.csv: the dump's own totals per Type, a check on what was read from the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.csv_columns import read_columns
from npufix.profiling_parsers.exact_time import duration_ns
from npufix.profiling_parsers.kernel_details import COMMUNICATION_CORES

if TYPE_CHECKING:
    from pathlib import Path

_COLUMNS = {
    "type": ("OP Type",),
    "core": ("Core Type",),
    "count": ("Count",),
    "total": ("Total Time(us)",),
}
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


def read_op_statistic(path: Path) -> pd.DataFrame:
    """Read ``Profile.op_statistic``; raise ``DumpError`` if the file is none."""
    columns = read_columns(path, _COLUMNS, required=tuple(_COLUMNS), plain=("count", "total"))
    total, has_total = duration_ns(columns.text("total"))
    count, has_count = duration_ns(columns.text("count"))
    frame = pd.DataFrame(
        {
            "type": columns.category("type"),
            "core": columns.category("core"),
            "count": count // 1_000,
            "total_ns": total,
        }
    )
    return frame[has_total & has_count].reset_index(drop=True)


def disagreements(kernels: pd.DataFrame, op_statistic: pd.DataFrame) -> pd.DataFrame:
    """Return ``count`` and ``total_ns`` of both sides for each compute Type where they differ.

    Collectives are left out: only some versions of the exporter count them.
    """
    compute = kernels[~kernels["communication"]]
    mine = compute.groupby("type", observed=True)["duration_ns"].agg(["count", "sum"])
    stated = op_statistic[~op_statistic["core"].isin(COMMUNICATION_CORES)]
    theirs = stated.groupby("type", observed=True)[["count", "total_ns"]].sum()
    mine.columns = pd.Index(["count_kernels", "total_ns_kernels"])
    theirs.columns = pd.Index(["count_stated", "total_ns_stated"])
    mine.index, theirs.index = mine.index.astype(str), theirs.index.astype(str)
    both = mine.join(theirs, how="outer").fillna(0)
    both = both.astype(np.int64)
    apart = (both["total_ns_kernels"] - both["total_ns_stated"]).abs()
    allowed = _ROUNDING_NS + both["total_ns_stated"] * _RELATIVE_ROUNDING
    differ = (apart > allowed) | (both["count_kernels"] != both["count_stated"])
    return both[differ].loc[apart[differ].sort_values(ascending=False).index]
