"""What collectives spend their time on, and how fast the links between ranks are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.html.details import Collective, Communication, Links

if TYPE_CHECKING:
    import pandas as pd

    from npufix.profiling_parsers.signals import Signals

_COLLECTIVES = 40
_RANKS = 32


def communication(signals: Signals) -> Communication | None:
    """Return the collectives of a run, ``None`` where nothing is recorded."""
    rows = signals.collectives
    links = _links(signals.links)
    if rows.empty:
        return Communication([], links=links) if links is not None else None
    rows = rows.sort_values("elapse_ns", ascending=False, kind="stable")
    sizes = dict(zip(signals.payloads["name"], signals.payloads["size_bytes"], strict=True))
    rates = _rates(signals.transports)
    columns = ("name", "elapse_ns", "transit_ns", "wait_ns")
    shown = rows.iloc[:_COLLECTIVES]
    found = [
        _collective(str(name), elapse, transit, wait, sizes.get(name), rates.get(name))
        for name, elapse, transit, wait in zip(*(shown[c].tolist() for c in columns), strict=True)
    ]
    return Communication(found, len(rows) - len(shown), links)


def _collective(  # noqa: PLR0913, PLR0917 - the columns of a row
    name: str, elapse: int, transit: int, wait: int, size: int | None, rate: float | None
) -> Collective:
    moving, waiting = max(0, transit), max(0, wait)
    idle = max(0, elapse - moving - waiting)
    return Collective(name, moving, waiting, idle, None if size is None else int(size), rate)


def _rates(transports: pd.DataFrame) -> dict[object, float]:
    """Return the bandwidth of each collective on the transport that moves most."""
    known = transports[transports["gb_per_s"] > 0].sort_values("size_bytes", kind="stable")
    return dict(zip(known["name"], known["gb_per_s"].tolist(), strict=True))


def _links(links: pd.DataFrame) -> Links | None:
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
