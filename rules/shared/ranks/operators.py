"""Why a rank computes longer than its peers: the operators, and the lines that ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from npufix.rules.diagnostic import Place
from npufix.rules.shared.quantities import milliseconds, number, percent

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    import pandas as pd

    from npufix.rules.cluster_diagnostic import Cluster

CLOCKS, SAME_KERNELS = "AI core clock", "same kernels with the same shapes"
"""Facts that say that it is the device that is slow, whatever it computes."""
_SAME = 0.02
"""Share by which a number of calls may differ and still be the same program."""
_MOST = 0.8
"""Share of the gap that one explanation must cover."""
_EVENLY = 0.3
"""How far the slow-down of an operator may be from that of all of them, as share of that."""
_CLOCK = 0.02
"""Share by which clocks differ that do not only by how they were read."""
_OPERATORS, _LINES = 3, 10


@dataclass(frozen=True)
class Cause:
    """Why a rank computes longer."""

    kind: str
    """``clock``, ``work``, ``inputs``, or "" where the dump does not say."""
    evidence: tuple[tuple[str, str], ...]
    is_mostly_first: bool = False
    """Whether most of it is the first operator that ``evidence`` names."""


def compare(cluster: Cluster, rank: int, others: Sequence[int]) -> Cause:
    """Compare the operators of a rank with what its peers spend on the same."""
    rows = _table(cluster, rank, others)
    gap = rows["gap"].clip(lower=0)
    whole = float(gap.sum())
    if rows.empty or whole <= 0:
        return Cause("", ())
    more = (rows["count"] - rows["usual_count"]) > _SAME * rows["usual_count"]
    slow = rows["time"].sum() / max(1.0, float(rows["usual"].sum())) - 1
    ratio = rows["time"] / rows["usual"].where(rows["usual"] > 0, np.nan) - 1
    # By the time that they take: a clock that is slower by 10 % makes nearly all of it 10 % longer.
    evenly = (ratio - slow).abs() <= _EVENLY * abs(slow)
    kind = "inputs"
    same, clock = _same_kernels(cluster, rank, others, slow), _clocks(cluster, rank, others)
    if gap[more].sum() >= (1 - _MOST) * whole:
        kind, clock = "work", ()
    elif same or clock:
        kind = "clock"
    elif rows["usual"][evenly].sum() >= _MOST * rows["usual"].sum():
        kind = "inputs" if _shapes_differ(cluster, rank, others) else "clock"
    worst = rows.assign(gap=gap).sort_values("gap", ascending=False, kind="stable")
    shown = worst[worst["gap"] > 0].head(_OPERATORS)
    facts = tuple(_fact(row) for row in shown.to_dict("records"))
    is_mostly_first = float(worst["gap"].iloc[0]) >= _MOST * whole
    return Cause(kind, (*clock, *(same if kind == "clock" else ()), *facts), is_mostly_first)


def _clocks(cluster: Cluster, rank: int, others: Sequence[int]) -> tuple[tuple[str, str], ...]:
    """Return the clock of a rank where it is lower than that of its peers."""
    mhz = {each: detail.mhz for each, detail in cluster.details.items() if detail.mhz}
    usual = float(np.median([mhz[each] for each in others if each in mhz] or [0.0]))
    if mhz.get(rank, usual) > (1 - _CLOCK) * usual or not usual:
        return ()
    return ((CLOCKS, f"{mhz[rank]:.0f} MHz against {usual:.0f} MHz of the others"),)


def _same_kernels(
    cluster: Cluster, rank: int, others: Sequence[int], slow: float
) -> tuple[tuple[str, str], ...]:
    """Return that most kernels take longer at the same shapes, where both ranks were read.

    A lower clock slows what computes by more than what waits for memory.
    """
    beside = next((other for other in others if other in cluster.details), None)
    if rank not in cluster.details or beside is None:
        return ()
    keys = ["type", "core", "shapes"]
    own, peer = (cluster.details[each].operators for each in (rank, beside))
    if own.empty or peer.empty:
        return ()
    both = own.merge(peer, on=keys, suffixes=("", "_usual"))
    both = both[(both["shapes"] != "") & (both["calls"] == both["calls_usual"])]
    usual = both["total_ns_usual"].clip(lower=1)
    slower = float(both["total_ns"].sum() / max(1, usual.sum())) - 1
    most = both["total_ns"] / usual - 1 >= slower / 2
    if both["total_ns"].sum() < _MOST * own["total_ns"].sum() or slower < _MOST * slow:
        return ()
    if usual[most].sum() < usual.sum() / 2 or len(both) < _OPERATORS:
        return ()
    told = f"{percent(slower)} longer than on rank {beside}"
    return ((SAME_KERNELS, told),)


def _shapes_differ(cluster: Cluster, rank: int, others: Sequence[int]) -> bool:
    """Tell whether hardly a kernel of the rank has shapes that a peer's have, where both were read.

    With sequences of 880 instead of 512 all operators take longer, as with a lower clock.
    """
    beside = next((other for other in others if other in cluster.details), None)
    if rank not in cluster.details or beside is None:
        return False
    keys = ["type", "core", "shapes"]
    own, peer = (cluster.details[each].operators for each in (rank, beside))
    own = own[(own["shapes"] != "").to_numpy(bool)]
    both = own.merge(peer[keys].drop_duplicates(), on=keys)
    return bool(len(own)) and both["total_ns"].sum() <= (1 - _MOST) * own["total_ns"].sum()


def _table(cluster: Cluster, rank: int, others: Sequence[int]) -> pd.DataFrame:
    """Return ``count`` and ``time`` of each Type and core, and the ``usual`` ones of the peers."""
    rows = cluster.operators.astype({"type": str, "core": str})
    keys = ["type", "core"]
    counts, times = (
        rows.pivot_table(column, keys, "rank", aggfunc="sum", fill_value=0)
        for column in ("count", "total_ns")
    )
    beside = [other for other in others if other in counts.columns]
    if counts.empty or rank not in counts.columns or not beside:
        return counts.iloc[:0].reindex(columns=["count", "time", "usual", "usual_count", "gap"])
    table = counts[[rank]].rename(columns={rank: "count"})
    table["time"] = times[rank]
    table["usual"] = times[beside].median(axis=1)
    table["usual_count"] = counts[beside].median(axis=1)
    table["gap"] = table["time"] - table["usual"]
    return table.reset_index()


def _fact(row: Mapping[Hashable, Any]) -> tuple[str, str]:
    mean = milliseconds(row["time"] / max(1.0, row["count"]))
    usual = milliseconds(row["usual"] / max(1.0, row["usual_count"]))
    told = (
        f"{milliseconds(row['gap'])} longer over the recording: {number(row['count'])} calls of "
        f"{mean} against {number(row['usual_count'])} of {usual}"
    )
    return str(row["type"]), told


def lines(cluster: Cluster, rank: int, others: Sequence[int]) -> tuple[Place, ...]:
    """Return the lines that take longer on this rank than on a peer that was read as a whole."""
    beside = [other for other in others if other in cluster.details]
    if rank not in cluster.details or not beside:
        return ()
    keys = ["path", "line", "function"]
    own = cluster.details[rank].lines.groupby(keys, as_index=False)[["calls", "total_ns"]].sum()
    usual = cluster.details[beside[0]].lines.groupby(keys, as_index=False)["total_ns"].sum()
    both = own.merge(usual, on=keys, how="left", suffixes=("", "_usual"))
    both["gap"] = both["total_ns"] - both["total_ns_usual"].fillna(0)
    both = both[both["gap"] > 0].sort_values("gap", ascending=False, kind="stable").head(_LINES)
    columns = [both[name].tolist() for name in (*keys, "gap", "calls")]
    return tuple(
        Place(str(path), int(line), str(function), round(cost), round(calls))
        for path, line, function, cost, calls in zip(*columns, strict=True)
    )
