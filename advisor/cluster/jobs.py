"""Which dumps are the ranks of one job: several of one rank, or of several jobs, are not merged."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npufix.profiling_parsers.cluster.summary import Summary  # noqa: TC001 - of a dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FAR_APART_NS = 3600 * 10**9
"""Recordings of one job end within an hour of each other, whatever the clocks say."""
_NAMED = 3
_TRACE = "kineto"
_ONE = "give the folder of one recording"


@dataclass(frozen=True)
class Dump:
    """One dump that was found."""

    path: Path
    summary: Summary
    place: int
    """In the list of all dumps."""
    rank: int
    """The one it says; without, its place."""


@dataclass(frozen=True)
class ClusterJob:
    """The dumps to compare, one of each rank, and what is odd about the others."""

    dumps: tuple[Dump, ...]
    others: tuple[Dump, ...]
    """Those that are set aside."""
    set_aside: dict[int, str]
    """Place of a dump that is not compared, and why."""
    remarks: tuple[tuple[str, str], ...]
    """What the user should know about the whole folder, and what to do."""


def job_of(paths: Sequence[Path], summaries: Sequence[Summary]) -> ClusterJob:
    """Sort the dumps: the largest job, of each rank the latest recording, no rank twice."""
    dumps = [
        Dump(path, summary, place, place if summary.rank is None else summary.rank)
        for place, (path, summary) in enumerate(zip(paths, summaries, strict=True))
    ]
    aside: dict[int, str] = {}
    remarks: list[tuple[str, str]] = []
    usable = [dump for dump in dumps if dump.summary.tables]
    usable = _of_one_maker(usable, aside, remarks)
    usable = _of_one_world(usable, aside, remarks)
    usable = _number_ranks(usable)
    usable = _latest(usable, aside, remarks)
    _check_times(usable, remarks)
    _check_software(usable, remarks)
    _check_missing(usable, dumps, remarks)
    _check_tables(usable, remarks)
    compared = tuple(sorted(usable, key=lambda dump: dump.rank))
    others = tuple(dump for dump in dumps if dump.place in aside)
    return ClusterJob(compared, others, aside, tuple(remarks))


def _of_one_maker(
    dumps: list[Dump], aside: dict[int, str], remarks: list[tuple[str, str]]
) -> list[Dump]:
    """Set traces of GPUs aside where there are dumps of NPUs too, or these where they are fewer."""
    traces = [dump for dump in dumps if dump.summary.format == _TRACE]
    others = [dump for dump in dumps if dump.summary.format != _TRACE]
    if not traces or not others:
        return dumps
    kept, odd = (others, traces) if len(others) >= len(traces) else (traces, others)
    for dump in odd:
        aside[dump.place] = "of another kind of device: not compared"
    which = "dumps of NPUs" if kept is others else "traces of GPUs"
    counts = f"dumps of NPUs ({len(others)}) and traces of GPUs ({len(traces)})"
    remarks.append((f"holds {counts}: only the {which} are compared", _ONE))
    return kept


def _of_one_world(
    dumps: list[Dump], aside: dict[int, str], remarks: list[tuple[str, str]]
) -> list[Dump]:
    sizes = Counter(dump.summary.world_size for dump in dumps if dump.summary.world_size)
    if len(sizes) < 2:  # noqa: PLR2004 - one job
        return dumps
    chosen = max(sizes, key=lambda size: (sizes[size], size))
    counts = ", ".join(f"{sizes[size]} of a job of {size} ranks" for size in sorted(sizes))
    remarks.append((f"holds dumps of different jobs: {counts}", _ONE))
    kept = []
    for dump in dumps:
        if dump.summary.world_size in {None, chosen}:
            kept.append(dump)
        else:
            aside[dump.place] = f"of another job, of {dump.summary.world_size} ranks: not compared"
    return kept


def _number_ranks(dumps: list[Dump]) -> list[Dump]:
    """Give dumps that do not say their rank a number that no other has."""
    said = {dump.rank for dump in dumps if dump.summary.rank is not None}
    free = max(said, default=-1)
    found = []
    for dump in dumps:
        own = dump
        if dump.summary.rank is None and dump.rank in said:
            free += 1
            own = replace(dump, rank=free)
        said.add(own.rank)
        free = max(free, own.rank)
        found.append(own)
    return found


def _latest(dumps: list[Dump], aside: dict[int, str], remarks: list[tuple[str, str]]) -> list[Dump]:
    by_rank: dict[int, list[Dump]] = defaultdict(list)
    for dump in dumps:
        by_rank[dump.rank].append(dump)
    twice = sorted(rank for rank, found in by_rank.items() if len(found) > 1)
    if not twice:
        return dumps
    kept = []
    for rank, found in by_rank.items():
        last = max(found, key=lambda dump: (dump.summary.recorded_ns, dump.place))
        kept.append(last)
        for dump in found:
            if dump is not last:
                aside[dump.place] = f"another dump of rank {rank}: the ranks are compared without"
    what = f"holds several dumps of {_ranks(twice)}; of each the one recorded last is compared"
    remarks.append((what, _ONE))
    return kept


def _check_times(dumps: list[Dump], remarks: list[tuple[str, str]]) -> None:
    apart = 0
    for clock in (False, True):  # of different clocks nothing tells
        times = [
            dump.summary.recorded_ns
            for dump in dumps
            if dump.summary.recorded_ns > 0 and dump.summary.local_time is clock
        ]
        apart = max(apart, max(times, default=0) - min(times, default=0))
    if apart > _FAR_APART_NS:
        hours = apart / _FAR_APART_NS
        what = f"the ranks were recorded up to {hours:.0f} h apart, so hardly in the same steps"
        remarks.append((what, _ONE))


def _check_software(dumps: list[Dump], remarks: list[tuple[str, str]]) -> None:
    """Tell of ranks that run with other versions than most of them."""
    ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for dump in dumps:
        ranks[dump.summary.torch_npu, dump.summary.cann].append(dump.rank)
    ranks.pop(("", ""), None)
    if len(ranks) < 2:  # noqa: PLR2004 - all of them with the same
        return
    usual = max(ranks, key=lambda versions: len(ranks[versions]))
    for npu, cann in sorted(set(ranks) - {usual}):
        what = (
            f"{_ranks(sorted(ranks[npu, cann]))} with torch_npu {npu} and CANN {cann}, "
            f"{len(ranks[usual])} others with torch_npu {usual[0]} and CANN {usual[1]}"
        )
        remarks.append((what, "run the same software on all ranks: its kernels differ in speed"))


def _check_missing(dumps: list[Dump], every: list[Dump], remarks: list[tuple[str, str]]) -> None:
    worlds = {dump.summary.world_size for dump in dumps if dump.summary.world_size}
    if len(worlds) != 1 or any(dump.summary.rank is None for dump in every):
        return
    (world,) = worlds
    there = {dump.rank for dump in every}
    missing = [rank for rank in range(world) if rank not in there]
    beyond = sorted(dump.rank for dump in dumps if dump.rank >= world)
    if beyond:
        remarks.append((f"{_ranks(beyond)} in a job of {world} ranks: of several jobs", _ONE))
    if missing and len(there) > 1:
        what = f"{len(there) - len(beyond)} of {world} ranks are here; {_ranks(missing)} missing"
        remarks.append((what, "copy the dumps of all ranks: the slowest may be missing"))


def _check_tables(dumps: list[Dump], remarks: list[tuple[str, str]]) -> None:
    """Tell of ranks without a table that others of the same export have."""
    lacking: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for form in sorted({dump.summary.format for dump in dumps}):
        alike = [dump for dump in dumps if dump.summary.format == form]
        for name in dict.fromkeys(name for dump in alike for name in dump.summary.files):
            without = tuple(sorted(d.rank for d in alike if name not in d.summary.files))
            if without:
                lacking[without].append(name)
    for ranks, names in lacking.items():
        what = f"missing in {_ranks(ranks)}, there in others: {', '.join(names)}"
        remarks.append((what, "copy the dumps again: what is said of all ranks is without these"))


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_NAMED]))
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"ranks {named}{more}" if len(ranks) > 1 else f"rank {named}"
