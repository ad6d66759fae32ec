"""What a rank that was read as a whole contributes to a comparison: operators and lines."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pandas as pd

from npufix.advisor.evidence.lines import gather_evidence
from npufix.profiling_parsers.cluster.communicating import operation
from npufix.profiling_parsers.cluster.grouping import Groups
from npufix.profiling_parsers.cluster.reading import damage
from npufix.rules.cluster_diagnostic import RankDetail
from npufix.rules.shared.recording.collectives import are_waited_for
from npufix.rules.shared.recording.observing import clock_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from npufix.profiling_parsers.profile import Profile
    from npufix.rules.cluster_diagnostic import Cluster

_DIGEST_BYTES = 16
_PAUSE = 10
"""Times the usual launch: what is longer is none."""
_MOST_ROWS = 2000
"""Of each table, the largest: operators of rare shapes are many and short."""


class RankWhole(msgspec.Struct, frozen=True, array_like=True):
    """The columns of ``RankDetail``, or why there are none."""

    problem: str = ""
    types: list[str] = []
    cores: list[str] = []
    shapes: list[str] = []
    calls: list[int] = []
    total_ns: list[int] = []
    paths: list[str] = []
    lines: list[int] = []
    functions: list[str] = []
    line_calls: list[int] = []
    line_total_ns: list[int] = []
    mhz: float = 0.0
    damage: str = ""
    """What is broken in the files of which the rest was read, "" if nothing is."""
    host_ns: int = 0
    waited_for: list[tuple[str, str]] = []

    def detail(self) -> RankDetail:
        """Return the tables."""
        operators = {
            "type": self.types, "core": self.cores, "shapes": self.shapes,
            "calls": _integers(self.calls), "total_ns": _integers(self.total_ns),
        }  # fmt: skip
        lines = {
            "path": self.paths, "line": _integers(self.lines), "function": self.functions,
            "calls": _integers(self.line_calls), "total_ns": _integers(self.line_total_ns),
        }  # fmt: skip
        tables = pd.DataFrame(operators), pd.DataFrame(lines)
        return RankDetail(*tables, self.mhz, self.host_ns, frozenset(self.waited_for))


def whole_of(profile: Profile) -> RankWhole:
    """Return what a profile says, per steady step."""
    evidence = gather_evidence(profile, {})
    frame = evidence.kernels[evidence.computes & evidence.steady]
    operators = sum_by_key(frame, ("type", "core", "input_shapes"), evidence.steps)
    on_lines = frame[(frame["path"] != "").to_numpy(dtype=bool)]
    lines = sum_by_key(on_lines, ("path", "line", "function"), evidence.steps)
    return RankWhole(
        types=operators["type"],
        cores=operators["core"],
        shapes=operators["input_shapes"],
        calls=operators["calls"],
        total_ns=operators["total_ns"],
        paths=lines["path"],
        lines=lines["line"],
        functions=lines["function"],
        line_calls=lines["calls"],
        line_total_ns=lines["total_ns"],
        mhz=_mean_clock(frame, profile.signals.frequency),
        damage=damage(profile.problems),
        host_ns=_launching_ns(evidence.kernels[evidence.steady], evidence.steps),
        waited_for=_list_waited_for(evidence.kernels[evidence.steady], profile.signals.collectives),
    )


def _list_waited_for(kernels: pd.DataFrame, collectives: pd.DataFrame) -> list[tuple[str, str]]:
    """Return group and operation of the collectives that the kernels behind them need."""
    named = collectives[["name", "group"]].astype(str).drop_duplicates()
    bare = named["name"].str.split("@").str[0]
    keys = [named["group"], named["name"].map(operation)]
    own = kernels[kernels["communication"].to_numpy(bool)]
    return [
        (str(group), str(operation))
        for (group, operation), names in bare.groupby(keys)
        if are_waited_for(own[own["name"].isin(list(names))], kernels)
    ]


def _launching_ns(kernels: pd.DataFrame, steps: int) -> int:
    """Return what the host needs from launch to launch in a step, 0 where launches are unknown.

    What takes far longer than usual is no launch: a wait, a pause, the loader.
    """
    launched = np.sort(kernels["launch_ns"].to_numpy())
    launched = launched[launched >= 0]
    between = np.diff(launched)
    if not len(between) or 2 * len(launched) < len(kernels):
        return 0
    return round(float(np.minimum(between, _PAUSE * np.median(between)).sum()) / max(1, steps))


def _mean_clock(kernels: pd.DataFrame, clock: pd.DataFrame) -> float:
    """Return the clock at which kernels ran, MHz, each by its time; 0 if none was recorded."""
    readings = clock[clock["mhz"] > 0]
    if readings.empty or kernels.empty:
        return 0.0
    weights = np.maximum(kernels["duration_ns"].to_numpy(), 1)
    return float(np.average(clock_of(kernels, readings), weights=weights))


def lead_to_source(cluster: Cluster, lead: Callable[[Iterable[str]], Mapping[str, str]]) -> Cluster:
    """Return the ranks with lines of the source; ``lead`` gives the file here that a path means."""
    details = cluster.details
    mapped = lead({str(path) for detail in details.values() for path in detail.lines["path"]})
    here = {
        rank: [mapped.get(path, path) for path in detail.lines["path"]]
        for rank, detail in details.items()
    }
    led = {
        rank: replace(detail, lines=detail.lines.assign(path=here[rank]))
        for rank, detail in details.items()
    }
    return replace(cluster, details=led)


def encode_whole(whole: RankWhole) -> bytes:
    """Return it as bytes behind a checksum."""
    content = msgspec.msgpack.encode(whole)
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest() + content


def decode_whole(data: bytes) -> RankWhole | None:
    """Read what ``encode_whole`` wrote, ``None`` if it is none or damaged."""
    content = data[_DIGEST_BYTES:]
    if hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest() != data[:_DIGEST_BYTES]:
        return None
    try:
        return msgspec.msgpack.decode(content, type=RankWhole)
    except msgspec.DecodeError:
        return None


def sum_by_key(frame: pd.DataFrame, keys: tuple[str, ...], steps: int) -> Mapping[str, list[Any]]:
    """Return calls and time of each key per step, the largest first."""
    columns = [
        frame[key].cat.codes.to_numpy() if hasattr(frame[key], "cat") else frame[key].to_numpy()
        for key in keys
    ]
    groups = Groups(*columns)
    total = groups.total(frame["duration_ns"].to_numpy())
    chosen = np.argsort(-total, kind="stable")[:_MOST_ROWS]
    rows = frame.iloc[groups.first[chosen]]
    found: dict[str, list[Any]] = {
        key: rows[key].astype(object).tolist() if hasattr(rows[key], "cat") else rows[key].tolist()
        for key in keys
    }
    found["calls"] = np.rint(groups.count()[chosen] / steps).astype(np.int64).tolist()
    found["total_ns"] = (total[chosen] // steps).tolist()
    return found


def _integers(values: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)
