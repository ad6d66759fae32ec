"""Collectives, transports and links of one rank, summed up to what a comparison of ranks needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.cluster.grouping import Groups, number_texts
from npufix.profiling_parsers.cluster.summary import NO_STEP, code_category, table_of

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from npufix.profiling_parsers.cluster.summary import Table

    Codes = NDArray[np.int32]
    Coded = tuple[list[str], Codes]

_NUMBER = re.compile("-?[0-9]{1,18}")
_SAMPLE = re.compile(r"(.*)-(?:top|middle|bottom)[0-9]*")
_TOTAL = "-total"
_WITHIN = "LOCAL"
_PARTS = ("elapse", "transit", "wait", "synchronization", "idle")


def operation(name: str) -> str:
    """Return what all collectives of a kind are called: ``hcom_allReduce__`` of ``…__586_0_1``."""
    head, sign, _ = name.partition("__")
    return head + sign if sign else name.rstrip("0123456789_") or name


def collectives_table(rows: pd.DataFrame) -> Table:
    """Sum up ``Signals.collectives`` per step, group and operation."""
    names = _operations(rows["name"])
    kinds, groups = code_category(rows["kind"]), code_category(rows["group"])
    texts, codes = code_category(rows["step"])
    numbers = [int(text) if _NUMBER.fullmatch(text) else NO_STEP for text in texts]
    steps = np.array(numbers, np.int64)[codes] if numbers else np.empty(0, np.int64)
    found = Groups(steps, kinds[1], names[1], groups[1])
    times = {part: rows[f"{part}_ns"].to_numpy() for part in _PARTS}
    return table_of(
        "collectives",
        {
            "step": steps[found.first],
            "kind": _at(kinds, found),
            "name": _at(names, found),
            "group": _at(groups, found),
            "count": found.count(),
            **{f"{part}_ns": found.total(values) for part, values in times.items()},
            "longest_ns": found.largest(times["elapse"]),
            "longest_transit_ns": found.largest(times["transit"]),
        },
    )


def transports_table(rows: pd.DataFrame) -> Table:
    """Sum up ``Signals.transports`` per group, operation and kind of link."""
    names = _operations(rows["name"])
    kinds, groups = code_category(rows["kind"]), code_category(rows["group"])
    transports = code_category(rows["transport"])
    found = Groups(kinds[1], names[1], groups[1], transports[1])
    sizes = rows["size_bytes"].to_numpy()
    return table_of(
        "transports",
        {
            "kind": _at(kinds, found),
            "name": _at(names, found),
            "group": _at(groups, found),
            "transport": _at(transports, found),
            "size_bytes": found.total(sizes),
            "transit_ns": found.total(rows["transit_ns"].to_numpy()),
            "large_packet_ratio": found.average(rows["large_packet_ratio"].to_numpy(), sizes),
        },
    )


def links_table(rows: pd.DataFrame) -> Table:
    """Sum up ``Signals.links`` per pair, group and transport, without copies within a device."""
    transports, groups = code_category(rows["transport"]), code_category(rows["group"])
    within = [transports[0].index(_WITHIN)] if _WITHIN in transports[0] else []
    source, destination = rows["source"].to_numpy(), rows["destination"].to_numpy()
    kept = (source != destination) & ~np.isin(transports[1], within) & ~_samples(rows)
    source, destination = source[kept], destination[kept]
    transports = transports[0], transports[1][kept]
    groups = groups[0], groups[1][kept]
    found = Groups(source, destination, transports[1], groups[1])
    return table_of(
        "links",
        {
            "source": source[found.first],
            "destination": destination[found.first],
            "transport": _at(transports, found),
            "group": _at(groups, found),
            "size_bytes": found.total(rows["size_bytes"].to_numpy()[kept]),
            "transit_ns": found.total(rows["transit_ns"].to_numpy()[kept]),
        },
    )


def _samples(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which rows are of the fastest, median or slowest collective of a kind.

    Newer versions write these beside the sum of all, older ones each collective by its name.
    """
    names, codes = code_category(rows["name"])
    found = [_SAMPLE.fullmatch(name) for name in names]
    if not any(found):
        return np.zeros(len(rows), np.bool_)
    totals = {name.removesuffix(_TOTAL) for name in names if name.endswith(_TOTAL)}
    sampled = np.array([match is not None and match[1] in totals for match in found])
    chosen: NDArray[np.bool_] = sampled[codes]
    return chosen


def _operations(column: pd.Series[str]) -> Coded:
    texts, codes = code_category(column)
    names, places = number_texts([operation(text) for text in texts])
    return names, places[codes] if len(places) else codes


def _at(column: Coded, found: Groups) -> Coded:
    texts, codes = column
    return texts, codes[found.first]
