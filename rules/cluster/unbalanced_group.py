"""Within a tensor, context, data or expert parallel group some ranks compute longer.

What: ranks of one group should do the same amount of work, and do not: always those at one place
of the group, or some of them by more than 10 % beyond the mean.

Why it is slow on the NPU: the group meets in every collective; what the heaviest rank takes longer
is lost on all others.

Evidence: Computing of step_trace_time in each step, by the groups of profiler_metadata.json,
without the ranks that slow-computing-rank names. Samples of different lengths make another rank the
heaviest in each step: on average they are even. Where no group is called one of these, all ranks
of a stage are compared.

Use instead: tensor parallel: pad the vocabulary and heads so that they divide. Context parallel:
give each rank a part from the beginning and one from the end of the sequence (causal masks). Data
parallel: sort or pack samples by length. Expert parallel: see unbalanced-experts.

Safety: advice; packing and padding change the batch. Told are differences of one place beyond 5 %
of the time of a rank in three of four groups, or of 10 % in half of the groups, and 2 % of the
step.

References: communication_performance_metrics.md of the troubleshooting guide (waiting within a
group); context parallel pages of MindSpeed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.cluster_diagnostic import ClusterDiagnostic, ClusterObservation
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.ranks.comparing import (
    FLOOR_NS,
    GAP,
    LEAST_SHARE,
    NOISE,
    late_ranks,
    spread,
    step_ns,
    typical,
)
from npufix.rules.shared.ranks.groups import OFTEN, is_place, parts, peers, same_work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from npufix.rules.cluster_diagnostic import Cluster

_SPREAD = 0.10
"""Share of the time of a rank within one group: twice what ranks differ by."""
_SEVERAL = 2
"""Ranks that can be compared, and groups in which a place is more than one rank."""
_SHOWN = 4
_LEAST_EVEN = 0.5
"""Of what work that is spread evenly saves: samples cannot be cut to measure."""


@dataclass(frozen=True)
class _Heavy:
    """What the heaviest ranks of the groups of a role take longer than the mean of their group."""

    role: str
    rows: pd.DataFrame
    """``group`` (number), ``place``, ``rank``, ``beyond`` of all ranks of such groups."""
    gap_ns: float
    which: str
    ranks: list[int]


def check(cluster: Cluster) -> Iterator[ClusterObservation]:
    """Yield one observation, for the role that shows it most: ``dp`` and ``dp_cp`` overlap."""
    if cluster.steps.empty or cluster.groups.empty:
        return
    medians = typical(cluster)
    late = {
        rank
        for each in late_ranks(cluster, "computing_ns")
        if not is_place(cluster, each.ranks)
        for rank in each.ranks
    }
    computing = medians["computing_ns"].drop(index=list(late))
    by_step = _by_step(cluster, list(late))
    own, step = float(medians["own_ns"].median()), step_ns(cluster)
    floor = max(LEAST_SHARE * step, FLOOR_NS)
    found: list[_Heavy] = []
    everyone = [tuple(ranks) for ranks in peers(cluster, sorted(map(int, by_step.columns)))]
    for role, groups in list(same_work(cluster)) or [("", everyone)]:
        rows = _rows(groups, by_step)
        found += _at_place(role, rows, max(GAP * own, floor)) or _within(
            role, rows, max(_SPREAD * own, floor)
        )
    for heavy in sorted(found, key=lambda each: -each.gap_ns)[:1]:
        yield _observation(heavy, computing, step)


def _by_step(cluster: Cluster, late: list[int]) -> pd.DataFrame:
    """Return what each rank computes, a column a rank and a row a step.

    They meet in each step: a rank that is heavy in one and light in the next is even on average.
    """
    rows = cluster.steps[~cluster.steps["rank"].isin(late)]
    times = rows.groupby(["step", "rank"], dropna=False, as_index=False)["computing_ns"].mean()
    times["step"] = times["step"].fillna(-1)
    found: pd.DataFrame = times.pivot_table("computing_ns", "step", "rank")
    return found


def _rows(groups: Sequence[tuple[int, ...]], computing: pd.DataFrame) -> pd.DataFrame:
    """Return how far each rank is beyond the mean of its group, in each step that all have."""
    import pandas as pd

    made: list[tuple[int, int, int, float]] = []
    number = 0
    for members in groups:
        known = [(place, rank) for place, rank in enumerate(members) if rank in computing.columns]
        if len(known) < _SEVERAL:
            continue
        times = computing[[rank for _, rank in known]].dropna().to_numpy(np.float64)
        for beyond in (times - times.mean(axis=1, keepdims=True)).tolist():
            made += [(number, *at, by) for at, by in zip(known, beyond, strict=True)]
            number += 1
    return pd.DataFrame(made, columns=["group", "place", "rank", "beyond"])


def _at_place(role: str, rows: pd.DataFrame, limit: float) -> list[_Heavy]:
    """Return what the heaviest place of the groups takes longer, where it does in most of them."""
    count = int(rows["group"].nunique())
    if count < _SEVERAL:
        return []
    usual = rows.groupby("place")["beyond"].median()
    place = int(usual.to_numpy().argmax())
    own = rows[rows["place"] == usual.index[place]]
    gap = float(usual.iloc[place])
    rest = (rows["beyond"] - rows["place"].map(usual)).to_numpy(np.float64)
    noise = NOISE * spread(rest) / np.sqrt(count)
    if gap <= max(limit, noise) or (own["beyond"] > 0).mean() < OFTEN:
        return []
    which = f"those at place {usual.index[place]} of their group"
    return [_Heavy(role, rows, gap, which, _heaviest(own))]


def _within(role: str, rows: pd.DataFrame, limit: float) -> list[_Heavy]:
    """Return by how much the heaviest rank of a group is beyond the mean, where it often is."""
    groups = rows.groupby("group")["beyond"]
    most = groups.max()
    if not len(rows) or float(most.median()) <= limit:
        return []
    gap, heavy = float(most.mean()), rows.loc[groups.idxmax()]
    ranks = _heaviest(heavy[heavy["beyond"] > limit])
    which = "the heaviest of each group"
    if len(ranks) > rows["rank"].nunique() / 2:
        which = "the heaviest of each group, another one from step to step"
    return [_Heavy(role, rows, gap, which, ranks)]


def _heaviest(rows: pd.DataFrame) -> list[int]:
    ordered = rows.groupby("rank")["beyond"].sum().sort_values(ascending=False, kind="stable")
    return [int(rank) for rank in ordered.index]


def _observation(heavy: _Heavy, computing: pd.Series[float], step: float) -> ClusterObservation:
    beyond = heavy.rows.groupby("rank")["beyond"].max()
    gap, roles = heavy.gap_ns, parts(heavy.role or "dp")
    advice = [text for key, text in _ADVICE.items() if key in roles]
    return ClusterObservation(
        what=(
            f"in the {heavy.role} groups some ranks compute {milliseconds(gap)} per step more than "
            f"the mean of their group ({percent(gap / step)} of the step): {heavy.which}"
            if heavy.role
            else f"some ranks compute {milliseconds(gap)} per step more than the mean of all "
            f"({percent(gap / step)} of the step): {heavy.which}"
        ),
        ranks=tuple(heavy.ranks),
        evidence=(
            ("compared", f"{heavy.rows['group'].nunique()} times, each group in each step"),
            *(_fact(rank, computing[rank], beyond[rank]) for rank in heavy.ranks[:_SHOWN]),
        ),
        cost_ns=round(gap),
        saving_ns=(round(_LEAST_EVEN * gap), round(gap)),
        likely_ns=round(gap),
        basis="half of what the heaviest takes longer than the mean of its group, to all of it",
        advice="; ".join(advice),
    )


def _fact(rank: int, taken: float, beyond: float) -> tuple[str, str]:
    return (
        f"rank {rank}",
        f"{milliseconds(taken)} per step, up to {milliseconds(beyond)} more than the mean",
    )


_ADVICE = {
    "tp": "tensor parallel: pad vocabulary and heads so that they divide evenly",
    "cp": (
        "context parallel: give each rank a part from the beginning and one from the end of the "
        "sequence"
    ),
    "dp": "data parallel: sort or pack samples by length, so that ranks get the same tokens",
}

RULE = ClusterDiagnostic(
    id="NPU605",
    name="unbalanced-group",
    summary="ranks of one parallel group do different amounts of work",
    advice=f"{_ADVICE['tp']}; {_ADVICE['cp']}; {_ADVICE['dp']}",
    check=check,
)
