"""The summaries of all ranks as tables, column by column."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from npufix.advisor.evidence.steady_steps import split_steps
from npufix.profiling_parsers.cluster.summary import (
    NO_STEP,
    NUMBER,
    TABLES,
    WORD,
    Summary,
    members_of,
)
from npufix.profiling_parsers.tables.columns import category
from npufix.rules.cluster_diagnostic import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from npufix.advisor.cluster.jobs import Dump
    from npufix.rules.cluster_diagnostic import RankDetail

    Integers = NDArray[np.int64]

_TIMES = ["computing_ns", "communication_exposed_ns", "free_ns"]
_SPLIT = [*_TIMES, "overlapped_ns", "communication_ns"]
_BUBBLE = "bubble_ns"
_WARM_UP = "warm-up"


def all_steps(dumps: Sequence[Dump]) -> pd.DataFrame:
    """Return one row a rank and step, several devices of a process as one; in order of ``dumps``.

    ``place`` is the position in ``dumps``.
    """
    table = _stack("steps", [dump.summary for dump in dumps])
    table["step"] = _nullable(table["step"].to_numpy())
    keys = ["place", "step"]
    if table.duplicated(keys).any():
        table[_BUBBLE] = table[_BUBBLE].where(table[_BUBBLE] >= 0)
        means = table.groupby(keys, sort=True, dropna=False)[[*_SPLIT, _BUBBLE]].mean().round()
        table = means.fillna(-1).astype(np.int64).reset_index().assign(device=-1)
    return table[["place", "step", "device", *_SPLIT, _BUBBLE]]


def drop_steps(steps: pd.DataFrame, reasons: Iterable[str]) -> pd.DataFrame:
    """Return the steps that the job as a whole does not leave out for these reasons.

    All ranks are compared over the same steps: those in which the typical rank is neither warming
    up nor held up. A rank that recorded none of them keeps its own.
    """
    typical = steps.groupby("step", sort=True, dropna=False)[_TIMES].median().reset_index()
    _, left_out = split_steps(typical)
    odd = [each.step for each in left_out if each.reason in reasons and each.step is not None]
    if not odd:
        return steps
    kept = ~steps["step"].isin(odd).to_numpy(dtype=bool)
    has_some = steps["place"].isin(steps["place"].to_numpy()[kept]).to_numpy()
    return steps[kept | ~has_some]


def steady(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps that an average is taken over."""
    return drop_steps(steps, (_WARM_UP, "outlier"))


def cluster_of(
    dumps: Sequence[Dump], steps: pd.DataFrame, details: Mapping[int, RankDetail]
) -> Cluster:
    """Return what the ranks of one job say; ``dumps`` has one of each rank."""
    summaries = [dump.summary for dump in dumps]
    numbers = np.array([dump.rank for dump in dumps], np.int64)
    tables = {name: _with_rank(name, summaries, numbers) for name in TABLES if name != "steps"}
    for name in ("collectives",):
        tables[name]["step"] = _nullable(tables[name]["step"].to_numpy())
    members = [members_of(text) for text in tables["groups"]["members"].cat.categories]
    codes = tables["groups"]["members"].cat.codes.to_numpy()
    # One tuple for all ranks of a group: there may be ten thousand in each.
    tables["groups"]["members"] = pd.Series([members[code] for code in codes], dtype=object)
    worlds = [summary.world_size for summary in summaries if summary.world_size]
    warm = drop_steps(steps, (_WARM_UP,))
    return Cluster(
        ranks=pd.DataFrame(
            {
                "rank": numbers,
                "host": category(*_encode([summary.host for summary in summaries])),
                "device": [summary.device for summary in summaries],
                "dump": [str(dump.path) for dump in dumps],
                "readable": [summary.readable for summary in summaries],
            }
        ),
        steps=_keep_ranks(steady(steps), numbers),
        operators=tables["operators"],
        collectives=tables["collectives"],
        transports=tables["transports"],
        links=_of_job(tables["links"], tables["groups"]),
        groups=tables["groups"],
        details=details,
        world_size=max(worlds, default=None),
        all_steps=_keep_ranks(warm, numbers),
    )


