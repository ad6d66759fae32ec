"""How fast the links between ranks are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.html.details import Links

if TYPE_CHECKING:
    import pandas as pd

_RANKS = 32


def link_rates(links: pd.DataFrame) -> Links | None:
    """Return the bandwidth of each pair of ranks, ``None`` where none is recorded."""
    between = links[(links["source"] != links["destination"]) & (links["transit_ns"] > 0)]
    if between.empty:
        return None
    sums = between.groupby(["source", "destination"])[["size_bytes", "transit_ns"]].sum()
    sources, destinations = (sums.index.get_level_values(level).tolist() for level in (0, 1))
    sizes, times = sums["size_bytes"].tolist(), sums["transit_ns"].tolist()
    rates: dict[tuple[int, int], float] = {}
    moved: dict[int, int] = {}
    for one, other, size, spent in zip(sources, destinations, sizes, times, strict=True):
        rates[one, other] = size / spent
        moved[one] = moved.get(one, 0) + size
        moved[other] = moved.get(other, 0) + size
    ranks = sorted(sorted(moved, key=lambda rank: (-moved[rank], rank))[:_RANKS])
    matrix = [[rates.get((one, other)) for other in ranks] for one in ranks]
    return Links(ranks, matrix, len(moved) - len(ranks))
