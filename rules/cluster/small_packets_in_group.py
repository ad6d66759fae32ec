"""The collectives of a group are too small to use its links.

What: more than 20 % of the collectives of the groups of one role move less than 16 MB over SDMA, or
less than 1 MB over RDMA, at less than 80 % of what the links reach.

Why it is slow on the NPU: each transfer costs the same to set up, synchronise and acknowledge, on
all ranks of the group.

Evidence: bytes, time and number of the collectives of each group in communication.json, on all
ranks.

Use instead: data parallel groups: larger buckets (``bucket_cap_mb`` of DDP, ``--ddp-bucket-size``
of Megatron, ``reduce_bucket_size`` of DeepSpeed), gradient accumulation, ZeRO-1 or ZeRO-2 instead
of ZeRO-3. Others, which the next kernel needs each: ``HCCL_OP_EXPANSION_MODE=AIV``, or fewer ranks
in the group.

Safety: buckets keep the results; accumulation changes the batch; ZeRO-2 takes more memory.

References: packet.yaml of msprof-analyze (16 MB, 1 MB, 20 %); bandwidth_contention.yaml (80 %).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.cluster.unbalanced_experts import EXCHANGE
from npufix.rules.cluster.unbalanced_experts import check as find_unbalanced_experts
from npufix.rules.cluster_diagnostic import ClusterDiagnostic, ClusterObservation
from npufix.rules.shared.chips import link_rate
from npufix.rules.shared.quantities import milliseconds, number, percent
from npufix.rules.shared.ranks.communication import (
    compute_exposed_share,
    name_groups,
    per_step,
    role_of,
)
from npufix.rules.shared.ranks.comparing import FLOOR_NS, step_ns, steps_of
from npufix.rules.shared.recording.collectives import (
    CONTENTION_SHARE,
    LEAST_SHARE,
    LEAST_STILL_NS,
    MOST_SET_UP_NS,
    PACKET_BYTES,
    TINY_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.cluster_diagnostic import Cluster

_SHARE = 0.2
"""Share of the collectives (PACKET)."""
_MOST = 0.5
_OF_LAYERS = ("tp", "cp", "sp", "ep", "mp", "tp_cp", "exp")
"""Groups whose collectives stand between the products of layers."""
_ALONE = "export HCCL_OP_EXPANSION_MODE=AIV for small messages, or fewer ranks in the group"
_BUCKETS = (
    "larger buckets (DDP bucket_cap_mb, Megatron --ddp-bucket-size, DeepSpeed reduce_bucket_size), "
    "gradient accumulation, ZeRO-2 instead of ZeRO-3"
)
_KEYS = ["rank", "group", "name"]


@dataclass(frozen=True, slots=True)
class _Link:
    """A kind of link and the GB/s that large collectives reach over it."""

    transport: str
    good: float


def check(cluster: Cluster) -> Iterator[ClusterObservation]:
    """Yield one observation per role of groups and kind of link."""
    if cluster.transports.empty or cluster.collectives.empty:
        return
    rows = _calls(cluster)
    if find_unbalanced_experts(cluster):  # ranks that send less wait for the popular one
        rows = rows[~rows["name"].str.contains(EXCHANGE, regex=True)]
    # A layer needs what the collective of the one before gives: those cannot be joined.
    rows = rows[~(rows["waited_for"] & (rows["size"] >= TINY_BYTES))]
    for transport, limit in PACKET_BYTES.items():
        own = rows[rows["transport"] == transport]
        good = _measure_reached(own, limit, transport)
        for key, group in own.groupby("key"):
            small = group[group["size"] < limit]
            lost = small["transit_ns"] - (small["size_bytes"] / good if good else 0.0)
            small = small[(lost <= small["count"] * MOST_SET_UP_NS) | (good is None)]
            if small["count"].sum() <= _SHARE * group["count"].sum():
                continue
            if good is not None and _speed(small) < CONTENTION_SHARE * good:
                yield from _observation(str(key), group, small, _Link(transport, good), cluster)


def _calls(cluster: Cluster) -> pd.DataFrame:
    """Return the transfers per step with their number, mean ``size`` and what they expose."""
    rows = cluster.transports.astype({"group": str, "name": str, "transport": str})
    steps = steps_of(cluster.collectives, cluster)
    sums = rows.groupby([*_KEYS, "transport"], as_index=False)[["size_bytes", "transit_ns"]].sum()
    sums = sums[(sums["size_bytes"] > 0) & (sums["transit_ns"] > 0)]
    columns = ["count", "elapse_ns", "moved_ns"]
    counted = per_step(cluster).groupby(_KEYS, as_index=False)[columns].sum()
    # The rank that comes last waits for none; what it takes beside moving sets the transfer up.
    last = counted.groupby(["group", "name"])["elapse_ns"].transform("min")
    set_up = (last - counted["moved_ns"]).clip(lower=0)
    made = sums.merge(counted.assign(set_up=set_up), on=_KEYS)
    made[["size_bytes", "transit_ns"]] = made[["size_bytes", "transit_ns"]] / steps
    size = made["size_bytes"] / made["count"].clip(lower=1 / steps)
    set_up = made["set_up"].clip(upper=made["count"] * LEAST_STILL_NS)
    made["transit_ns"] += set_up.where(size < TINY_BYTES, 0.0)
    role = role_of(cluster, made["group"])
    key = role.where(role != "", made["group"])
    of_ranks = {pair for detail in cluster.details.values() for pair in detail.waited_for}
    known = [pair in of_ranks for pair in zip(made["group"], made["name"], strict=True)]
    waited = made.assign(known=known).groupby([key, made["name"]])["known"].transform("any")
    return made.assign(size=size, key=key, waited_for=key.isin(_OF_LAYERS) | waited)


def _measure_reached(rows: pd.DataFrame, limit: int, transport: str) -> float | None:
    """Return the GB/s that large collectives reach in this job, else the known rate of the link."""
    large = rows[rows["size"] >= limit]
    if len(large):
        return _speed(large)
    return link_rate(transport)


def _speed(rows: pd.DataFrame) -> float:
    return float(rows["size_bytes"].sum() / max(1.0, rows["transit_ns"].sum()))


def _observation(
    key: str, group: pd.DataFrame, small: pd.DataFrame, link: _Link, cluster: Cluster
) -> Iterator[ClusterObservation]:
    taken = small.groupby("rank")["transit_ns"].sum()
    exposed = taken * compute_exposed_share(cluster).reindex(taken.index).fillna(1.0)
    cost, step = float(exposed.median()), step_ns(cluster)
    if cost < max(LEAST_SHARE * step, FLOOR_NS):
        return
    ranks, size = small["rank"].nunique(), float(np.median(small["size"])) / 1e6
    calls = (small["count"].sum() / ranks, group["count"].sum() / group["rank"].nunique())
    lost = 1 - _speed(small) / link.good
    limit = f"{PACKET_BYTES[link.transport] / 1e6:.0f} MB"
    where = name_groups(key if key in set(cluster.groups["role"].astype(str)) else "", key)
    yield ClusterObservation(
        what=(
            f"in {where}, {number(calls[0])} of {number(calls[1])} collectives per step over "
            f"{link.transport} move {size:.2g} MB each in the middle, where {limit} are needed to "
            f"fill a link; what nothing hides of them takes {milliseconds(cost)} per step "
            f"({percent(cost / step if step else 0.0)})"
        ),
        ranks=tuple(sorted({int(rank) for rank in small["rank"]})),
        evidence=(
            ("their bandwidth", f"{_speed(small):.2f} GB/s, large ones reach {link.good:.1f} GB/s"),
            ("median size", f"{size:.3g} MB"),
            ("operations", ", ".join(sorted(set(small["name"])))),
        ),
        cost_ns=round(cost),
        saving_ns=(0, round(cost * lost)),
        basis="at most what is lost against large collectives",
        is_communication=True,
        goes=max(0.0, lost),
        advice=_ALONE if small["waited_for"].mean() > _MOST else "",
    )


RULE = ClusterDiagnostic(
    id="NPU609",
    name="small-packets-in-group",
    summary="the collectives of a group are too small to use its links",
    advice=f"{_BUCKETS}; export HCCL_OP_EXPANSION_MODE=AIV for small messages",
    check=check,
)
