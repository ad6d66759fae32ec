"""api_statistic.csv: how long the host spent in each call into CANN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.profiling_parsers.tables.side_csv import read_side_csv

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from npufix.profiling_parsers.profile import Problem

_COLUMNS = {
    "level": ("Level",),
    "name": ("API Name",),
    "count": ("Count",),
    "total": ("Time", "Total Time"),  # the second is msprof-analyze's, made from a database
    "max": ("Max", "Max Time"),
}


def read_api_statistic(path: Path) -> tuple[pd.DataFrame, list[Problem]]:
    """Read ``Signals.apis`` and what is wrong with it; raise ``DumpError`` if it is none."""
    file = read_side_csv(
        path,
        _COLUMNS,
        required=("name", "count", "total", "max"),
        categories=("level", "name"),
    )
    count, counted = file.count("count")
    total, timed = file.duration_ns("total")
    longest, bounded = file.duration_ns("max")
    columns = {
        "level": file.category("level"),
        "name": file.category("name"),
        "count": count,
        "total_ns": total,
        "max_ns": longest,
    }
    return file.frame("apis", columns, counted & timed & bounded)
