"""What the rules about many ranks measure alike: who does the same work, and who is late in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.ranks.groups import peers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.cluster_diagnostic import Cluster

    Floats = NDArray[np.float64]

GAP = 0.05
"""Share of the time of a rank by which it must differ from its peers (RANK-GAP)."""
NOISE = 5 * 1.4826
"""Median absolute deviations: five standard deviations of normal noise, as for steps."""
LEAST_SHARE = 0.02
"""Share of the step from which a late rank is worth telling."""
FLOOR_NS = 100_000
"""Shorter times are no finding, whatever share of a short step they are."""
_PAIR = 2
"""Of so many ranks nothing tells which is the odd one: the gap must be twice as large."""
_HELD_UP = 0.5
"""Share of the gap that must be left when computing and idle time are taken together: a rank that
computes more and idles less is not late."""
_HOST = 3
"""A host with fewer ranks is compared rank by rank only."""
_TIMES = ["computing_ns", "communication_exposed_ns", "free_ns"]
_LISTED = 8
_CLEARLY = 0.25
"""Of what a rank is late in its median step: what counts as late in another one."""
_MOST_OF_ONE = 2.0
"""The same: what one step counts at most, as a single long one is another thing."""


def typical(cluster: Cluster) -> pd.DataFrame:
    """Return the median steady step of each rank, by rank.

    ``own_ns`` is computing and idle time: what does not depend on other ranks. ``step_ns`` is all.
    """
    medians: pd.DataFrame = _by_step(cluster).groupby("rank").median()
    return medians


def _by_step(cluster: Cluster) -> pd.DataFrame:
    # Several devices of one rank work side by side: their mean is the step of the rank.
    steps = cluster.steps.groupby(["rank", "step"], dropna=False)[_TIMES].mean()
    steps["own_ns"] = steps["computing_ns"] + steps["free_ns"]
    steps["step_ns"] = steps["own_ns"] + steps["communication_exposed_ns"]
    return steps


def step_ns(cluster: Cluster) -> float:
    """Return the length of a step of the job: ranks that wait for each other take the same."""
    if cluster.step_ns:
        return float(cluster.step_ns)
    return float(typical(cluster)["step_ns"].median()) if len(cluster.steps) else 0.0


def steps_of(rows: pd.DataFrame, cluster: Cluster) -> int:
    """Return over how many steps a table is summed up; ``rows`` is of ``collectives``."""
    counted = rows if len(rows) else cluster.steps
    return max(1, int(counted["step"].nunique()))


@dataclass(frozen=True)
class Late:
    """Ranks that take longer than their peers over the same thing."""

    column: str
    ranks: tuple[int, ...]
    """The latest first."""
    others: tuple[int, ...]
    """The peers that are in time."""
    medians: pd.DataFrame
    """``typical`` of all ranks."""
    step_ns: float
    """``step_ns`` of the job."""
    host: str = ""
    """Where they are all ranks of one host."""
    in_steps: tuple[int, int] = (1, 1)
    """In how many steps the latest is late, of how many: it may have become hot halfway."""
    often: float = 1.0
    """How late it is in the average step, as a share of what it is in its median one."""

    @property
    def usual_ns(self) -> float:
        """Return what the peers take."""
        return float(self.medians.loc[list(self.others), self.column].median())

    @property
    def most_ns(self) -> float:
        """Return what the latest takes."""
        return float(self.medians[self.column][self.ranks[0]])

    @property
    def gap_ns(self) -> int:
        """Return by how much the latest is late in the average step."""
        return round((self.most_ns - self.usual_ns) * self.often)

    def saving_ns(self) -> tuple[int, int]:
        """Return what the step gains when they are as fast as their peers.

        It ends with its last rank: at least what that one is behind all others, at most what it is
        behind the typical one.
        """
        own = self.medians["own_ns"]
        last = float(own.loc[list(self.ranks)].max())
        rest = own.drop(index=list(self.ranks))
        high = (last - float(own.loc[list(self.others)].median())) * self.often
        high = min(high, self.gap_ns)
        low = min((last - float(rest.max())) * self.often, high)
        return max(0, round(low)), max(0, round(high))

    @property
    def who(self) -> str:
        """Return the late ranks as people read them."""
        return (
            f"{format_ranks(self.ranks)} (all of host {self.host})"
            if self.host
            else format_ranks(self.ranks)
        )

    @property
    def times(self) -> str:
        """Return what the gap is made of: ``132 ms against 120 ms (10.2 % of the step)``."""
        share = percent(self.gap_ns / max(1.0, self.step_ns))
        most, usual = milliseconds(self.most_ns), milliseconds(self.usual_ns)
        late, steps = self.in_steps
        if late < steps:
            return f"{most} against {usual} in {late} of {steps} steps ({share} of the step)"
        return f"{most} against {usual} ({share} of the step)"

    @property
    def compared(self) -> str:
        """Return with whom they are compared."""
        if len(self.others) == 1:
            return f"rank {self.others[0]}"
        return f"the median of {len(self.others)} other ranks"


def late_ranks(cluster: Cluster, column: str) -> Iterator[Late]:
    """Yield the late ranks of each class of peers, by a column of ``typical``."""
    medians = typical(cluster)
    for members in peers(cluster, [int(rank) for rank in medians.index]):
        found = _late(medians.loc[members], column)
        host = ""
        if not found:
            host, found = _late_host(medians.loc[members], column, cluster)
        if found:
            others = tuple(rank for rank in members if rank not in found)
            host = host or host_of(cluster, found)
            steps, often = _late_steps(cluster, column, found[0], others)
            yield Late(column, found, others, medians, step_ns(cluster), host, steps, often)


def _late_steps(
    cluster: Cluster, column: str, late: int, others: Sequence[int]
) -> tuple[tuple[int, int], float]:
    """Return in how many steps a rank is late, of all, and how late on average.

    Both by what it is in its median step: idle for 37 ms of one step and for 9 ms of the next, it
    is late in both, by 23 ms on average.
    """
    rows = _by_step(cluster)[column].unstack("rank")  # noqa: PD010 - one value for each
    gaps = (rows[late] - rows[list(others)].median(axis=1)).dropna().to_numpy(np.float64)
    usual = float(np.median(gaps)) if len(gaps) else 0.0
    if usual <= 0:
        return (1, 1), 1.0
    count = int((gaps >= _CLEARLY * usual).sum())
    average = float(np.minimum(gaps, _MOST_OF_ONE * usual).mean())
    return (count, len(gaps)), min(1.0, max(0.0, average / usual))


def _late(rows: pd.DataFrame, column: str) -> tuple[int, ...]:
    """Return the outliers above the median, the latest first."""
    if len(rows) < _PAIR:
        return ()
    values = rows[column].to_numpy(np.float64)
    pair = len(rows) == _PAIR
    usual = float(values.min() if pair else np.median(values))
    limit = _limit(rows, GAP * (2 if pair else 1))
    if not pair:
        limit = max(limit, NOISE * spread(values))
    gap = values - usual
    own = rows["own_ns"].to_numpy(np.float64)
    behind = own - (own.min() if pair else np.median(own))
    found = np.flatnonzero((gap > limit) & (behind >= _HELD_UP * gap))
    return tuple(int(rows.index[at]) for at in found[np.argsort(-gap[found], kind="stable")])


def _limit(rows: pd.DataFrame, gap: float) -> float:
    own, step = float(rows["own_ns"].median()), float(rows["step_ns"].median())
    return max(gap * own, LEAST_SHARE * step, FLOOR_NS)


def _late_host(rows: pd.DataFrame, column: str, cluster: Cluster) -> tuple[str, tuple[int, ...]]:
    """Return a host of which every rank is later than any rank elsewhere.

    Where it has half of the ranks, none of them is far from the median.
    """
    hosts = hosts_of(cluster)
    names = [hosts.get(int(rank), "") for rank in rows.index]
    for host in sorted(set(names) - {""}):
        here = np.array([name == host for name in names])
        if min(here.sum(), (~here).sum()) < _HOST:
            continue
        own, other = rows[here], rows[~here]
        apart = own[column].min() > other[column].max()
        gap = float(own[column].median() - other[column].median())
        behind = float(own["own_ns"].median() - other["own_ns"].median())
        if apart and gap > _limit(other, GAP) and behind >= _HELD_UP * gap:
            order = own[column].sort_values(ascending=False, kind="stable")
            return host, tuple(int(rank) for rank in order.index)
    return "", ()


def hosts_of(cluster: Cluster) -> dict[int, str]:
    """Return the host of each rank, "" where the dump does not say."""
    rows = cluster.ranks
    return {int(rank): str(host) for rank, host in zip(rows["rank"], rows["host"], strict=True)}


def host_of(cluster: Cluster, ranks: Sequence[int]) -> str:
    """Return the name of the host that these are all ranks of, "" if there is none."""
    hosts = hosts_of(cluster)
    name = hosts.get(ranks[0], "")
    everyone = {rank for rank, host in hosts.items() if host == name}
    others = {host for host in hosts.values() if host != name}
    return name if name and others and len(ranks) > 1 and everyone == set(ranks) else ""


def spread(values: Floats) -> float:
    """Return the median absolute deviation."""
    return float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as people read them: ``rank 3``, ``ranks 1, 2 and 30 others``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(rank) for rank in ranks[:_LISTED]]
    if len(ranks) > _LISTED:
        return f"ranks {', '.join(shown)} and {len(ranks) - _LISTED} others"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def correlation(first: Floats, second: Floats) -> float:
    """Return the rank correlation (Spearman's), 0 where one of both does not vary."""
    ranked = [np.argsort(np.argsort(values, kind="stable")) for values in (first, second)]
    if len(first) < _PAIR or not np.ptp(first) or not np.ptp(second):
        return 0.0
    return float(np.corrcoef(ranked[0], ranked[1])[0, 1])
