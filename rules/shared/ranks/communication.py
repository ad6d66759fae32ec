"""The collectives of all ranks together: what each group spends on data and on waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.shared.ranks.comparing import steps_of, typical

if TYPE_CHECKING:
    import pandas as pd

    from npufix.rules.cluster_diagnostic import Cluster

_KEYS = ["rank", "group", "name"]
_WITHIN, _BETWEEN = "SDMA", "RDMA"
"""Sums over the links within a server, and the network between servers."""


def per_step(cluster: Cluster) -> pd.DataFrame:
    """Return one row a rank, group and operation, per step, with the ``role`` of the group.

    Beside its keys: ``kind``, ``count``, ``elapse_ns``, ``moved_ns``, ``waited_ns``,
    ``transit_ns`` (what HCCL itself calls moving, 0 where the version does not say), ``wait_ns``
    (what it calls waiting).
    """
    rows = cluster.collectives.astype({"group": str, "name": str, "kind": str})
    all_steps = steps_of(rows, cluster)
    steady = rows[rows["step"].isin(cluster.steps["step"].unique())]
    rows = steady if len(steady) else rows
    steps = steps_of(rows, cluster)
    columns = ["count", "elapse_ns", "transit_ns", "wait_ns"]
    sums = rows.groupby([*_KEYS, "kind"], as_index=False)[columns].sum()
    # HCCL calls much of some collectives neither transit nor wait; their links say what moved.
    moved = sums[_KEYS].merge(links_ns(cluster), on=_KEYS, how="left")["link_ns"].fillna(0)
    elapse = sums["elapse_ns"].to_numpy(np.float64)
    # The links are summed over all steps, whatever these are.
    stated = moved.to_numpy(np.float64) * steps / all_steps
    moving = np.maximum(sums["transit_ns"].to_numpy(np.float64), stated)
    moving = np.minimum(moving, elapse)
    return sums[[*_KEYS, "kind"]].assign(
        count=sums["count"].to_numpy(np.float64) / steps,
        elapse_ns=elapse / steps,
        moved_ns=moving / steps,
        transit_ns=sums["transit_ns"].to_numpy(np.float64) / steps,
        waited_ns=(elapse - moving) / steps,
        wait_ns=np.minimum(sums["wait_ns"].to_numpy(np.float64).clip(min=0), elapse) / steps,
        role=role_of(cluster, sums["group"]),
    )


def links_ns(cluster: Cluster) -> pd.DataFrame:
    """Return ``link_ns`` of each rank, group and operation: both networks, one after the other."""
    rows = cluster.transports.astype({"group": str, "name": str, "transport": str})
    rows = rows[rows["transport"].isin([_WITHIN, _BETWEEN])]
    rows = rows.rename(columns={"transit_ns": "link_ns"})
    sums: pd.DataFrame = rows.groupby(_KEYS, as_index=False)[["link_ns"]].sum()
    return sums


def roles(cluster: Cluster) -> dict[str, str]:
    """Return the role of each group, by its name in the tables of collectives."""
    rows = cluster.groups
    return {str(group): str(role) for group, role in zip(rows["group"], rows["role"], strict=True)}


def role_of(cluster: Cluster, groups: pd.Series[str]) -> pd.Series[str]:
    """Return the role of the group in each row, "" where the dump does not say."""
    known = roles(cluster)
    return groups.map(lambda group: known.get(group, "")).astype(object)


def members_of(cluster: Cluster) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each group."""
    rows = cluster.groups
    found: dict[str, tuple[int, ...]] = {
        str(group): tuple(members)
        for group, members in zip(rows["group"], rows["members"], strict=True)
    }
    return found


def name_groups(role: str, group: str) -> str:
    """Return how to speak of the groups of a role, or of the one group that has none."""
    if role.endswith("group"):
        return f"the group {role}"
    return f"the groups of {role}" if role else f"the group {group}"


def compute_exposed_share(cluster: Cluster) -> pd.Series[float]:
    """Return how much of each collective of a rank no computation hides, on average.

    Collectives of several streams run beside each other: their sum is longer than the time in which
    the rank communicates.
    """
    medians = typical(cluster)
    whole = cluster.steps.groupby("rank")["communication_ns"].median().astype(float)
    summed = per_step(cluster).groupby("rank")["elapse_ns"].sum()
    summed = summed.reindex(whole.index).fillna(0.0)
    whole = whole.where(whole > summed, summed)
    shares = medians["communication_exposed_ns"] / whole.where(whole > 0, np.nan)
    clipped: pd.Series[float] = shares.fillna(0.0).clip(0.0, 1.0)
    return clipped
