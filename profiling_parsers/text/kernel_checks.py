"""Kernels held against what the dump says elsewhere: rows that are missing show only there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.profiling_parsers.kernels.steps import steps_from_kernels
from npufix.profiling_parsers.kernels.totals import find_disagreements
from npufix.profiling_parsers.profile import Problem

if TYPE_CHECKING:
    import pandas as pd

_ROUNDING_NS = 2_000
_SHARE_AT_BORDERS = 0.01
"""Kernels that two steps share are counted by the time they start, merged ones by the first."""


def check_totals(
    kernels: pd.DataFrame, op_statistic: pd.DataFrame, files: tuple[str, str], remedy: str
) -> list[Problem]:
    """Return a problem if ``op_statistic`` states other totals; ``files`` name where both are."""
    differ = find_disagreements(kernels, op_statistic)
    if not len(differ):
        return []
    worst = "; ".join(
        f"{name}: {row['count_kernels']} kernels, {row['total_ns_kernels'] / 1e3:.3f} µs "
        f"against {row['count_stated']}, {row['total_ns_stated'] / 1e3:.3f} µs"
        for name, row in differ.head(3).iterrows()
    )
    what = f"{len(differ)} Types disagree with the totals of {files[1]} ({worst})"
    return [Problem(files[0], what, _one_export(remedy), damaged=True)]


def check_steps(
    kernels: pd.DataFrame, steps: pd.DataFrame, files: tuple[str, str], remedy: str
) -> list[Problem]:
    """Return a problem if ``steps``, as the dump states them, are not of these kernels."""
    if not len(steps):
        return []
    if steps["step"].notna().any() and not kernels["step"].notna().any():
        what = f"no kernel is of a step, although {files[1]} has {len(steps)}"
        return [Problem(files[0], what, _one_export(remedy), damaged=True)]
    foreign = ~kernels["step"].isin(steps["step"]) & kernels["step"].notna()
    if foreign.any() and steps["step"].notna().any():
        ids = ", ".join(map(str, kernels["step"][foreign].unique()[:3]))
        what = (
            f"{int(foreign.sum())} of {len(kernels)} kernels are of steps that {files[1]} does "
            f"not have ({ids})"
        )
        return [Problem(files[0], what, _one_export(remedy), damaged=True)]
    mine = steps_from_kernels(kernels)
    faults = []
    for column, name in (("computing_ns", "computing"), ("communication_ns", "communication")):
        own, stated = int(mine[column].sum()), int(steps[column].sum())
        borders = stated * _SHARE_AT_BORDERS if len(steps) > 1 else 0
        if abs(own - stated) > _ROUNDING_NS + len(kernels) + borders:
            faults.append(f"{own / 1e3:.3f} µs {name} against {stated / 1e3:.3f} µs")
    if not faults:
        return []
    what = f"the kernels disagree with the steps of {files[1]} ({', '.join(faults)})"
    return [Problem(files[0], what, _one_export(remedy), damaged=True)]


def _one_export(remedy: str) -> str:
    return "do both files come from one export? If not, " + remedy
