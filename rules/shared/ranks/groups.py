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
_SEVERAL = 2


def parts(role: str) -> frozenset[str]:
    """Return what a role is made of: ``dp_cp`` is dp and cp."""
    return frozenset(re.split(r"[^a-z]+", role.lower()))


def stages(cluster: Cluster) -> dict[int, int]:
    """Return the stage of each rank in its pipeline, of those that are in one."""
    rows = cluster.groups[cluster.groups["role"].astype(str).str.fullmatch("pp")]
    return {
        int(rank): members.index(int(rank))
        for rank, members in zip(rows["rank"], rows["members"], strict=True)
        if int(rank) in members and len(members) > 1
    }


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
