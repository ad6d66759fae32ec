"""Ranks are late in some steps only.

What: in some steps a rank computes or idles far longer than it usually does, or comes late to the
step because of what it does between two, and the others wait.

Why it is slow on the NPU: the step of a job ends with its last rank. With many ranks it is enough
that each is late now and then: with 64 ranks that stumble once in a hundred steps, half of the
steps are slow.

Evidence: Computing and Free of each rank and step in step_trace_time, less what the rank is always
late by. What a rank does behind its last kernel (a checkpoint that rank 0 writes) is in none of its
steps: there the next step of all others is longer, as they wait in it, and its own is not.

Use instead: if it is one rank, look for what it alone does (logging, checkpoints, evaluation, a
busy host). If it is another each time: garbage collection of Python (``gc.freeze()`` and
``gc.disable()``, with a ``gc.collect()`` every N steps on all ranks at once), data loading, or
inputs of uneven length.

Safety: advice. Late is what is beyond 10 % of the step, five standard deviations of all ranks and
steps (from the median absolute deviation) and 0.1 ms; told from 1 % of the average step.

References: conjectured_gc.yaml of msprof-analyze; training guide on fluctuating steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.cluster_diagnostic import ClusterDiagnostic, ClusterObservation
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.ranks.comparing import FLOOR_NS, NOISE, format_ranks, spread
from npufix.rules.shared.ranks.groups import peers

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.cluster_diagnostic import Cluster

    Floats = NDArray[np.float64]

_LATE = 0.10
"""Share of the step: twice what ranks differ by (RANK-GAP), as single steps vary more."""
_LEAST_SHARE = 0.01
_FEW = 3
"""Steps of which nothing tells what is usual, and ranks of which nothing tells who is late."""
_ONE_RANK = 0.8
"""Share of the late steps that must be those of one rank to call it the one."""
_SHOWN = 5
_LEFT_OUT = "the steps that are replayed are those without the longer ones"
_GC = (
    "another rank each time: gc.freeze() and gc.disable() after the warm-up, gc.collect() every N "
    "steps on all ranks at once; check data loading and uneven inputs"
)
_ONE = "look for what this rank alone does in these steps: logging, checkpoints, a busy host"


def check(cluster: Cluster) -> Iterator[ClusterObservation]:
    """Yield one observation for all late steps together."""
    rows = cluster.steps if cluster.all_steps is None else cluster.all_steps
    idle, computing = _table(rows, "free_ns"), _table(rows, "computing_ns")
    exposed = _table(rows, "communication_exposed_ns")
    own = idle + computing
    if len(own) < _FEW or len(own.columns) < _FEW:
        return
    away = _away(own, exposed, cluster)
    behind = _behind(own, cluster) + away
    step = float((own + exposed).median().median())
    limit = max(_LATE * step, NOISE * spread(behind.to_numpy().ravel()), FLOOR_NS)
    late = behind.where(behind > limit)
    in_step = late.max().dropna()
    cost = float(in_step.sum()) / len(own.columns)
    if cost < _LEAST_SHARE * step:
        return
    # A step also ends with the last of the ranks that are not called late.
    next_one = behind.where(behind <= limit).max()[in_step.index].clip(lower=0)
    least = float((in_step - next_one.fillna(0)).sum()) / len(own.columns)
    saving = (round(max(0.0, least)), round(cost))
    average = max(float((own + exposed).mean(axis=1).median()), float(saving[1]))
    is_replayed = set(in_step.index) <= set(cluster.steps["step"].dropna())
    is_replayed &= not cluster.step_ns or average <= (1 + _LATE) * cluster.step_ns
    seen = _observation(late, saving, average, len(own.columns), (idle, computing, away))
    yield (
        seen
        if is_replayed
        else replace(seen, saving_ns=None, outliers_ns=seen.cost_ns, basis=_LEFT_OUT)
    )


def _table(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return a row per rank and a column per step; steps that a rank lacks are left out."""
    known = rows[rows["step"].notna()]
    wide = known.pivot_table(column, "rank", "step", aggfunc="mean")
    table: pd.DataFrame = wide.dropna(axis=1).astype(np.float64)
    return table


