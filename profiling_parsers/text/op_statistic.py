"""op_statistic.csv: the dump's own totals per Type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.tables.file_damage import damage_problem
from npufix.profiling_parsers.tables.side_csv import read_side_csv

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.profiling_parsers.profile import Problem
    from npufix.profiling_parsers.tables.side_csv import SideCsv

_COLUMNS = {
    "type": ("OP Type",),
    "core": ("Core Type",),
    "count": ("Count",),
    "total": ("Total Time",),
    "ratio": ("Ratio",),
}
_RATIO_ROUNDING = 6e-4  # in percent, of each row: three decimals are written


def read_op_statistic(path: Path) -> tuple[pd.DataFrame, list[Problem]]:
    """Read ``Profile.op_statistic`` and what is wrong with it; raise ``DumpError`` if it is none.

    One row per Type and core, and per device and model where the dump has several.
    """
    required = ("type", "core", "count", "total")
    file = read_side_csv(path, _COLUMNS, required=required, categories=("type", "core"))
    total, has_total = file.duration_ns("total")
    count, has_count = file.count("count")
    types = file.category("type")
    frame = pd.DataFrame(
        {"type": types, "core": file.category("core"), "count": count, "total_ns": total}
    )
    whole = file.whole(has_total & has_count)
    problems = file.problems(whole)
    if not problems and not _is_whole(file):
        problems = [damage_problem(path, "lacks rows: its shares do not add up to 100 %")]
    return frame[whole].reset_index(drop=True), problems


def _is_whole(file: SideCsv) -> bool:
    """Return whether the shares add up to 100 % for each device and model, if they are there."""
    shares = file.number("ratio")
    over = float(np.sum(shares)) % 100
    return not min(over, 100 - over) > _RATIO_ROUNDING * len(shares)  # holds for NaN
