"""Which sizes of a call depend on each other, found out by calling the original.

In ``attend(q=float[2, 4, 3, 8], k=float[2, 4, 3, 8], v=float[2, 4, 3, 8])`` four sizes occur in
all three. The length of ``q`` can change alone, that of ``k`` with that of ``v``; heads, width and
batch only in all three. So the sizes that expose most are 3 for ``q`` and 5 for ``k`` and ``v``.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.verification.calls.values import (
    Several,
    Spec,
    Tensor,
    Value,
    list_dimensions,
    list_tensors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    Specs = Mapping[str, Spec]
    Accepts = Callable[[Specs], bool]

_FIND_S = 0.8
_OTHER_SIZES = (5, 7, 6, 10, 12, 9, 11, 14, 13, 16)
_PROBES = ((11, 1), (14, 2), (20, 4))
"""Sizes and steps: odd, for what may be anything; even, for halves; what four divides."""
_SMALL_PROBES = ((5, 1), (6, 2), (4, 4))
"""Such ones below the size that most calls are made of."""
_PARTS = (2, 3, 5)
_LEAST = 4
"""Of what is no larger, smaller sizes say little."""
_ALL = -1
_MOST_TOGETHER = 7
"""Places of one size that are told apart: of more, all change together."""


class Place(NamedTuple):
    """Where a size stands: an axis of a tensor, or a whole number (with the axis None)."""

    name: str
    item: int | None
    axis: int | None


@dataclass(frozen=True, slots=True)
class Axis:
    """Places that change together, and by themselves."""

    places: frozenset[Place]
    size: int
    step: int = 1
    """Sizes are multiples of it."""

    def __str__(self) -> str:
        return ", ".join(sorted(f"{p.name}.{p.axis}" for p in self.places))


def list_places(specs: Specs) -> dict[Place, int]:
    """Return every size that a call has; that of one is structure, like a column of labels."""
    found: dict[Place, int] = {}
    for name, spec in specs.items():
        items = enumerate(spec.items) if isinstance(spec, Several) else ((None, spec),)
        for number, item in items:
            if isinstance(item, Tensor):
                shape = item.shape[:-1] if item.kind == "box" else item.shape
                found |= {Place(name, number, at): size for at, size in enumerate(shape)}
            elif isinstance(item, Value) and item.given and type(item.value) is int:
                found[Place(name, number, None)] = item.value
    return {place: size for place, size in found.items() if size > 1}


def set_sizes(
    specs: Specs, places: Collection[Place], new: int, *, old: int = 0
) -> dict[str, Spec]:
    """Return the same call with another size in these places.

    Whole numbers below ``old`` (all of them, if that is -1) become such below ``new``, or up to it:
    positions of a longer sequence, and lengths.
    """

    def one(spec: Spec, name: str, item: int | None) -> Spec:
        mine = {p.axis for p in places if p.name == name and p.item == item}
        if isinstance(spec, Value) and None in mine:
            return replace(spec, value=new)
        if not isinstance(spec, Tensor):
            return spec
        shape = tuple(new if at in mine else size for at, size in enumerate(spec.shape))
        high = spec.high
        if spec.kind == "int" and not spec.low and (old in {high, _ALL} and new > 1):
            high = new + 1 if old == _ALL else new
        return replace(spec, shape=shape, high=high)

    made: dict[str, Spec] = {}
    for name, spec in specs.items():
        if isinstance(spec, Several):
            items = (one(item, name, number) for number, item in enumerate(spec.items))
            made[name] = replace(spec, items=tuple(items))  # type: ignore[arg-type] # each stays what it is
        else:
            made[name] = one(spec, name, None)
    return made


def change_axis(specs: Specs, axis: Axis, new: int, accepts: Accepts) -> dict[str, Spec] | None:
    """Return the call with an axis of another size, if the original takes it."""
    for old in (_ALL, axis.size, 0):
        made = set_sizes(specs, axis.places, new, old=old)
        if accepts(made):
            return made
    return None


def find_axes(specs: Specs, accepts: Accepts, parts: Collection[int] = ()) -> list[Axis]:
    """Return what can change by itself, the smallest sets of places first.

    What is as long as one of ``parts``, or as a whole number among the arguments, may have to be a
    multiple of it: ``x.view(rows // group, group, -1)``.
    """
    places = list_places(specs)
    until = time.process_time() + _FIND_S
    found: list[Axis] = []
    for size in dict.fromkeys(places.values()):
        alike = [place for place, own in places.items() if own == size]
        found += _split(specs, alike, size, accepts, until, cut=size in parts)
    return found


def _split(  # noqa: PLR0913 - what changes, and when that is one
    specs: Specs, alike: list[Place], size: int, accepts: Accepts, until: float, *, cut: bool
) -> Iterator[Axis]:
    left = list(alike)
    counts: Iterable[int] = range(1, len(left) + 1)
    if len(left) > _MOST_TOGETHER:
        counts = (1, 2, len(left))
    indexed = any(_is_index(specs, place) for place in alike)
    upwards: dict[Place, int] = {}
    for count in counts:
        for chosen in itertools.combinations(left, count):
            if time.process_time() > until or not set(chosen) <= set(left):
                continue
            whole = cut or any(p.axis is None for p in left if p not in chosen)
            step = _changes(specs, chosen, accepts, size if whole else 0)
            # ``x.gather(1, index)`` takes an index of fewer rows than x, which nobody means; of
            # ``coords (3, 3)``, a row for each of three columns, there is no such x.
            tables = {p.name for p in alike} - {p.name for p in chosen}
            others = [place for place in alike if place not in chosen] if tables else []
            if step and indexed and others and not _changes(specs, others, accepts):
                step = 0
            # ``x[..., :n] * cos`` takes any n beyond the width: n goes with the columns of cos.
            plain = all(place.axis is None for place in chosen)
            tabled = plain and size > _LEAST and any(place.axis is not None for place in left)
            if step and tabled and not _shrinks(specs, chosen, accepts):
                upwards |= dict.fromkeys(chosen, step)
                continue
            if step:
                left = [place for place in left if place not in chosen]
                yield Axis(frozenset(chosen), size, step)
    grow = (place for place in left if place in upwards)
    yield from (Axis(frozenset({place}), size, upwards[place]) for place in grow)


def _changes(specs: Specs, places: Collection[Place], accepts: Accepts, part: int = 0) -> int:
    """Return the step in which places can change together; 0 if they cannot.

    That may be a ``part`` of which they are several.
    """
    taken = list_dimensions(specs)
    axes = all(place.axis is not None for place in places)
    parts = ((n * part, part) for n in _PARTS if part and axes)
    several = itertools.islice((p for p in parts if p[0] not in taken), 1)
    for probe, step in (_PROBES[0], *several, *_PROBES[1:]):
        new = probe if probe not in taken else probe * 3
        if accepts(set_sizes(specs, places, new)):
            return step
    if axes:
        return 0
    return _shrinks(specs, places, accepts)


def _shrinks(specs: Specs, places: Collection[Place], accepts: Accepts) -> int:
    """Return the step in which places can become smaller together; 0 if they cannot."""
    size = max(list_places(specs)[place] for place in places)
    smaller = ((probe, step) for probe, step in _SMALL_PROBES if probe < size)
    return next((s for probe, s in smaller if accepts(set_sizes(specs, places, probe))), 0)


def _is_index(specs: Specs, place: Place) -> bool:
    return any(tensor.kind == "int" for tensor in list_tensors(specs[place.name]))


def make_distinct(
    specs: Specs, axes: Collection[Axis], accepts: Accepts
) -> tuple[dict[str, Spec], list[Axis]]:
    """Return the call with a size of its own for each axis that shares one with another."""
    made, changed = dict(specs), list[Axis]()
    taken = set(list_places(specs).values())
    seen: set[int] = set()
    for axis in axes:
        new = axis.size
        if axis.size in seen:
            free = (n for n in _OTHER_SIZES if n not in taken and n % axis.step == 0)
            new = next(free, axis.size)
            grown = change_axis(made, axis, new, accepts)
            made, new = (made, axis.size) if grown is None else (grown, new)
        seen.add(new)
        taken.add(new)
        changed.append(replace(axis, size=new))
    return made, changed
