"""A group loses packets on the network and sends them again.

What: a collective over RDMA moves data for about 4 s or more; or it takes so long on every rank
of its group, so that it is nobody's lateness.

Why it is slow on the NPU: a lost packet is sent again only after a timeout of about 4 s, during
which all ranks of the group wait.

Evidence: the longest collective of each rank and group, and its transit time, in
communication.json of all ranks.

Use instead: have the switch ports of these hosts checked (PFC, ECN, buffers, optics) for the
traffic class that the job uses: ``HCCL_RDMA_TC``, ``HCCL_RDMA_SL``; ``hccn_tool -i ID -stat -g``
counts retransmissions per device.

Safety: nothing changes in the program.

References: rdma_analysis.yaml of msprof-analyze (4 s); solution_to_top1.md of the troubleshooting
guide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.cluster_diagnostic import ClusterDiagnostic, ClusterObservation
from npufix.rules.shared.quantities import format_count, milliseconds
from npufix.rules.shared.ranks.communication import members_of, name_groups, roles
from npufix.rules.shared.ranks.comparing import step_ns, steps_of
from npufix.rules.shared.recording.collectives import RETRANSMIT_NS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    import pandas as pd

    from npufix.rules.cluster_diagnostic import Cluster

_SHOWN = 5


def check(cluster: Cluster) -> Iterator[ClusterObservation]:
    """Yield one observation per group."""
    over = cluster.transports[cluster.transports["transport"].astype(str) == "RDMA"]
    over = over[over["size_bytes"] > 0]
    rows = cluster.collectives
    rows = rows[rows[["longest_ns", "longest_transit_ns"]].max(axis=1) > RETRANSMIT_NS]
    rows = rows.astype({"group": str, "name": str, "kind": str})
    rows = rows[rows["group"].isin(set(over["group"].astype(str)))]
    for group, own in rows.groupby("group"):
        slow = own[own["longest_transit_ns"] > RETRANSMIT_NS]
        yield from _observation(
            str(group), slow if len(slow) else _everywhere(own, cluster), cluster
        )


def _fact(row: Mapping[Hashable, Any]) -> tuple[str, str]:
    longest = milliseconds(float(row["longest_ns"]))
    return f"rank {row['rank']}", f"{row['name']} in step {row['step']}: {longest}"


def _everywhere(rows: pd.DataFrame, cluster: Cluster) -> pd.DataFrame:
    """Return the collectives that take so long on all ranks of the group."""
    rows = rows[rows["kind"] == "collective"]
    long = rows[rows["longest_ns"] > RETRANSMIT_NS]
    members = members_of(cluster)
    ranks = long.groupby(["step", "name"], observed=True)["rank"].transform("nunique")
    size = long["group"].map(lambda group: len(members.get(group, ())))
    return long[(ranks == size) & (size > 1)]


def _observation(group: str, slow: pd.DataFrame, cluster: Cluster) -> Iterator[ClusterObservation]:
    if slow.empty:
        return
    worst = slow.sort_values("longest_ns", ascending=False, kind="stable")
    ranks = tuple(dict.fromkeys(int(rank) for rank in worst["rank"]))
    longest = int(worst["longest_ns"].iloc[0])
    steps = int(slow["step"].nunique())
    # All ranks of the group are in it together: one of them tells what it takes.
    cost = float(slow.groupby("step", observed=True)["longest_ns"].max().sum())
    cost /= steps_of(cluster.collectives, cluster)
    step = step_ns(cluster)
    yield ClusterObservation(
        what=(
            f"in {name_groups(roles(cluster).get(group, ''), group)} collectives over RDMA take "
            f"about 4 s or more, in {format_count(steps, 'step')}; the longest "
            f"{milliseconds(longest)}"
        ),
        ranks=ranks,
        evidence=tuple(_fact(row) for row in worst.head(_SHOWN).to_dict("records")),
        cost_ns=round(min(cost, step) if step else cost),
        basis="what the collectives take without loss is not in the dump",
        is_communication=True,
    )


RULE = ClusterDiagnostic(
    id="NPU610",
    name="retransmission-in-group",
    summary="a group loses packets on the network and sends them again",
    advice=(
        "have the switch ports of these hosts checked (PFC, ECN, optics); hccn_tool -i ID -stat -g "
        "counts retransmissions; HCCL_RDMA_TC and HCCL_RDMA_SL as the switches are configured"
    ),
    check=check,
)
