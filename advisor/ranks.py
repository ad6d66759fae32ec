"""Several ranks of one job: what each spends a step on, and which one to look into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.advisor.steady_steps import split_steps
from npufix.profiling_parsers.rank_summary import read_rank_summary
from npufix.reports.report import Rank

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class RankError(Exception):
    """No dump of the rank that was asked for: ``message`` and ``remedy``."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


def summarise(dump: Path) -> Rank:
    """Return the row of a rank."""
    summary = read_rank_summary(dump)
    times: tuple[int | None, ...] = (None, None, None)
    steady, _ = split_steps(summary.steps)
    if not steady.empty:
        columns = ["computing_ns", "communication_exposed_ns", "free_ns"]
        times = tuple(round(float(value)) for value in steady[columns].mean())
    computing, exposed, free = times
    return Rank(
        rank=summary.rank,
        dump=str(dump),
        computing_ns=computing,
        exposed_communication_ns=exposed,
        free_ns=free,
        problem=summary.problem,
        readable=summary.readable,
    )


def choose(ranks: Sequence[Rank], wanted: int | None) -> int:
    """Return the position of the rank to diagnose: the wanted one, else the slowest.

    The slowest is the one that computes and idles longest: the others wait for it in their
    collectives, so the length of the step tells nothing.

    Raises:
        RankError: there is no such rank, or more than one.

    """
    candidates = [i for i, row in enumerate(ranks) if wanted is None or row.rank == wanted]
    if not candidates:
        known = ", ".join(str(row.rank) for row in ranks if row.rank is not None)
        raise RankError(f"no dump of rank {wanted}", f"there are ranks {known or 'unknown'}")
    if wanted is not None and len(candidates) > 1:
        dumps = ", ".join(ranks[i].dump for i in candidates)
        raise RankError(f"{len(candidates)} dumps of rank {wanted}", f"give one of them: {dumps}")
    # A rank that cannot be read is taken only if there is no other: then the reason is told.
    readable = [i for i in candidates if ranks[i].readable] or candidates
    return max(readable, key=lambda i: (_own_ns(ranks[i]), -i))


def _own_ns(row: Rank) -> int:
    if row.computing_ns is None or row.free_ns is None:
        return -1
    return row.computing_ns + row.free_ns