def _keep_ranks(steps: pd.DataFrame, numbers: Integers) -> pd.DataFrame:
    found = steps.assign(rank=numbers[steps["place"].to_numpy()])
    return found.drop(columns="place").reset_index(drop=True)


def _with_rank(name: str, summaries: Sequence[Summary], numbers: Integers) -> pd.DataFrame:
    table = _stack(name, summaries)
    place = table.pop("place").to_numpy()
    table.insert(0, "rank", numbers[place])
    return table


def _stack(name: str, summaries: Sequence[Summary]) -> pd.DataFrame:
    """Put the tables of this name below each other; ``place`` says of which summary a row is."""
    counts = [summary.rows(name) for summary in summaries]
    columns: dict[str, Any] = {"place": np.repeat(np.arange(len(summaries)), counts)}
    for column, kind in TABLES[name].items():
        if kind == WORD:
            columns[column] = _join_words(name, column, summaries)
        else:
            dtype = np.int64 if kind == NUMBER else np.float64
            parts = [summary.numbers(name, column) for summary in summaries]
            columns[column] = np.concatenate([np.empty(0, dtype), *parts])
    return pd.DataFrame(columns)


def _join_words(name: str, column: str, summaries: Sequence[Summary]) -> pd.Categorical[str]:
    known: dict[str, int] = {}
    parts = [np.empty(0, np.int32)]
    for summary in summaries:
        texts, codes = summary.words(name, column)
        if len(codes):
            here = np.array([known.setdefault(text, len(known)) for text in texts], np.int32)
            parts.append(here[codes])
    return category(np.concatenate(parts), list(known))


def _encode(texts: Sequence[str]) -> tuple[NDArray[np.int32], list[str]]:
    known: dict[str, int] = {}
    codes = [known.setdefault(text, len(known)) for text in texts]
    return np.array(codes, np.int32), list(known)


def _nullable(steps: Integers) -> pd.arrays.IntegerArray:
    missing = steps == NO_STEP
    return pd.arrays.IntegerArray(np.where(missing, 0, steps), missing)


def _of_job(links: pd.DataFrame, groups: pd.DataFrame) -> pd.DataFrame:
    """Return links between ranks of the job: a dump counts the ranks within their group.

    Where no dump says who is in a group, each rank tells its own number in it by being the
    ``source`` of all its links there; a link to a rank without a dump is then left out.
    """
    known: dict[tuple[str, int], int] = {}
    distinct = groups.drop_duplicates("group")
    for group, members in zip(distinct["group"], distinct["members"], strict=True):
        known.update({(str(group), place): rank for place, rank in enumerate(members)})
    told = set(distinct["group"].astype(str))
    own = links.drop_duplicates(["rank", "group"])
    for group, source, rank in zip(own["group"], own["source"], own["rank"], strict=True):
        if str(group) not in told:
            known.setdefault((str(group), int(source)), int(rank))
    by_group: dict[str, dict[int, int]] = defaultdict(dict)
    for (group, place), rank in known.items():
        by_group[group][place] = rank
    ends = {end: np.full(len(links), -1, np.int64) for end in ("source", "destination")}
    codes = links["group"].cat.codes.to_numpy()
    for code, group in enumerate(links["group"].cat.categories):
        rows = np.flatnonzero(codes == code)
        places = by_group.get(str(group), {})
        largest = max(places, default=-1)
        ranks = np.full(largest + 2, -1, np.int64)
        ranks[list(places)] = list(places.values())
        for end, found in ends.items():
            within = links[end].to_numpy()[rows]
            found[rows] = ranks[np.where((within < 0) | (within > largest), largest + 1, within)]
    known_ends = (ends["source"] >= 0) & (ends["destination"] >= 0)
    return links.assign(**ends)[known_ends].reset_index(drop=True)
