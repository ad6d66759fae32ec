"""Experts on some ranks get more tokens than on others.

What: the ranks of an expert parallel group send differently much in all-to-all, the heaviest more
than 20 % beyond the mean.

Why it is slow on the NPU: the rank with the popular experts computes the longest grouped matrix
products and sends the most results back; the others wait in the next all-to-all.

Evidence: bytes of alltoallv of each rank in communication.json, and the time of the grouped matrix
products in op_statistic.

Use instead: an auxiliary loss or bias that balances the router
(``--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.01``), a capacity factor
(``--moe-expert-capacity-factor``), or redundant experts for inference.

Safety: balancing changes training; a capacity factor drops tokens.

References: ep_load_balance of msprof-analyze; MoE pages of MindSpeed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.rules.cluster_diagnostic import ClusterDiagnostic, ClusterObservation
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.ranks.communication import (
    compute_exposed_share,
    name_groups,
    per_step,
    role_of,
)
from npufix.rules.shared.ranks.comparing import FLOOR_NS, format_ranks, step_ns, steps_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from npufix.rules.cluster_diagnostic import Cluster

_BEYOND = 1.2
"""Times the mean of the group."""
_LEAST_SHARE = 0.01
EXCHANGE = re.compile(r"all_?to_?all_?v", re.IGNORECASE)
"""The collective in which experts get tokens of other ranks."""
PRODUCT = r".*GroupedMat[Mm]ul.*"
_NETWORKS = ("SDMA", "RDMA")
_SEVERAL, _SHOWN = 2, 4


def check(cluster: Cluster) -> Sequence[ClusterObservation]:
    """Return one observation per role of the groups that exchange tokens.

    Whoever else asks (slow-computing-rank) gets what was found before.
    """
    if check not in cluster.kept:
        cluster.kept[check] = tuple(_find(cluster))
    found: Sequence[ClusterObservation] = cluster.kept[check]
    return found


def _find(cluster: Cluster) -> Iterator[ClusterObservation]:
    rows = cluster.transports.astype({"group": str, "name": str, "transport": str})
    rows = rows[rows["transport"].isin(_NETWORKS)]
    rows = rows[rows["name"].str.contains(EXCHANGE, regex=True)]
    role = role_of(cluster, rows["group"])
    for key, own in rows.groupby(role.where(role != "", rows["group"])):
        sent = own.groupby(["group", "rank"])["size_bytes"].sum()
        mean = sent.groupby("group").transform("mean")
        heavy = (sent / mean.where(mean > 0)).sort_values(ascending=False, kind="stable")
        heavy = heavy[heavy > _BEYOND]
        if len(heavy):
            where = name_groups(str(key) if str(key) in set(role) else "", str(key))
            yield from _observation(heavy, sent, where, cluster)


def _observation(
    heavy: pd.Series[float], sent: pd.Series[int], where: str, cluster: Cluster
) -> Iterator[ClusterObservation]:
    ranks = [int(rank) for _, rank in heavy.index]
    beside = [int(rank) for rank in sent.xs(heavy.index[0][0], level="group").index]
    own, usual = _products(cluster, ranks[0], beside)
    steps = steps_of(cluster.collectives, cluster)
    gap, step = max(0.0, own - usual) / steps, step_ns(cluster)
    # Who exchanges three times the bytes makes all wait for as much of each all-to-all.
    exchanged = _exchange_ns(cluster, ranks[0], heavy.index[0][0]) * (1 - 1 / heavy.iloc[0])
    if own and gap < max(_LEAST_SHARE * step, FLOOR_NS):
        return
    facts = [_bytes(sent, group, int(rank), steps) for group, rank in heavy.index[:_SHOWN]]
    basis = "op_statistic of these ranks shows no grouped matrix products"
    if own:
        basis = (
            "at most what the grouped matrix products and all-to-all take longer than in the mean"
        )
        facts.append(("all-to-all beyond the mean", f"{milliseconds(exchanged)} per step"))
        gap += exchanged
        products = (
            f"{milliseconds(own / steps)} per step on rank {ranks[0]}, "
            f"{milliseconds(usual / steps)} in the mean of its group"
        )
        facts.append(("grouped matrix products", products))
    yield ClusterObservation(
        what=(
            f"in {where} the experts of {format_ranks(ranks)} get up to "
            f"{percent(heavy.iloc[0] - 1)} more tokens than the mean, by the bytes of all-to-all"
        ),
        ranks=tuple(ranks),
        evidence=tuple(facts),
        cost_ns=round(gap),
        saving_ns=(0, round(gap)) if own else None,
        basis=basis,
    )


def _bytes(sent: pd.Series[int], group: str, rank: int, steps: int) -> tuple[str, str]:
    beside = sent.xs(group, level="group")
    own, mean = (value / 1e6 / steps for value in (float(beside[rank]), float(beside.mean())))
    return f"rank {rank}", f"sends {own:.4g} MB per step, the mean of its group {mean:.4g} MB"


def _exchange_ns(cluster: Cluster, rank: int, group: object) -> float:
    """Return how long all-to-all of a group moves data on a rank that nothing hides, per step."""
    rows = per_step(cluster)
    rows = rows[(rows["rank"] == rank) & (rows["group"] == str(group))]
    rows = rows[rows["name"].str.contains(EXCHANGE, regex=True)]
    exposed = float(compute_exposed_share(cluster).get(rank, 0.0))
    return float(rows["moved_ns"].sum()) * exposed


def _products(cluster: Cluster, rank: int, group: Sequence[int]) -> tuple[float, float]:
    """Return the time of the grouped products over the recording, on the rank and in the mean."""
    rows = cluster.operators
    rows = rows[rows["type"].astype(str).str.fullmatch(PRODUCT)]
    times = rows.groupby("rank")["total_ns"].sum()
    known = [member for member in group if member in times.index]
    if rank not in times.index or len(known) < _SEVERAL:
        return 0.0, 0.0
    return float(times[rank]), float(times[known].mean())


RULE = ClusterDiagnostic(
    id="NPU606",
    name="unbalanced-experts",
    summary="experts on some ranks get more tokens than on others",
    advice=(
        "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.01; "
        "--moe-expert-capacity-factor; redundant experts for inference"
    ),
    check=check,
)