def _behind(own: pd.DataFrame, cluster: Cluster) -> pd.DataFrame:
    """Return how late each rank is in each step, beyond what it always is."""
    behind = own.copy()
    for members in peers(cluster, [int(rank) for rank in own.index]):
        rows = own.loc[members]
        # Steps may differ for all ranks alike, and ranks in all steps alike: neither is a surprise.
        rows = rows - rows.median()
        behind.loc[members] = rows.sub(rows.median(axis=1), axis=0)
    return behind


def _away(own: pd.DataFrame, exposed: pd.DataFrame, cluster: Cluster) -> pd.DataFrame:
    """Return how late each rank comes to each step: the others wait in it, it does not."""
    away = own * 0
    for members in peers(cluster, [int(rank) for rank in own.index]):
        whole, waited = (
            _short_of_peers(rows)
            for rows in (own.loc[members] + exposed.loc[members], exposed.loc[members])
        )
        short = whole.where(whole < waited, waited)
        # Steps from mark to mark hold what comes behind the last kernel: then it is told there.
        beyond = _short_of_peers(-(own.loc[members] + exposed.loc[members]))
        away.loc[members] = (short - beyond.shift(1, axis=1).fillna(0)).clip(lower=0)
    return away


def _short_of_peers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how much less than its peers a rank takes longer in a step than it usually does."""
    beyond = rows.sub(rows.median(axis=1), axis=0)
    short: pd.DataFrame = (beyond.median() - beyond).clip(lower=0)
    return short


def _observation(
    late: pd.DataFrame,
    saving: tuple[int, int],
    average: float,
    steps: int,
    parts: tuple[pd.DataFrame, ...],
) -> ClusterObservation:
    worst = late.max().dropna().sort_values(ascending=False, kind="stable")
    by_rank = late[worst.index].idxmax().value_counts()
    ranks = tuple(int(rank) for rank in by_rank.index)
    one = by_rank.iloc[0] >= _ONE_RANK * len(worst)
    who = f"rank {ranks[0]}" if one else f"one of {format_ranks(ranks)}, not always the same,"
    where = [(int(late[at].idxmax()), at) for at in worst.index[:_SHOWN]]
    return ClusterObservation(
        what=(
            f"in {len(worst)} of {format_count(steps, 'step')}, {who} is late by up to "
            f"{milliseconds(worst.iloc[0])}: {milliseconds(saving[1])} of the average step "
            f"({percent(saving[1] / average)})"
        ),
        ranks=ranks,
        evidence=(
            *(_fact(late, rank, at) for rank, at in where),
            ("what is longer", _longer(where, parts)),
        ),
        cost_ns=saving[1],
        of_ns=round(average),
        saving_ns=saving,
        basis="the lead of the late rank over the next one, to that over what is usual",
        advice=_ONE if one else _GC,
    )


def _fact(late: pd.DataFrame, rank: int, n: object) -> tuple[str, str]:
    return f"step {n}", f"rank {rank} by {milliseconds(float(late[n][rank]))}"


def _longer(where: list[tuple[int, object]], parts: tuple[pd.DataFrame, ...]) -> str:
    """Return whether the device was idle or computed when the ranks were late, or none of both."""
    idle, computing, away = (
        sum(table[at][rank] - np.median(table.loc[[rank]].to_numpy()) for rank, at in where)
        for table in parts
    )
    if away > max(idle, computing):
        return "what the host does before the step, behind the last kernel of the one before"
    return "the device is idle: the host is late" if idle > computing else "computing"


RULE = ClusterDiagnostic(
    id="NPU603",
    name="straggler-steps",
    summary="ranks are late in some steps only, and all others wait",
    advice=f"if it is one rank, {_ONE}; if it is {_GC}",
    check=check,
    gpu_advice=f"if it is one rank, {_ONE}; if it is {_GC}",
)
