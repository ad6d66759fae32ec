"""From the dumps of a job to the rank to diagnose, and to what all ranks say together."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npufix.advisor.cluster.cache import CHECK, DETAIL, SUMMARY, RankCache
from npufix.advisor.cluster.checking import (
    choose_checked,
    find_unchecked,
    remark_unchecked,
    size_of_tables,
    tell_damage,
)
from npufix.advisor.cluster.choosing import ASKED, find_slowest, roles
from npufix.advisor.cluster.gathering import all_steps, cluster_of, steady
from npufix.advisor.cluster.jobs import job_of
from npufix.profiling_parsers.cluster.summary import SummaryError, decode, encode
from npufix.profiling_parsers.progress import advance
from npufix.profiling_parsers.reader import read_profile
from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    import pandas as pd

    from npufix.advisor.cluster.jobs import ClusterJob, Dump
    from npufix.profiling_parsers.cluster.summary import Summary
    from npufix.profiling_parsers.profile import Profile
    from npufix.rules.cluster_diagnostic import Cluster, RankDetail

_WORTH_A_POOL = 24
"""Ranks; the small files of fewer are read before other processes would have begun."""
_WORTH_ANOTHER_PROCESS = 8 << 20
"""Bytes of whole ranks."""
_NAMED = 16
"""Ranks, of those that could have been asked for."""
_TIMES = ["computing_ns", "communication_exposed_ns", "free_ns"]


@dataclass(frozen=True, slots=True)
class Ways:
    """How ranks are read."""

    executor: str = "local"
    cache: bool = True
    every: bool = False
    """All ranks are read as a whole, not only those that matter."""
    compare: bool = True
    """Ranks beyond the one that is diagnosed are read as a whole, to compare them."""


class RankError(UserError):
    """No dump of the rank that was asked for: ``message`` and ``remedy``."""


@dataclass(frozen=True)
class Ranks:
    """All ranks; ``chosen`` is the place of the one that is diagnosed."""

    paths: list[Path]
    summaries: list[Summary]
    job: ClusterJob
    steps: pd.DataFrame
    """All steps of ``job.dumps``; its ``place`` is the position there."""
    means: dict[int, tuple[int, int, int]]
    """Computing, exposed communication and free time per steady step, by place."""
    roles: dict[int, str]
    """By place: which ranks are read as a whole."""
    chosen: int


@dataclass
class Looking:
    """One look at the ranks below a folder; executors start when they are needed."""

    ways: Ways
    _opened: ExitStack = field(default_factory=ExitStack)
    _executor: tuple[Executor, int] | None = None

    def __post_init__(self) -> None:
        """Find what was read before."""
        self.cache = RankCache(enabled=self.ways.cache)

    def ranks(self, paths: Sequence[Path], wanted: int | None) -> Ranks:
        """Read the small files of all ranks, and choose.

        Raises:
            RankError: there is no dump of the wanted rank, or more than one.
            ExecutorError: nothing can be run where it should.

        """
        summaries = self._summaries(paths)
        job = job_of(paths, summaries)
        steps = all_steps(job.dumps)
        means = _means(job.dumps, steps)
        chosen = _choose(summaries, paths, means, wanted)
        means |= _means(job.others, all_steps(job.others))
        why = self._roles(job, means, chosen, asked=wanted is not None)
        job = replace(job, remarks=(*job.remarks, *self._check(paths, summaries, chosen)))
        return Ranks([*paths], summaries, job, steps, means, why, chosen)

    def whole(self, ranks: Ranks) -> tuple[Profile, Cluster | None]:
        """Read the chosen rank, and beside it the others that matter; compare them.

        What is found broken in these is noted in ``ranks.summaries``.

        Raises:
            DumpError: the chosen rank cannot be read.
            ExecutorError: nothing can be run where it should.

        """
        path = ranks.paths[ranks.chosen]
        if not self.ways.compare or len(ranks.job.dumps) < 2:  # noqa: PLR2004 - nothing to compare
            return read_profile(path), None
        others = [
            dump for dump in ranks.job.dumps
            if dump.place in ranks.roles and dump.place != ranks.chosen
        ]  # fmt: skip
        with self._details(others) as rest:
            profile = read_profile(path)
            details, damage = rest()
        tell_damage(ranks.summaries, damage)
        own = next((dump.rank for dump in ranks.job.dumps if dump.place == ranks.chosen), None)
        if own is not None:
            from npufix.advisor.cluster.details import whole_of

            details[own] = whole_of(profile).detail()
        return profile, cluster_of(ranks.job.dumps, ranks.steps, details)

    def close(self) -> None:
        """End what was started."""
        self._opened.close()
        self.cache.trim()

    def _summaries(self, paths: Sequence[Path]) -> list[Summary]:
        found = [_readable(data) for data in self.cache.known(paths, SUMMARY)]
        missing = [place for place, summary in enumerate(found) if summary is None]
        if missing:
            from npufix.advisor.cluster.working import parse_ranks

            executor, workers = self._place(len(missing) >= _WORTH_A_POOL)
            unread = [paths[place] for place in missing]
            advance("ranks", len(paths) - len(missing), len(paths))
            for number, (at, summary) in enumerate(parse_ranks(executor, unread, workers), 1):
                found[missing[at]] = summary
                if not summary.problem:  # what is broken may be mended where nothing shows it
                    self.cache.keep(unread[at], SUMMARY, encode(summary))
                advance("ranks", len(paths) - len(missing) + number, len(paths))
        return [
            _name_as_user(summary, path)
            for summary, path in zip(found, paths, strict=True)
            if summary is not None
        ]

    def _check(
        self, paths: Sequence[Path], summaries: list[Summary], chosen: int
    ) -> tuple[tuple[str, str], ...]:
        """Look through the rows of other ranks for damage; return what to say of the rest."""
        places = find_unchecked(paths, summaries, chosen)
        checked = places if self.ways.every else choose_checked(paths, places)
        known = self.cache.known([paths[place] for place in checked], CHECK)
        missing = [place for place, data in zip(checked, known, strict=True) if data is None]
        if missing:
            from npufix.advisor.cluster.tasks import SOUND, checks
            from npufix.advisor.cluster.working import KILLED, Spreading

            unread = [paths[place] for place in missing]
            size = sum(map(size_of_tables, unread))
            executor, workers = self._place(size >= _WORTH_ANOTHER_PROCESS)
            results = Spreading(executor, checks, unread, workers).results()
            for number, (at, data) in enumerate(results, 1):
                advance("tables", number, len(missing))
                if data == SOUND:
                    self.cache.keep(unread[at], CHECK, data)
                else:
                    told = KILLED if data is None else data.decode("utf-8", "replace")
                    tell_damage(summaries, {missing[at]: told})
        return remark_unchecked(len(checked), places)

    @contextmanager
    def _details(self, dumps: Sequence[Dump]) -> Iterator[_Rest]:
        """Begin to read ranks as a whole; yield what waits for the end of it."""
        from npufix.advisor.cluster.details import decode_whole
        from npufix.advisor.cluster.tasks import wholes
        from npufix.advisor.cluster.working import KILLED, Spreading

        kept = self.cache.known([dump.path for dump in dumps], DETAIL)
        found: dict[int, RankDetail] = {}
        damage: dict[int, str] = {}
        missing = []
        for dump, data in zip(dumps, kept, strict=True):
            whole = decode_whole(data) if data is not None else None
            if whole is None:
                missing.append(dump)
            else:
                found[dump.rank] = whole.detail()
        paths = [dump.path for dump in missing]
        executor, workers = self._place(_size(paths) >= _WORTH_ANOTHER_PROCESS)
        work = Spreading(executor, wholes, paths, workers, largest=1)

        def rest() -> tuple[dict[int, RankDetail], dict[int, str]]:
            for number, (at, data) in enumerate(work.results()):
                advance("ranks", number, len(missing))
                whole = decode_whole(data) if data is not None else None
                if data is None or whole is None:
                    damage[missing[at].place] = KILLED
                    continue
                damage[missing[at].place] = whole.problem or whole.damage
                if not whole.problem:
                    found[missing[at].rank] = whole.detail()
                    if not whole.damage:  # what is broken may be mended where nothing shows it
                        self.cache.keep(missing[at].path, DETAIL, data)
            return found, damage

        try:
            yield rest
        finally:
            work.cancel()

    def _place(self, worth: bool) -> tuple[Executor | None, int]:  # noqa: FBT001 - of few callers
        """Return where to read ranks; ``None`` is here."""
        local = self.ways.executor.partition(":")[0] == "local"
        if local and not worth:
            return None, 1
        if self._executor is None:
            from npufix.advisor.cluster.executors import open_executor

            self._executor = self._opened.enter_context(open_executor(self.ways.executor))
        executor, workers = self._executor
        return (None, 1) if local and workers == 1 else (executor, workers)

    def _roles(
        self,
        job: ClusterJob,
        means: Mapping[int, tuple[int, int, int]],
        chosen: int,
        *,
        asked: bool,
    ) -> dict[int, str]:
        candidates = [
            dump.place for dump in job.dumps if dump.summary.readable and dump.place in means
        ]
        found = {candidates[row]: why for row, why in roles(_frame(means, candidates)).items()}
        if asked:
            found[chosen] = ASKED
        if self.ways.every:
            found |= {place: found.get(place, ASKED) for place in candidates}
        return found


if TYPE_CHECKING:
    from collections.abc import Callable

    _Rest = Callable[[], tuple[dict[int, RankDetail], dict[int, str]]]


def _readable(data: bytes | None) -> Summary | None:
    try:
        return None if data is None else decode(data)
    except SummaryError:
        return None


def _name_as_user(summary: Summary, path: Path) -> Summary:
    """Return a summary whose problem names the dump as the user does."""
    if not summary.problem or str(path.absolute()) == str(path):
        return summary
    import msgspec

    told = summary.problem.replace(str(path.absolute()), str(path))
    return msgspec.structs.replace(summary, problem=told)


def _size(paths: Sequence[Path]) -> int:
    total = 0
    for path in paths:
        files = path.rglob("*") if path.is_dir() else [path]
        total += sum(file.stat().st_size for file in files if file.is_file())
    return total


def _means(dumps: Sequence[Dump], steps: pd.DataFrame) -> dict[int, tuple[int, int, int]]:
    found = steady(steps).groupby("place")[_TIMES].mean().round().astype("int64")
    return {
        dumps[int(row)].place: (int(computing), int(exposed), int(free))
        for row, computing, exposed, free in found.itertuples(name=None)
    }


def _frame(means: Mapping[int, tuple[int, int, int]], places: Sequence[int]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([means[place] for place in places], columns=_TIMES)


def _choose(
    summaries: Sequence[Summary],
    paths: Sequence[Path],
    means: Mapping[int, tuple[int, int, int]],
    wanted: int | None,
) -> int:
    """Return the place of the rank to diagnose: the wanted one, else the slowest."""
    places = [i for i, row in enumerate(summaries) if wanted is None or row.rank == wanted]
    if not places:
        there = [str(row.rank) for row in summaries if row.rank is not None]
        known = ", ".join(there[:_NAMED])
        known += f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
        raise RankError(f"no dump of rank {wanted}", f"there are ranks {known or 'unknown'}")
    if wanted is not None and len(places) > 1:
        dumps = ", ".join(str(paths[place]) for place in places)
        raise RankError(f"{len(places)} dumps of rank {wanted}", f"give one of them: {dumps}")
    # A rank that cannot be read is taken only if there is no other: then the reason is told.
    readable = [place for place in places if summaries[place].readable] or places
    measured = [place for place in readable if place in means]  # of those that are compared
    if not measured:
        return readable[0]
    return measured[find_slowest(_frame(means, measured))]
