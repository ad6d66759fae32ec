"""What became of a model: what runs on fused operators now, what does not, and why."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.runtime.calls import at_run_time
from npufix.advisor.runtime.process.reporting import NOT_MEASURED, old_code
from npufix.advisor.runtime.source.places import place_key
from npufix.rules.shared.quantities import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.advisor.runtime.modules.classes import Exchange
    from npufix.advisor.runtime.modules.planning import Spot

_FEW = 2


@dataclass(frozen=True, slots=True)
class Replaced:
    """A place in the code of a class, for the modules of that class."""

    spot: Spot
    cls: str
    modules: tuple[str, ...]
    """As ``named_modules`` calls them."""


@dataclass(frozen=True, slots=True)
class Left:
    """A place, or modules as a whole, that stay as they were."""

    reason: str
    cls: str
    modules: tuple[str, ...]
    spot: Spot | None = None


@dataclass(frozen=True, slots=True)
class ChangedModel:
    """What was done to a model; ``undo`` takes it back."""

    why_not: str = ""
    """Why nothing at all was tried."""
    replaced: tuple[Replaced, ...] = ()
    left: tuple[Left, ...] = ()
    attention: str = ""
    """By which operator a model of transformers computes attention."""
    exchange: Exchange | None = None
    ran_before: Mapping[str, int] = field(default_factory=dict)
    """How often the new code of a place had run when the model was changed."""

    def undo(self) -> None:
        """Make every module what it was; a second time does nothing."""
        if self.exchange is not None:
            self.exchange.restore()

    def report(self) -> str:
        """Return what was replaced, what was not and why, as text."""
        return "\n".join(_lines(self)) + "\n"

    def __str__(self) -> str:
        return self.report().rstrip("\n")


def _lines(done: ChangedModel) -> Iterator[str]:
    if done.why_not:
        yield f"npufix: nothing was changed: {done.why_not}"
        return
    places = len({one.spot for one in done.replaced})
    modules = len({name for one in done.replaced for name in one.modules})
    replaced, changed = format_count(places, "place"), format_count(modules, "module")
    yield f"npufix: {replaced} replaced in {changed} of the model" + (":" if places else "")
    for one in done.replaced:
        yield f"  {_place(one.spot)}"
        yield f"    {_modules(one.cls, one.modules)}"
        yield from (f"    {text}" for text in _describe(one.spot, done.ran_before))
    unmeasured = {
        f"{o.spot.place.rule}:{c}" for o in done.replaced for c in o.spot.place.unmeasured
    }
    if unmeasured:
        yield f"{NOT_MEASURED}: {', '.join(sorted(unmeasured))}"
    if done.attention:
        yield f"attention: {done.attention}"
    if done.left:
        yield f"{format_count(len(done.left), 'place')} left as they are:"
    for other in done.left:
        yield f"  {_place(other.spot)}" if other.spot else f"  {other.cls}"
        yield f"    {other.reason}{_remedy(other.spot)}"
        yield f"    {_modules(other.cls, other.modules)}"


def _place(spot: Spot) -> str:
    place = spot.place
    return f"{place.rule} {place.name} {_short(spot.path)}:{place.line} {place.function}"


def _short(path: str) -> str:
    """Return a file as the user knows it: below the current folder, or below its package."""
    here = f"{Path.cwd()}{os.sep}"
    if path.startswith(here):
        return path[len(here) :]
    for part in ("site-packages", "dist-packages"):
        before, found, after = path.rpartition(f"{os.sep}{part}{os.sep}")
        if found and before:
            return after
    return path


def _describe(spot: Spot, ran_before: Mapping[str, int]) -> Iterator[str]:
    place = spot.place
    if place.asked:
        yield f"asked at each call: {', '.join(place.asked)}"
    if spot.proven:
        yield f"this model proves: {', '.join(spot.proven)}"
    if vouched := spot.assumed:
        yield f"you vouch for {', '.join(vouched)}"
    if place.by_name:
        yield f"naming the rule vouches for {', '.join(place.by_name)}"
    key = place_key(spot.path, place.rule, place.line)
    ran = at_run_time.taken[key] - ran_before.get(key, 0)
    if ran:
        yield f"ran {format_count(ran, 'time')}"
    refused = Counter({what: n for (where, what), n in at_run_time.refused.items() if where == key})
    for what, times in refused.most_common():
        yield old_code(what, times)


def _remedy(spot: Spot | None) -> str:
    if spot is None or not spot.place.missing:
        return ""
    return f"; allow {','.join(f'{spot.place.rule}:{name}' for name in spot.place.missing)} if so"


def _modules(cls: str, names: Sequence[str]) -> str:
    shown = ", ".join(name or "the model itself" for name in names[:_FEW])
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f"{cls}: {shown}{more}"
