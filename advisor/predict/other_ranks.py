"""What the other ranks of a job leave of a saving that only one rank makes.

A collective moves its data once the slowest rank is there. What is said of a change holds where
all ranks are changed; where one is, its collectives still wait for the others: each begins at the
latest of the rank itself and of the others, who come as long after the collective before as they
were recorded to.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.predict.graph.critical_path import row_before
from npufix.advisor.predict.graph.replay import replay_times

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from npufix.advisor.predict.graph.step_graph import StepGraph
    from npufix.profiling_parsers.signals import Signals
    from npufix.rules.cluster_diagnostic import Cluster


@dataclass(frozen=True, slots=True)
class OtherRanks:
    """By the name of each collective of a rank, nanoseconds."""

    waited: pd.Series[float]
    """How long the rank waited there for others."""
    ahead: pd.Series[float]
    """How long the others waited at least in such a one: so much later may the last one be."""
    slower: float = 1.0
    """How often as long as the rank the slowest one computes: so much more it gains."""
    rank: int = -1
    """The number of the rank itself."""
    stages: frozenset[str] = frozenset()
    """Names of the collectives that wait for another stage of the pipeline."""
    alike: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """How often the others run a kernel of a Type and shapes for each of the rank's own."""

    def share_alike(self, kernels: pd.DataFrame) -> float:
        """Return how much of the time of some kernels of the rank the others spend alike."""
        spent = kernels["duration_ns"].to_numpy(np.float64)
        keys = zip(kernels["type"].astype(str), kernels["input_shapes"].astype(str), strict=True)
        shares = np.array([min(1.0, self.alike.get(key, 0.0)) for key in keys])
        return float((shares * spent).sum() / spent.sum()) if spent.sum() else 0.0


def other_ranks(signals: Signals, cluster: Cluster, rank: int | None) -> OtherRanks | None:
    """Return how a rank and the others wait for each other, ``None`` where nothing says it."""
    own, everyone = signals.collectives, cluster.collectives
    others = everyone[(everyone["rank"] != rank).to_numpy(bool)] if rank is not None else everyone
    if rank is None or own.empty or others.empty:
        return None
    sums = others.astype({"group": str}).groupby(["group", "rank"])[["wait_ns", "count"]].sum()
    mean = sums["wait_ns"] / sums["count"].clip(lower=1)
    least = mean.groupby("group").min()
    named = own.assign(
        name=own["name"].astype(str), ahead=own["group"].astype(str).map(least).fillna(0.0)
    )
    found = named.groupby("name")[["wait_ns", "ahead"]].mean()
    slower = 1.0
    if rank in list(cluster.steps.get("rank", ())):
        computing = cluster.steps.groupby("rank")["computing_ns"].mean()
        slower = float(computing.max() / max(1.0, computing[rank]))
    stages = frozenset(named.loc[(own["kind"] == "p2p").to_numpy(bool), "name"])
    alike = _alike(cluster, rank) if stages else {}
    return OtherRanks(found["wait_ns"], found["ahead"], slower, rank, stages, alike)


def _alike(cluster: Cluster, rank: int) -> dict[tuple[str, str], float]:
    """Return ``OtherRanks.alike`` of the ranks that were read as a whole."""
    calls = {
        number: detail.operators.groupby(["type", "shapes"])["calls"].sum()
        for number, detail in cluster.details.items()
    }
    mine = calls.pop(rank, None)
    if mine is None or not calls:
        return {}
    whole = sum(others.reindex(mine.index, fill_value=0) for others in calls.values())
    means = whole / len(calls) / mine.clip(lower=1)
    kinds, shapes = (means.index.get_level_values(at).astype(str) for at in (0, 1))
    return dict(zip(zip(kinds, shapes, strict=True), means.tolist(), strict=True))


def without_waits(graph: StepGraph, names: pd.Series[str], others: OtherRanks) -> StepGraph:
    """Return the graph of the rank that all wait for: what it saves is hidden by no wait."""
    waited = np.nan_to_num(names.map(others.waited).to_numpy(np.float64))
    waited = np.where(graph.communication, np.minimum(waited, graph.duration_ns), 0.0)
    return replace(graph, duration_ns=graph.duration_ns - waited)


def alone(graph: StepGraph, names: pd.Series[str], others: OtherRanks) -> StepGraph:
    """Return the graph of a rank whose others stay as they are; ``names``: those of its rows."""
    waited = names.map(others.waited).to_numpy(np.float64)
    ahead = names.map(others.ahead).to_numpy(np.float64, copy=True)
    known = graph.communication & ~np.isnan(waited)
    waited = np.where(known, np.minimum(np.nan_to_num(waited), graph.duration_ns), 0.0)
    times = replay_times(graph)
    starts = times.ended - graph.duration_ns
    before = row_before(graph.stream)
    free = np.where(before >= 0, times.ended[before], 0.0)
    # Where the rank takes long to come to, there the others may wait most of what they do.
    span = np.where(known, (starts - free).clip(min=0), 0.0)
    for mean in np.unique(ahead[known & (ahead > 0)]):
        own = known & (ahead == mean)
        part = span[own] ** 2 / max(1.0, float((span[own] ** 2).sum()))
        ahead[own] = np.maximum(mean, mean * own.sum() * part)
    # Who has not waited was the last: the others have, for so long.
    come = starts + waited - np.where(waited < ahead, np.nan_to_num(ahead), 0.0) - free
    return replace(
        graph,
        duration_ns=graph.duration_ns - waited,
        gap_ns=np.where(known, np.maximum(graph.gap_ns, come), graph.gap_ns),
    )
