"""Which of many ranks a person is shown: the slowest, the marked and the broken ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.reports.report import Rank

MOST = 12
_MOST_BROKEN = 4
_LISTED = 10


@dataclass(frozen=True)
class RankRows:
    """The ranks to show, and how many are left out."""

    rows: tuple[Rank, ...]
    """By the time that they compute and idle, the longest first."""
    more: int
    broken: tuple[Rank, ...]
    """Those of which nothing was measured, and those that are damaged."""
    more_broken: str
    """The others, by number; "" if there are none."""
    several_hosts: bool


def rank_rows(ranks: Sequence[Rank]) -> RankRows:
    """Choose among the ranks of a report."""
    measured = sorted((row for row in ranks if row.computing_ns is not None), key=_own_first)
    broken = [row for row in ranks if row.problem or row.computing_ns is None]
    marked = [row for row in measured if row.diagnosed or row.role]
    kept = {id(row) for row in marked[:MOST]}
    for row in measured[: MOST - len(kept)] if len(measured) > MOST else measured:
        kept.add(id(row))
    for row in measured:  # those that were both slow and marked have left room
        if len(kept) >= MOST:
            break
        kept.add(id(row))
    rest = broken[_MOST_BROKEN:]
    return RankRows(
        rows=tuple(row for row in measured if id(row) in kept),
        more=len(measured) - len(kept),
        broken=tuple(broken[:_MOST_BROKEN]),
        more_broken=_numbers(rest),
        several_hosts=len({row.host for row in ranks} - {""}) > 1,
    )


def rank_name(row: Rank) -> str:
    """Return the number of a rank, ``?`` if its dump does not say."""
    return "?" if row.rank is None else str(row.rank)


def _own_first(row: Rank) -> int:
    return -((row.computing_ns or 0) + (row.free_ns or 0))


def _numbers(rows: Sequence[Rank]) -> str:
    if not rows:
        return ""
    named = ", ".join(rank_name(row) for row in rows[:_LISTED])
    return f"{named} and {len(rows) - _LISTED} more" if len(rows) > _LISTED else named
