"""In which order the arguments of a class are tried together."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.verification.calls.values import Value, list_tensors, replace_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.verification.calls.values import Spec

_FEW = 4
"""Options of each argument that are tried together with those of others."""


def combine_by_rank(
    options: list[list[tuple[str, Spec | None]]], *, other_first: bool
) -> Iterator[tuple[tuple[str, Spec | None], ...]]:
    """Yield one option for each argument, the likeliest first; early ones none at its default."""
    ranks = itertools.islice(itertools.product(*(range(min(len(o), _FEW)) for o in options)), 4096)
    # Second: nothing at its default, so that a forgotten ``eps`` cannot hide behind one that
    # happens to be the operator's own; with sizes that differ, if an object can be made so.
    absent = ((o[0][1] is None or o[0][1] == Value(None), o) for o in options)
    off = tuple(1 if none and len(o) > 1 else 0 for none, o in absent)
    # A size of several numbers may fit no others, nor a text or a tensor: then all but these.
    chosen = [o[n][1] for n, o in zip(off, options, strict=True)]
    fixed = (isinstance(getattr(s, "value", None), tuple | list | str) for s in chosen)
    tensors = (s is not None and bool(list_tensors(s)) for s in chosen)
    plain = tuple(0 if f or t else n for f, t, n in zip(fixed, tensors, off, strict=True))
    first, *others = sorted(ranks, key=sum)
    # Third: other weights than the first, those without any gradient.
    other = (1, *first[1:]) if other_first and len(options[0]) > 1 else first
    # And in groups, which not every optimiser takes.
    grouped = (2, *off[1:]) if other_first and len(options[0]) > 2 else off  # noqa: PLR2004 - the third
    apart = _set_apart(options, grouped)
    for combination in (first, apart, other, grouped, off, plain, *others):
        yield tuple(o[i] for o, i in zip(options, combination, strict=True))


def _set_apart(
    options: list[list[tuple[str, Spec | None]]], chosen: tuple[int, ...]
) -> tuple[int, ...]:
    """Return options with another size for each argument: equal ones are taken for each other."""
    seen: set[int] = set()
    found: list[int] = []
    for option, at in zip(options, chosen, strict=True):
        sizes = [getattr(spec, "value", None) for _, spec in option[:_FEW]]
        free = (n for n, s in enumerate(sizes) if type(s) is int and s > 1 and s not in seen)
        taken = type(sizes[at]) is int and sizes[at] in seen
        found.append(next(free, at) if taken else at)
        size = sizes[found[-1]]
        seen |= {size} if type(size) is int and size > 1 else set()
    return tuple(found)


def vary_one(
    options: list[list[tuple[str, Spec | None]]],
) -> Iterator[tuple[tuple[str, Spec | None], ...]]:
    """Yield the likeliest options with one that is less likely than all that are combined."""
    first = tuple(o[0] for o in options)
    for at, option in enumerate(options):
        for other in option[_FEW:]:
            yield (*first[:at], other, *first[at + 1 :])


def tie_classes(
    chosen: dict[str, Spec], counts: Mapping[str, object], weights: Sequence[str]
) -> dict[str, Spec]:
    """Return arguments with as many weights of classes as there are classes."""
    given = {n: getattr(chosen[n], "value", None) if n in chosen else d for n, d in counts.items()}
    count = next((n for n in given.values() if type(n) is int and n > 0), 0)
    tied = {
        name: replace_tensors(chosen[name], lambda t: replace(t, shape=(count,)))
        for name in weights
        if count and name in chosen
    }
    return {**chosen, **tied}
