"""l2_cache.csv: how much of what each kernel reads and writes the L2 cache serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.profile import Problem
from npufix.profiling_parsers.tables.side_csv import read_side_csv

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.profiling_parsers.tables.side_csv import SideCsv

_COLUMNS = {"hit": ("Hit Rate",), "victim": ("Victim Rate",), "name": ("Op Name",)}


def read_l2_cache(path: Path) -> tuple[pd.DataFrame, list[Problem]]:
    """Read ``Signals.l2_cache`` and what is wrong with it; raise ``DumpError`` if it is none.

    A rate is NaN where the counters of the chip do not give it (``N/A``), or where it is none.
    """
    file = read_side_csv(path, _COLUMNS, required=tuple(_COLUMNS), categories=("name",))
    hit, has_hit = _rate(file, "hit")
    victim, has_victim = _rate(file, "victim")
    columns = {
        "name": file.category("name"),
        "hit_rate": _inside(hit),
        "victim_rate": _inside(victim),
    }
    frame, problems = file.frame("l2_cache", columns, has_hit & has_victim)
    outside = int(np.count_nonzero((hit != _inside(hit)) & ~np.isnan(hit)))
    outside += int(np.count_nonzero((victim != _inside(victim)) & ~np.isnan(victim)))
    if outside:
        what = f"{outside} rates are not between 0 and 1 and count as unknown"
        remedy = "nothing: the counters of the chip disagree with each other"
        problems.append(Problem(path.name, what, remedy))
    return frame, problems


def _rate(file: SideCsv, key: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return a rate; msprof divides two counters, a percentage would say so in its header."""
    values = file.number(key) / (100.0 if file.units[key] == "%" else 1.0)
    return values, ~np.isnan(values) | file.absent(key)


def _inside(rate: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where((rate >= 0) & (rate <= 1), rate, np.nan)
