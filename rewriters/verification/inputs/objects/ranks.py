"""In which order the arguments of a class are tried together."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.verification.calls.values import Spec


def combine_by_rank(
    options: list[list[tuple[str, Spec | None]]], *, other_first: bool
) -> Iterator[tuple[tuple[str, Spec | None], ...]]:
    """Yield one option for each argument, the likeliest first; early ones none at its default."""
    ranks = itertools.islice(itertools.product(*(range(min(len(o), 4)) for o in options)), 4096)
    # Second: nothing at its default, so that a forgotten ``eps`` cannot hide behind one that
    # happens to be the operator's own.
    off = tuple(1 if o[0][1] is None and len(o) > 1 else 0 for o in options)
    # A size of several numbers may fit no others, nor a text: then all but these.
    plain = tuple(
        0 if isinstance(getattr(o[n][1], "value", None), tuple | list | str) else n
        for n, o in zip(off, options, strict=True)
    )
    first, *others = sorted(ranks, key=sum)
    # Third: other weights than the first, those without any gradient.
    other = (1, *first[1:]) if other_first and len(options[0]) > 1 else first
    # And in groups, which not every optimiser takes.
    grouped = (2, *off[1:]) if other_first and len(options[0]) > 2 else off  # noqa: PLR2004 - the third
    for combination in (first, grouped, other, off, plain, *others):
        yield tuple(o[i] for o, i in zip(options, combination, strict=True))
