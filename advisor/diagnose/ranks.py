"""The dump that a user means: the only one, or the rank of many that is worth a look."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.advisor.cluster.looking import Looking, RankError, Ways
from npufix.profiling_parsers.discover import find_dumps
from npufix.profiling_parsers.reader import read_profile

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.advisor.cluster.looking import Ranks
    from npufix.profiling_parsers.profile import Profile
    from npufix.rules.cluster_diagnostic import Cluster

__all__ = ["DumpRanks", "RankError", "Ways", "read_dump"]

ALONE = Ways(compare=False)


@dataclass(frozen=True)
class DumpRanks:
    """The profile of the rank to diagnose, and the others; ``None`` where it is the only one."""

    profile: Profile
    ranks: Ranks | None = None
    cluster: Cluster | None = None


def read_dump(dump: Path, rank: int | None, ways: Ways = ALONE) -> DumpRanks:
    """Read the dump or, of several ranks, the one to look into and those that it is compared to.

    Raises:
        DumpError: there is nothing to read.
        RankError: there is no dump of the wanted rank.
        ExecutorError: nothing can be run where it should.

    """
    if ways.executor != "local":
        from npufix.advisor.cluster.executors import check_place

        check_place(ways.executor)
    dumps = find_dumps(dump)
    if len(dumps) == 1 and rank is None:
        return DumpRanks(read_profile(dumps[0]))
    with closing(Looking(ways)) as looking:
        ranks = looking.ranks([found.path for found in dumps], rank)
        profile, cluster = looking.whole(ranks)
    return DumpRanks(profile, ranks, cluster)
