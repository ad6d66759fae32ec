"""Links that move data slower than others of their kind.

What: between two ranks data moves at less than 80 % of what the median link of the same kind
reaches in groups of the same role with transfers of the same size; or two ranks of one host talk
over PCIe or the network, while the others use the direct links.

Why it is slow on the NPU: a ring or tree is as fast as its slowest link, and all ranks of the group
wait for it.

Evidence: size, time and transport of each pair of ranks in communication_matrix.json; without it,
the bandwidth of each rank in communication.json.

Use instead: check the ports and cables of the rank or host that all slow links share (``hccn_tool
-i ID -link_stat -g``, ``hccn_tool -i ID -optical -g``, ``npu-smi info -t topo``), or leave the host
out.

Safety: nothing changes in the program. Told is what is below 80 % of the median and beyond five
standard deviations (from the median absolute deviation) of at least four links, and loses 1 % of
the step. Of three to seven links half may be slow and take the median with them: there, below half
of what the faster half reaches is told as well; and links of one rank that are all slower than 80 %
of each link of the others.

References: slow_link of msprof-analyze; bandwidth_contention.yaml (80 %); link checks of the
troubleshooting guide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from npufix.rules.cluster_diagnostic import ClusterDiagnostic, ClusterObservation
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.ranks.communication import role_of
from npufix.rules.shared.ranks.comparing import (
    FLOOR_NS,
    NOISE,
    format_ranks,
    hosts_of,
    spread,
    step_ns,
    steps_of,
)
from npufix.rules.shared.recording.collectives import CONTENTION_SHARE, LEAST_SHARE

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    import pandas as pd

    from npufix.rules.cluster_diagnostic import Cluster

_FEW = 4
"""Links of one kind and size, with fewer of which the median does not tell what is usual."""
_MANY = 8
"""Links of which half are not slow at once: 2 of 4 ranks may be behind one bad cable."""
_HALF = 0.5
"""Share of the faster half of a few links below which one is slow."""
_SIZES = 4.0
"""Transfers within such a factor are of the same size."""
_DIRECT = ("HCCS", "HCCS_SW", "SIO")
_DETOURS = ("PCIE", "RDMA")
_SHARED = 0.75
"""Share of the links of a rank or host that must be slow to call it the slow one."""
_PARTNERS = 2
"""Ranks that one talks to, so that what their links have in common is that one."""
_THERE_AND_BACK = 2
"""Links that two ranks have with each other."""
_SHOWN = 5


def check(cluster: Cluster) -> Iterator[ClusterObservation]:
    """Yield one observation per kind of link, and one for detours."""
    links = cluster.links.astype({"transport": str, "group": str})
    links = links[links["source"] != links["destination"]]
    if links.empty:
        links = _of_ranks(cluster)
    links = links[(links["size_bytes"] > 0) & (links["transit_ns"] > 0)]
    for transport, rows in links.groupby("transport"):
        purpose = role_of(cluster, rows["group"]) if "group" in rows else ""
        yield from _slow(_compare(rows.assign(role=purpose)), str(transport), cluster)
    yield from _detours(links, cluster)


def _of_ranks(cluster: Cluster) -> pd.DataFrame:
    """Return what each rank moves over each kind of link, where no pairs are recorded."""
    rows = cluster.transports.astype({"transport": str})
    sums = rows[rows["transport"] != "SDMA"].groupby(["rank", "transport"], as_index=False)
    totals: pd.DataFrame = sums[["size_bytes", "transit_ns"]].sum()
    return totals.rename(columns={"rank": "source"}).assign(destination=-1)


def _compare(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each pair of ranks with the bandwidth that is ``usual`` for its size and purpose.

    Groups of one role move packets of the same sizes, on which the bandwidth depends.
    """
    import pandas as pd

    keys = ["source", "destination", "role"]
    pairs: pd.DataFrame = rows.groupby(keys, as_index=False)[["size_bytes", "transit_ns"]].sum()
    pairs["speed"] = pairs["size_bytes"] / pairs["transit_ns"]
    size = np.round(np.log(pairs["size_bytes"].to_numpy(np.float64)) / np.log(_SIZES))
    same = pairs.groupby([pairs["role"], size])["speed"]
    pairs["usual"] = same.transform("median")
    pairs["noise"] = same.transform(lambda values: spread(values.to_numpy(np.float64)))
    pairs["alike"] = same.transform("size")
    fast = same.transform(lambda values: values.nlargest((len(values) + 1) // 2).median())
    ends = np.sort(pairs[["source", "destination"]].to_numpy(), axis=1)
    link = pd.Series([str(own) for own in ends], pairs.index).where(ends[:, 0] >= 0, "")
    others = link.groupby([pairs["role"], size]).transform("nunique") > 1
    few = ((pairs["alike"] > _THERE_AND_BACK) | others) & (pairs["alike"] < _MANY)
    behind = pairs["speed"] < _HALF * fast
    pairs["apart"] = behind & (few | _of_whole_groups(pairs, behind, [pairs["role"], size]))
    pairs["usual"] = pairs["usual"].mask(pairs["apart"], fast)
    for _, own in pairs.groupby([pairs["role"], size]):
        _mark_ends(pairs, own)
    return pairs


def _mark_ends(pairs: pd.DataFrame, rows: pd.DataFrame) -> None:
    """Set apart all links of a rank if each of them is slower than each one without it.

    In a mesh of four ranks, six of the twelve links are those of one: the median lies between
    slow and fast, and tells nothing.
    """
    for rank in np.unique(rows[["source", "destination"]].to_numpy()):
        own = (rows["source"] == rank) | (rows["destination"] == rank)
        partners = len(np.unique(rows.loc[own, ["source", "destination"]].to_numpy())) - 1
        others = rows.loc[~own, "speed"]
        if rank < 0 or partners < _PARTNERS or len(others) < _THERE_AND_BACK:
            continue
        if rows.loc[own, "speed"].max() < CONTENTION_SHARE * others.min():
            pairs.loc[rows.index[own], "apart"] = True
            pairs.loc[rows.index[own], "usual"] = others.median()


def _of_whole_groups(
    pairs: pd.DataFrame, slow: pd.Series[bool], alike: list[Any]
) -> pd.Series[bool]:
    """Tell of which links all that are alike at both of their ranks are slow as well.

    Of two groups of four ranks, one on each host, the six links of one may all be slow: half of the
    links, which take the median with them.
    """
    apart = slow.copy()
    for _, rows in pairs.groupby(alike):
        ends = rows[["source", "destination"]].to_numpy()
        quick = np.unique(ends[~slow[rows.index].to_numpy(bool)])
        own = np.isin(ends, quick[quick >= 0]).any(axis=1)
        apart[rows.index] = apart[rows.index].to_numpy(bool) & ~own
    return apart


def _slow(pairs: pd.DataFrame, transport: str, cluster: Cluster) -> Iterator[ClusterObservation]:
    behind = pairs["usual"] - pairs["speed"]
    few, slower = pairs["alike"] < _FEW, pairs["speed"] < CONTENTION_SHARE * pairs["usual"]
    slow = pairs[pairs["apart"] | (~few & slower & (behind > NOISE * pairs["noise"]))]
    if slow.empty:
        return
    # Links work side by side: what is lost is what the worst of them loses; also where collectives
    # of two streams share it, as a step that did nothing else would take what is usual of it.
    part = 1 - slow["speed"] / slow["usual"]
    step = step_ns(cluster)
    lost = slow["transit_ns"] * part / steps_of(cluster.collectives, cluster)
    lost = lost.clip(upper=part * step) if step else lost
    cost = float(lost.max())
    if cost < max(LEAST_SHARE * step, FLOOR_NS):
        return
    slow = slow.assign(lost=lost).sort_values("lost", ascending=False, kind="stable")
    ranks, where = _find_shared(slow, pairs, cluster)
    worst = slow.iloc[0]
    count, every = (len(_list_directed(rows)) for rows in (slow, pairs))
    yield ClusterObservation(
        what=(
            f"{count} of {every} {transport} links are slow, {where}: down to "
            f"{worst['speed']:.1f} GB/s where {worst['usual']:.1f} GB/s are usual, which takes "
            f"{milliseconds(cost)} per step ({percent(cost / step if step else 0.0)})"
        ),
        ranks=ranks,
        evidence=tuple(_fact(row) for row in slow.head(_SHOWN).to_dict("records")),
        cost_ns=round(cost),
        saving_ns=(0, round(min(cost, _measure_exposed(cluster)))),
        lost_ns=round(cost),
        basis="at most what the worst link loses, and no more than what nothing hides",
        is_communication=True,
    )


def _measure_exposed(cluster: Cluster) -> float:
    """Return the communication per step that nothing hides, on the rank that has most of it."""
    if cluster.steps.empty:
        return np.inf
    return float(cluster.steps.groupby("rank")["communication_exposed_ns"].median().max())


def _fact(row: Mapping[Hashable, Any]) -> tuple[str, str]:
    pair = f"rank {row['source']:.0f}"
    if row["destination"] >= 0:
        pair = f"rank {row['source']:.0f} to {row['destination']:.0f}"
    speed = f"{row['speed']:.2f} GB/s, usual of {row['alike']:.0f}: {row['usual']:.2f} GB/s"
    return pair, f"{speed}, {row['size_bytes'] / 1e6:.4g} MB in {milliseconds(row['transit_ns'])}"


def _find_shared(
    slow: pd.DataFrame, pairs: pd.DataFrame, cluster: Cluster
) -> tuple[tuple[int, ...], str]:
    """Return the ranks it is about and what the slow links have in common."""
    ends, every = _ends(slow), _ends(pairs)
    worst = zip(slow["source"], slow["destination"], strict=True)
    ranks = list(dict.fromkeys(int(rank) for pair in worst for rank in pair if rank >= 0))
    hosts = hosts_of(cluster)
    for rank in ranks:
        if _is_common(ends, every, {rank}):
            return (rank,), f"all at rank {rank}"
    for host in dict.fromkeys(hosts.get(rank, "") for rank in ranks):
        here = {rank for rank in hosts if hosts[rank] == host} if host else set()
        if _is_common(ends, every, here):
            return tuple(rank for rank in ranks if rank in here), f"all at host {host}"
    return tuple(ranks), f"at {format_ranks(sorted(ranks))}"


def _ends(pairs: pd.DataFrame) -> list[frozenset[int]]:
    return [frozenset({*pair} - {-1}) for pair in sorted(_list_directed(pairs))]


def _list_directed(pairs: pd.DataFrame) -> set[tuple[int, int]]:
    rows = zip(pairs["source"], pairs["destination"], strict=True)
    return {(int(source), int(destination)) for source, destination in rows}


def _is_common(
    slow: Sequence[frozenset[int]], every: Sequence[frozenset[int]], ranks: set[int]
) -> bool:
    """Tell whether all slow links are at these ranks, and most of the links there are slow."""
    if len(slow) <= _THERE_AND_BACK or not all(pair & ranks for pair in slow):
        return False
    there = sum(bool(pair & ranks) for pair in every)
    return there < len(every) and len(slow) >= _SHARED * there


def _detours(links: pd.DataFrame, cluster: Cluster) -> Iterator[ClusterObservation]:
    """Yield an observation for ranks of one host that do not use its direct links."""
    hosts = hosts_of(cluster)
    source, destination = (
        links[end].map(lambda rank: hosts.get(int(rank), "")).astype(object)
        for end in ("source", "destination")
    )
    inside = links[(source == destination) & (source != "")]
    direct = inside[inside["transport"].isin(_DIRECT)]
    around = inside[inside["transport"].isin(_DETOURS)]
    if around.empty or len(direct) < max(_FEW, 2 * len(around)):
        return
    usual = float((direct["size_bytes"] / direct["transit_ns"]).median())
    speed = around["size_bytes"] / around["transit_ns"]
    lost = around["transit_ns"] - around["size_bytes"] / usual
    cost = float(lost.max()) / steps_of(cluster.collectives, cluster)
    step = step_ns(cluster)
    if cost < max(LEAST_SHARE * step, FLOOR_NS):
        return
    worst = around.assign(lost=lost, speed=speed, usual=usual, alike=len(direct))
    worst = worst.sort_values("lost", ascending=False, kind="stable")
    kinds = ", ".join(sorted(set(worst["transport"])))
    yield ClusterObservation(
        what=(
            f"{len(around)} links between ranks of one host use {kinds} while the others use "
            f"{direct['transport'].mode().iloc[0]}, which takes {milliseconds(cost)} per step "
            f"({percent(cost / step if step else 0.0)})"
        ),
        ranks=tuple(dict.fromkeys(int(rank) for rank in worst["source"])),
        evidence=tuple(_fact(row) for row in worst.head(_SHOWN).to_dict("records")),
        cost_ns=round(cost),
        saving_ns=(0, round(min(cost, _measure_exposed(cluster)))),
        lost_ns=round(cost),
        basis="at most what the worst link loses, and no more than what nothing hides",
        is_communication=True,
    )


RULE = ClusterDiagnostic(
    id="NPU604",
    name="slow-link",
    summary="a link between ranks is slower than others of its kind",
    advice=(
        "on the hosts of these ranks: hccn_tool -i ID -link_stat -g; hccn_tool -i ID -optical -g; "
        "npu-smi info -t topo; then the cable or port, or leave the host out"
    ),
    check=check,
)
