"""The totals per Type that a dump states (``Profile.op_statistic``), held against its kernels."""

from __future__ import annotations

import numpy as np
import pandas as pd

from npufix.profiling_parsers.kernels.cells import COMMUNICATION_CORES
from npufix.profiling_parsers.tables.columns import category

_ROUNDING_NS = 1_000
_RELATIVE_ROUNDING = 1e-3
_BOTH = ("count_kernels", "total_ns_kernels", "count_stated", "total_ns_stated")


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
    mine, theirs = _of_kernels(kernels), _of_statement(op_statistic)
    differ = []
    for name in sorted({*mine, *theirs}):
        (count, total), (count_stated, stated) = mine.get(name, (0, 0)), theirs.get(name, (0, 0))
        apart = abs(total - stated)
        if apart > _ROUNDING_NS + stated * _RELATIVE_ROUNDING or count != count_stated:
            differ.append((apart, name, count, total, count_stated, stated))
    differ.sort(key=lambda row: -row[0])
    rows = np.array([row[2:] for row in differ], np.int64).reshape(-1, len(_BOTH))
    return pd.DataFrame(rows, index=[row[1] for row in differ], columns=[*_BOTH])


def _of_kernels(kernels: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Return number and time of the compute kernels of each Type; exact up to 104 days."""
    compute = ~kernels["communication"].to_numpy()
    types = kernels["type"].cat
    codes = types.codes.to_numpy()[compute]
    count = np.bincount(codes, minlength=len(types.categories))
    total = np.bincount(codes, kernels["duration_ns"].to_numpy()[compute], len(types.categories))
    return {
        str(name): (int(calls), int(spent))
        for name, calls, spent in zip(types.categories, count, total, strict=True)
        if calls
    }


def _of_statement(op_statistic: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Return what is stated of each Type that computes, on all kinds of cores together."""
    found: dict[str, tuple[int, int]] = {}
    columns = (op_statistic[name] for name in ("type", "core", "count", "total_ns"))
    for name, core, count, total in zip(*columns, strict=True):
        if core not in COMMUNICATION_CORES:
            calls, spent = found.get(str(name), (0, 0))
            found[str(name)] = calls + int(count), spent + int(total)
    return found
