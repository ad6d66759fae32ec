"""communication.json and communication_matrix.json: the collectives, and the links they used.

Both are ``step -> p2p or collective -> name@group -> ...``.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from npufix.profiling_parsers.profile import DumpError
from npufix.profiling_parsers.signals import SCHEMAS
from npufix.profiling_parsers.tables.collective_units import (
    DIFFERENCES,
    LARGEST,
    LATEST_US,
    in_units,
)
from npufix.profiling_parsers.tables.file_damage import damage_problem, remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pandas as pd

    from npufix.profiling_parsers.profile import Problem

_SUM = "Total Op Info"  # an entry of its own beside what it is the sum of
_TIME, _BANDWIDTH = "Communication Time Info", "Communication Bandwidth Info"
_START = "Start Timestamp(us)"
_SIZE, _TRANSIT, _SPEED = "Transit Size(MB)", "Transit Time(ms)", "Bandwidth(GB/s)"
_TIMES = {
    "Elapse Time(ms)": "elapse_ns",
    _TRANSIT: "transit_ns",
    "Wait Time(ms)": "wait_ns",
    "Synchronization Time(ms)": "synchronization_ns",
    "Idle Time(ms)": "idle_ns",
}

Entry = tuple[str, str, str, str]
"""Step, kind (p2p or collective), name and group of a collective."""


def read_communication(path: Path) -> tuple[pd.DataFrame, pd.DataFrame, list[Problem]]:
    """Return ``Signals.collectives``, ``Signals.transports`` and what is wrong with them.

    ``step`` is ``"50"``, or ``""`` without a schedule. A kind of link that moved nothing has no
    row; ``SDMA`` is the sum of the other kinds within a server.

    Raise ``DumpError`` if the file is none.
    """
    collectives: list[tuple[Any, ...]] = []
    transports: list[tuple[Any, ...]] = []
    malformed = 0
    for entry, content in _entries(_load(path)):
        times = _numbers(_object(content).get(_TIME), (_START, *_TIMES))
        links = _object(content).get(_BANDWIDTH)
        if entry is None or times is None or not isinstance(links, dict):
            malformed += 1
            continue
        collectives.append((*entry, *times))
        for kind, link in links.items():
            values = _numbers(link, (_SIZE, _TRANSIT, _SPEED, "Large Packet Ratio"))
            malformed += values is None
            if values is not None and any(values[:2]):
                transports.append((*entry, kind, *values))
    return (
        _table("collectives", collectives),
        _table("transports", transports),
        _problems(path, malformed),
    )


def read_communication_matrix(path: Path) -> tuple[pd.DataFrame, list[Problem]]:
    """Return ``Signals.links`` and what is wrong with it.

    ``name`` is that of a collective, or, in newer versions, ``allreduce-total`` for all of a kind
    and ``allreduce-top1``, ``-middle``, ``-bottom1`` for the fastest, median and slowest of them.

    Raise ``DumpError`` if the file is none.
    """
    rows: list[tuple[Any, ...]] = []
    malformed = 0
    for entry, content in _entries(_load(path)):
        if entry is None or not isinstance(content, dict):
            malformed += 1
            continue
        for pair, link in content.items():
            ranks = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", pair)
            values = _numbers(link, (_SIZE, _TRANSIT, _SPEED))
            if ranks is None or values is None:
                malformed += 1
                continue
            transport = str(link.get("Transport Type", ""))
            rows.append((*entry, int(ranks[1]), int(ranks[2]), transport, *values))
    return _table("links", rows), _problems(path, malformed)


def _load(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror}", "make the file readable") from error
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{path}: not JSON ({error})", remedy(path)) from error
    if not isinstance(content, dict) or not content:
        raise DumpError(f"{path}: holds no steps", remedy(path))
    return content


def _entries(content: Mapping[str, Any]) -> Iterator[tuple[Entry | None, Any]]:
    """Yield what stands under each name; ``None`` for what is not where it should be."""
    for step, kinds in content.items():
        if not isinstance(kinds, dict):
            yield None, kinds
            continue
        for kind, named in kinds.items():
            if not isinstance(named, dict):
                yield None, named
                continue
            for full_name, entry in named.items():
                name, _, group = full_name.partition("@")
                if full_name != _SUM:
                    yield (step.removeprefix("step"), kind, name, group), entry


def _numbers(content: object, keys: tuple[str, ...]) -> list[float] | None:
    """Return the numbers under ``keys``, ``None`` if one is missing or none."""
    values = [
        _number(_object(content).get(key), LATEST_US if key == _START else LARGEST) for key in keys
    ]
    usable = (
        value >= 0 or _TIMES.get(key) in DIFFERENCES
        for key, value in zip(keys, values, strict=True)
    )
    return values if all(usable) and not any(map(math.isnan, values)) else None


def _number(value: object, limit: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return number if abs(number) < limit else math.nan


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _table(name: str, rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMAS[name])
    return in_units(dict(zip(SCHEMAS[name], columns, strict=True)), name)


def _problems(path: Path, malformed: int) -> list[Problem]:
    what = f"{malformed} entries are malformed and left out"
    return [damage_problem(path, what)] if malformed else []
