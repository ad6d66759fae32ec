"""Parallel groups of ranks: stages of the pipeline, and places within groups of the same work."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rules.cluster_diagnostic import Cluster

OFTEN = 0.75
"""Share of the groups in which a place must be the heavier one."""
_SAME_WORK = frozenset({"tp", "cp", "dp", "ep", "sp"})
_OTHER_WORK = frozenset({"pp", "mp", "embd"})
_PIPELINE = frozenset({"pp", "pipe", "pipeline"})
_SEVERAL = 2


def parts(role: str) -> frozenset[str]:
    """Return what a role is made of: ``dp_cp`` is dp and cp."""
    return frozenset(re.split(r"[^a-z]+", role.lower()))


def stages(cluster: Cluster) -> dict[int, int]:
    """Return the stage of each rank in its pipeline, of those that are in one.

    Where no group is called a pipeline, ranks that send to and receive from each other in a row are
    one: 0 with 1, 1 with 2, 2 with 3.
    """
    rows = cluster.groups[cluster.groups["role"].astype(str).str.fullmatch("pp")]
    named = {
        int(rank): members.index(int(rank))
        for rank, members in zip(rows["rank"], rows["members"], strict=True)
        if int(rank) in members and len(members) > 1
    }
    return named or _chained(cluster)


def _chained(cluster: Cluster) -> dict[int, int]:
    """Return the places of ranks in the rows that sends and receives make, all of one length.

    A ring is none: attention over parts of a sequence passes these around. Two ranks may be a ring
    of two, unless their group is called a pipeline.
    """
    neighbours: dict[int, set[int]] = {}
    called = False
    for members, role in _pairs(cluster):
        called |= bool(parts(role) & _PIPELINE)
        for one, other in (members, members[::-1]):
            neighbours.setdefault(one, set()).add(other)
    rows = []
    ends = sorted(rank for rank, others in neighbours.items() if len(others) == 1)
    while ends:
        row, others = [ends[0]], neighbours[ends[0]]
        while others:
            row.append(min(others))
            others = neighbours[row[-1]] - {row[-2]}
            if len(others) > 1:
                return {}
        ends = [rank for rank in ends if rank not in row]
        rows.append(row)
    is_whole = sum(map(len, rows)) == len(neighbours) and len({len(row) for row in rows}) == 1
    if not is_whole or (len(rows[0]) <= _SEVERAL and not called):
        return {}
    return {rank: place for row in rows for place, rank in enumerate(row)}


def _pairs(cluster: Cluster) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield the two ranks of each group that only sends and receives, and its role."""
    rows = cluster.collectives
    kinds = rows["kind"].astype(str).groupby(rows["group"].astype(str)).agg(set).to_dict()
    groups = cluster.groups.drop_duplicates("group")
    for group, role, members in groups[["group", "role", "members"]].itertuples(index=False):
        is_other = bool(parts(str(role)) & _SAME_WORK)
        if kinds.get(str(group)) == {"p2p"} and not is_other and len(members) == _SEVERAL:
            yield (int(members[0]), int(members[1])), str(role)


def peers(cluster: Cluster, ranks: Sequence[int]) -> list[list[int]]:
    """Return the ranks that should do the same work: those of one stage of the pipeline."""
    stage = stages(cluster)
    classes: dict[int, list[int]] = {}
    for rank in ranks:
        classes.setdefault(stage.get(rank, -1), []).append(rank)
    return list(classes.values())


def same_work(cluster: Cluster) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """Yield each role of which the ranks of a group should do the same work, with its groups."""
    groups = cluster.groups
    for key, own in groups.groupby(groups["role"].astype(str)):
        role = str(key)
        if parts(role) & _SAME_WORK and not parts(role) & _OTHER_WORK:
            yield role, list(dict.fromkeys(tuple(members) for members in own["members"]))


def is_place(cluster: Cluster, ranks: Sequence[int]) -> bool:
    """Tell whether these ranks are those at one place of most groups of a role.

    Then it is how the work is split that makes them late, not what is wrong with each of them.
    """
    stage, late = stages(cluster), set(ranks)
    own = {stage.get(rank, -1) for rank in ranks}
    for _, groups in same_work(cluster):
        beside = [g for g in groups if len(g) > 1 and stage.get(g[0], -1) in own]
        places = [place for g in beside for place, rank in enumerate(g) if rank in late]
        if (
            len(set(places)) == 1
            and len(places) == len(late) >= _SEVERAL
            and len(places) >= OFTEN * len(beside)
        ):
            return True
    return False
