"""The communication of some groups is not hidden: who waits for whom.

What: the collectives of the groups of one role take more than 10 % of the step while nothing
computes.

Why it is slow on the NPU: a collective begins when its last rank arrives. What the first to arrive
waits is lost; only what the last one takes is transfer, and only that can be hidden or made faster.

Evidence: the time of the collectives of each group on all its ranks in communication.json: the
shortest is the transfer, the rest is waiting. Where ranks of the group are missing, it is what the
others call waiting themselves. The share that nothing hides is that of step_trace_time.

Use instead: where waiting is most of it, look at the rank that waits least: it is the one that
arrives last. Where the transfer is, overlap it (``--overlap-grad-reduce --overlap-param-gather``),
or choose groups that stay within a host.

Safety: overlap keeps the results.

References: communication_performance_metrics.md of the troubleshooting guide (the shortest
collective is the slow rank's; ratios of waiting that differ by 0.2); FSDP2 page of MindSpeed-LLM
(up to 10 % is fine).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.cluster_diagnostic import ClusterDiagnostic, ClusterObservation
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.ranks.communication import (
    compute_exposed_share,
    members_of,
    name_groups,
    per_step,
)
from npufix.rules.shared.ranks.comparing import FLOOR_NS, step_ns
from npufix.rules.shared.ranks.groups import parts
from npufix.rules.shared.recording.collectives import BACKWARD_SHARE, hidden_behind_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd

    from npufix.rules.cluster_diagnostic import Cluster

_LEAST = 0.10
"""Share of the step (FREE-LLM)."""
_UNEVEN = 0.2
"""Differences in the share of waiting from which ranks are late, not the network (FAST-SLOW)."""
_MOST = 0.5
_SHOWN = 4


def check(cluster: Cluster) -> Iterator[ClusterObservation]:
    """Yield one observation per role, or per group that has none."""
    if cluster.steps.empty or cluster.collectives.empty:
        return
    rows = per_step(cluster)
    rows = rows[rows["kind"] == "collective"]
    members = members_of(cluster)
    alone = rows["group"].map(lambda group: len(members.get(group, (0, 1)))) < 2  # noqa: PLR2004 - nobody to wait for
    rows = rows[~alone.to_numpy(bool)]
    if rows.empty:  # a pipeline that only sends and receives
        return
    last = _together_ns(rows, members)
    shares = rows["rank"].map(compute_exposed_share(cluster)).fillna(0.0)
    moved = rows["transit_ns"].where(rows["transit_ns"] > 0, rows["moved_ns"])
    rows = rows.assign(
        exposed=rows["elapse_ns"] * shares,
        together=last * shares,
        moving=moved.clip(upper=last),
        transfer=moved.clip(upper=last) * shares,
        key=rows["role"].where(rows["role"] != "", rows["group"]),
    )
    for key, own in rows.groupby("key"):
        yield from _observation(str(key), own, cluster)


def _together_ns(rows: pd.DataFrame, members: Mapping[str, tuple[int, ...]]) -> pd.Series[float]:
    """Return how long each operation takes once its last rank has arrived.

    That is the shortest on all ranks; where not all of the group recorded it (Level0 has no
    communication.json), what each of the others itself does not call waiting. Of a group whose
    ranks are not known that is so where all call most of it waiting: the last one waits for nobody.
    """
    alike = rows.groupby(["group", "name"])
    shortest = alike["elapse_ns"].transform("min")
    missing = alike["rank"].transform("nunique") < rows["group"].map(
        lambda group: len(members.get(group, ()))
    )
    all_wait = alike["wait_ns"].transform("min") > _MOST * shortest
    missing |= ~rows["group"].isin(list(members)) & all_wait
    own = rows["elapse_ns"] - rows["wait_ns"]
    return shortest.where(~missing, np.minimum(shortest, own))


def _observation(key: str, rows: pd.DataFrame, cluster: Cluster) -> Iterator[ClusterObservation]:
    step = step_ns(cluster)
    columns = ["elapse_ns", "exposed", "together", "transfer"]
    ranks = rows.groupby(["group", "rank"])[columns].sum()
    cost, together, transfer = (float(ranks[name].mean()) for name in columns[1:])
    if cost <= max(_LEAST * step, FLOOR_NS):
        return
    waiting, still = cost - together, together - transfer
    late = _late(ranks)
    where = name_groups(key if key in set(rows["role"]) else "", key)
    rate, kind = _speed(rows, cluster) if transfer > max(waiting, still) else (0.0, "")
    what = (
        f"collectives of {where} take {milliseconds(cost)} per step that nothing hides "
        f"({percent(cost / step)} of the step): {milliseconds(waiting)} wait for the last rank, "
        f"{milliseconds(transfer)} move data, {milliseconds(still)} do neither"
    )
    if kind:
        what = (
            f"collectives of {where} take {milliseconds(cost)} per step that nothing hides "
            f"({percent(cost / step)} of the step), at {rate:.2f} GB/s over {kind}: "
            f"{milliseconds(waiting)} wait for the last rank, {milliseconds(transfer)} move data, "
            f"{milliseconds(still)} do neither"
        )
    yield ClusterObservation(
        what=what,
        ranks=tuple(rank for _, rank, _ in late),
        evidence=(
            ("groups", str(rows["group"].nunique())),
            *(
                (f"rank {rank}", f"arrives last in its group: the others wait {milliseconds(wait)}")
                for _, rank, wait in late[:_SHOWN]
            ),
            ("operations", ", ".join(sorted(set(rows["name"])))),
        ),
        cost_ns=round(cost),
        saving_ns=(0, round(transfer)),
        likely_ns=_likely_ns(rows, cluster),
        basis="at most the transfer, as waiting goes when the last rank arrives earlier",
        is_communication=True,
        is_symptom=True,
        advice=_advice(waiting, transfer, still, _hiding(key, rows)),
    )


def _speed(rows: pd.DataFrame, cluster: Cluster) -> tuple[float, str]:
    """Return the GB/s of the kind of link that takes longest, and which it is, "" if unknown."""
    links = cluster.transports
    if links.empty:
        return 0.0, ""
    own = links[links["group"].astype(str).isin(set(rows["group"]))]
    sums = own.groupby(own["transport"].astype(str))[["size_bytes", "transit_ns"]].sum()
    sums = sums[(sums > 0).all(axis=1)]
    if sums.empty:
        return 0.0, ""
    kind = str(sums["transit_ns"].idxmax())
    return float(sums["size_bytes"][kind] / sums["transit_ns"][kind]), kind


def _likely_ns(rows: pd.DataFrame, cluster: Cluster) -> int:
    """Return how much of it there is computing to hide behind that hides none yet."""
    steps = cluster.steps
    hidden = float((steps["communication_ns"] - steps["communication_exposed_ns"]).mean())
    window = BACKWARD_SHARE * float(steps["computing_ns"].mean())
    moving, count = rows.groupby(["group", "rank"])[["moving", "count"]].sum().mean()
    behind = hidden_behind_ns(float(moving), window, 1 / max(1.0, float(count)))
    return max(0, round(behind - hidden))


def _advice(waiting: float, transfer: float, still: float, hiding: str) -> str:
    if still > max(waiting, transfer):
        return _STILL
    return _LATE if waiting > transfer else hiding


def _hiding(role: str, rows: pd.DataFrame) -> str:
    """Return what hides the transfer: gradients are not exchanged as tokens of experts are."""
    exchanges = rows["name"].str.contains("hcom_all_?to_?all", case=False).to_numpy(bool)
    if 2 * rows["elapse_ns"].to_numpy()[exchanges].sum() > rows["elapse_ns"].sum():
        return _EXCHANGE
    return _TENSOR_PARALLEL if "tp" in parts(role) else _TRANSFER


def _late(ranks: pd.DataFrame) -> list[tuple[str, int, float]]:
    """Return the last rank of each group in which the others wait, with how long these do.

    A rank that is last in several groups is told once, where the others wait longest.
    """
    found: list[tuple[str, int, float]] = []
    for group, own in ranks["elapse_ns"].groupby("group"):
        shortest, longest = float(own.min()), float(own.max())
        if longest and (longest - shortest) / longest > _UNEVEN:
            last = int(own.index.get_level_values("rank").to_numpy()[own.to_numpy().argmin()])
            found.append((str(group), last, longest - shortest))
    return sorted(
        {row[1]: row for row in sorted(found, key=lambda row: row[2])}.values(),
        key=lambda row: -row[2],
    )


_LATE = "mostly waiting: npufix diagnose DUMP --rank N for the rank that arrives last"
_TRANSFER = (
    "mostly transfer: hide it behind the backward pass (Megatron: --overlap-grad-reduce "
    "--overlap-param-gather; DDP: bucket_cap_mb, nothing reduced by hand behind it; FSDP: "
    "backward_prefetch, forward_prefetch), gradient accumulation, or groups that stay within a host"
)
_EXCHANGE = (
    "mostly transfer: --moe-alltoall-overlap-comm (MindSpeed) where tokens go to experts, or "
    "groups that stay within a host"
)
_TENSOR_PARALLEL = (
    "mostly transfer: --use-ascend-mc2 or --use-ascend-coc (MindSpeed), which hide it behind the "
    "matrix products beside it, or groups that stay within a host"
)
_STILL = (
    "mostly neither: npufix diagnose DUMP --rank N names the collectives that stand still; sizes "
    "that are multiples of 512 bytes, another HCCL_ALGO"
)

RULE = ClusterDiagnostic(
    id="NPU611",
    name="exposed-group-communication",
    summary="the communication of some groups is not hidden: who waits for whom",
    advice=f"{_LATE}; {_TRANSFER}",
    check=check,
)
