"""The heat map of a cluster: each rank in each step, as few enough cells to draw."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.reports.report import Report

_Value = TypeVar("_Value")
_MOST_CELLS = 100_000


class RankMap(msgspec.Struct, frozen=True):
    """Rows are ranks, columns are steps; of many steps, several are one column: their mean."""

    ranks: list[int | None]
    hosts: list[str]
    roles: list[str]
    columns: list[str]
    together: int
    """How many steps a column is at most."""
    computing: list[list[int | None]]
    exposed: list[list[int | None]]
    free: list[list[int | None]]


def rank_map(report: Report) -> RankMap | None:
    """Return the heat map of a report, None where it does not hold the steps of the ranks."""
    found = report.rank_steps
    if found is None or not found.steps or not report.ranks:
        return None
    together = -(-len(found.steps) * len(report.ranks) // _MOST_CELLS)
    steps = ["?" if step is None else str(step) for step in found.steps]
    matrices = (found.computing_ns, found.exposed_communication_ns, found.free_ns)
    computing, exposed, free = (_reduce(rows, together) for rows in matrices)
    return RankMap(
        [rank.rank for rank in report.ranks],
        [rank.host for rank in report.ranks],
        [rank.role for rank in report.ranks],
        [
            part[0] if len(part) == 1 else f"{part[0]}-{part[-1]}"
            for part in _parts(steps, together)
        ],
        together,
        computing,
        exposed,
        free,
    )


def _reduce(rows: list[list[int | None]], together: int) -> list[list[int | None]]:
    if together == 1:
        return rows
    return [[_mean(part) for part in _parts(row, together)] for row in rows]


def _parts(values: Sequence[_Value], size: int) -> list[Sequence[_Value]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def _mean(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(fmean(known)) if known else None
