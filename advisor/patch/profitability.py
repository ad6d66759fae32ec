"""Whether a change that computes the same is worth it: by times, by launches, by the table."""

from __future__ import annotations

from collections import Counter
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from npufix.rewriters.verification.verdict import Status
from npufix.rules.shared.quantities import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from npufix.advisor.evidence.lines import Evidence
    from npufix.rewriters.edit.site import Site
    from npufix.rewriters.verification.verdict import Launches, Verdict
    from npufix.rules.substitution import Substitution

_SHOWN = 3


class Profitability(NamedTuple):
    """Whether to offer a change."""

    pays: bool = True
    why: str = ""
    """With the figures that decided; empty where nothing had to be weighed."""


class Prices(NamedTuple):
    """What kernels cost in the dump, in ns per launch."""

    here: Mapping[str, float]
    """By Type, at the place of the change."""
    anywhere: Mapping[str, float]

    def of(self, kernel: str) -> tuple[float, float] | None:
        """Return the least and the most that a launch costs; None if the dump has none such."""
        types = kernel_types(kernel)
        for known in (self.here, self.anywhere):
            found = [known[name] for name in types if name in known]
            if found:
                return min(found), max(found)
        return None


def weigh(
    verdict: Verdict, rule: Substitution, prices: Callable[[], Prices | None]
) -> Profitability:
    """Decide on a change by what its verification has recorded."""
    if verdict.status is not Status.EQUIVALENT:
        return Profitability()
    times = verdict.times
    if times is not None:
        spent = f"{_us(times.original.median_us)} -> {_us(times.patched.median_us)}"
        return Profitability(not times.is_slower, f"slower: {spent}" if times.is_slower else "")
    found, waits = verdict.launches, verdict.synchronisations
    if waits is not None and waits.saved:
        counts = f"synchronisations {len(waits.original)} -> {len(waits.patched)}"
        return Profitability() if waits.saved > 0 else Profitability(pays=False, why=counts)
    if found is None or found.saved > 0:
        return Profitability()
    return _weigh_trade(found, rule, prices)


def prices(evidence: Evidence, path: str, site: Site) -> Prices:
    """Return what the kernels of a dump cost, at a place and everywhere."""
    kernels = evidence.kernels[evidence.computes & evidence.steady]
    here = evidence.at(path, site)
    means = (
        frame.groupby("type", observed=True)["duration_ns"].mean() for frame in (here, kernels)
    )
    return Prices(*({str(name): float(ns) for name, ns in found.items()} for found in means))


def _weigh_trade(
    found: Launches, rule: Substitution, prices: Callable[[], Prices | None]
) -> Profitability:
    """Decide where as much is launched after the change as before.

    Copies from the host, and a kernel that is slow for one dtype only, are in no list of launches:
    where the rule is about those, the launches are no evidence against it.
    """
    before = Counter(found.original + found.original_backward)
    after = Counter(found.patched + found.patched_backward)
    counts = f"launches {before.total()} -> {after.total()}"
    slow = {k for k in before if _is(k, rule.replaces) and not _is(k, rule.becomes)}
    if not slow:
        return Profitability()
    gone, new = before - after, after - before
    if not slow & gone.keys():
        return Profitability(pays=False, why=f"{counts}, and no slow kernel goes")
    trade = f"{counts}: {_list_kernels(gone)} for {_list_kernels(new) or 'nothing'}"
    known = prices()
    spent = None if known is None else _costs(gone, new, known)
    if spent is None:
        return Profitability(
            why=f"{trade}; {_list_kernels(slow)} is slow by the table of the rules"
        )
    freed, added = spent
    figures = f"{milliseconds(freed)} -> {milliseconds(added)} by the times of the dump"
    return Profitability(added < freed, f"{trade}, {figures}")


def _costs(gone: Counter[str], new: Counter[str], known: Prices) -> tuple[float, float] | None:
    """Return the least that goes and the most that comes; None where a time is unknown."""
    freed = [(known.of(kernel), count) for kernel, count in gone.items()]
    added = [(known.of(kernel), count) for kernel, count in new.items()]
    if any(price is None for price, _ in (*freed, *added)):
        return None
    return (
        sum(price[0] * count for price, count in freed if price is not None),
        sum(price[1] * count for price, count in added if price is not None),
    )


def _list_kernels(kernels: Iterable[str]) -> str:
    names = sorted(kernel.removeprefix("aclnn") for kernel in kernels)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _us(microseconds: float) -> str:
    return milliseconds(microseconds * 1000)


def _is(kernel: str, names: Iterable[str]) -> bool:
    """Say whether ``aclnnRepeatInterleaveInt`` is what a profile calls ``RepeatInterleave``."""
    plain = kernel.removeprefix("aclnn").removeprefix("Inplace").lower()
    if any(plain.startswith(n.lower()) or n.lower().startswith(plain) for n in names):
        return True
    types = kernel_types(kernel)  # several: that of a cast or of a special case may be among them
    return len(types) == 1 and types[0] in names


def kernel_types(kernel: str) -> tuple[str, ...]:
    """Return the Types that a launch may have in a profile."""
    return _table().get(kernel, (kernel.removeprefix("aclnn"),))


@cache
def _table() -> Mapping[str, tuple[str, ...]]:
    data = (
        files("npufix.rewriters.verification.reference").joinpath("kernel_types.json").read_bytes()
    )
    return msgspec.json.decode(data, type=dict[str, tuple[str, ...]])
