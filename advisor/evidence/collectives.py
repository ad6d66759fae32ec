"""The collectives that take most time, and what they spend it on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.report import HotCollective

if TYPE_CHECKING:
    from npufix.profiling_parsers.signals import Signals

_TIMES = ["elapse_ns", "transit_ns", "wait_ns", "idle_ns"]


def hot_collectives(signals: Signals, top: int) -> list[HotCollective]:
    """Return the ``top`` collectives by the time they take."""
    own = signals.collectives
    if own.empty:
        return []
    keys = ["name", "kind", "group"]
    sums = (
        own.groupby(keys, observed=True)[_TIMES]
        .sum()
        .sort_values("elapse_ns", ascending=False, kind="stable")
    )
    calls = own.groupby(keys, observed=True).size()
    sizes = signals.payloads.groupby("name", observed=True)["size_bytes"].max()
    moved = signals.transports[signals.transports["gb_per_s"] > 0].sort_values(
        "size_bytes", kind="stable"
    )
    rates = dict(zip(moved["name"], moved["gb_per_s"].tolist(), strict=True))
    return [
        HotCollective(
            name=str(key[0]),
            kind=str(key[1]),
            group=str(key[2]),
            calls=int(calls.loc[key]),
            elapse_ns=int(elapse),
            transit_ns=int(transit),
            wait_ns=int(wait),
            idle_ns=int(idle),
            size_bytes=int(sizes.get(key[0], -1)),
            gb_per_s=rates.get(key[0]),
        )
        for key, elapse, transit, wait, idle in sums.head(top).itertuples(name=None)
    ]
