"""Calls of plain numbers that are drawn together: ``crop(h=9, w=7, cy=6, cx=2, size=5)``.

``min(cy + size - size // 2, h)`` is another than ``min(cy + size // 2, h)`` only for a size that is
odd and a box that ends within the image: numbers varied one at a time do not come to that. What
names say is kept to: a rank is below the number of ranks, a row below the height.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.verification.calls.values import Several, Value, list_tensors
from npufix.rewriters.verification.inputs.source.parameters import FLOATS, find_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.verification.calls.values import Spec
    from npufix.rewriters.verification.inputs.target import Assignment, Target


_DRAWS = 72
_DRAW_S = 1.0
"""Of processor time, in which the original is asked what it takes."""
_BESIDE = 16
"""Draws beside tensors, each of which costs calls in every dtype."""
_SMALL, _LARGER = 6, 24
"""What half of the draws are at most, which have ties; and the others."""
_QUARTERS = 9
_TINY = 0.01
_MOST_ITEMS = 9
"""Of lists: more than any ``k`` among small numbers."""
_WORDS = ("second", "first", "third")
"""Not in the order of the alphabet, and some of them twice."""
_FROM_ZERO = re.compile(
    r"(^|_)(steps?|epochs?|iter\w*|idx|index|rank|offset|start|begin|pos\w*|shift|pad\w*|overlap"
    r"|warm\w*|extra|i|j|t|[cxy]?[xy]\d?|row|col)(_|$)|_id$|^(lo|low)$"
)
"""Numbers that count from zero; of others, sizes and counts, there is one at least."""
_SAYS_MORE = re.compile(r"(?i)\b(power of|even|odd|multiple|divisible|divides|sorted|rising)\b")
SHAPED = re.compile(r"heads|groups|hidden|d_model|embed|features|channels|(^|_)dims?(_|$)|seed")
"""Sizes that must divide each other, and what nothing but generators read."""
_BELOW = tuple(
    (re.compile(small), re.compile(large), gap)
    for small, large, gap in (
        (r"(^|_)(rank|worker|shard|replica|part|fold|split)(_id|_idx|_index)?$", None, 1),
        (
            r"(^|_)(idx|index|i|j)$|_id$",
            r"^n$|^(n|num|count|total)_|_?(size|length|count)$|world",
            1,
        ),
        (r"^c?y\d?$|^rows?$", r"^(h|height|rows)$", 1),
        (r"^c?x\d?$|^col$", r"^(w|width|cols|columns)$", 1),
        (r"^(axis|dim)$", r"^(ndim|n_?dims?|rank)$", 1),
        (r"warm", r"total|max|steps$|^T$", 0),
        (r"overlap|shared", r"size|window|length|chunk", 1),
        (r"(^|_)(start|begin|lo|low|min\w*)(_|$)", r"(^|_)(end|stop|hi|high|max\w*)(_|$)", 0),
    )
    for large in (
        large or r"world|^(n|num)_|(^|_)(ranks|workers|shards|replicas|parts|folds|splits)$",
    )
)
"""Which numbers are less than which others, or no more: nobody passes the rank 3 of two."""


def draw_together(
    assignments: Sequence[Assignment], target: Target, text: str
) -> Iterator[Assignment]:
    """Yield calls with several numbers, flags and lists of numbers that are others at once.

    Beside tensors only fractions are drawn, which no size depends on: ``a``, ``a_next``, ``eta``.
    What the object of a method is made with is drawn, too. ``text`` is theirs: of what it says more
    than their names do, they are left as they are.
    """
    first = next(iter(assignments), None)
    if first is None or _SAYS_MORE.search(text):
        return
    beside = any(map(list_tensors, first.specs.values()))
    given = _list_plain(first.specs)
    made = {} if beside else _list_settings(first, target)
    if beside:
        given = {n: v for n, v in given.items() if type(v) is float}
    free = {name: value for name, value in (given | made).items() if not SHAPED.search(name)}
    if len(free) + sum(isinstance(v, list | tuple) for v in free.values()) < 2:  # noqa: PLR2004 - together
        return
    source = random.Random(len(free))  # noqa: S311 - nobody is to be surprised
    until = time.process_time() + _DRAW_S
    seen = set[str]()
    for number in range(_BESIDE if beside else _DRAWS):
        if time.process_time() > until:
            return
        drawn = draw_numbers(free, _SMALL if number % 2 else _LARGER, source)
        if str(drawn) in seen:
            continue
        seen.add(str(drawn))
        specs = {**first.specs} | {
            n: _close_list(first.specs[n], v) for n, v in drawn.items() if n in given
        }
        own = {n: Value(v) for n, v in drawn.items() if n in made and n not in given}
        recipe = first.recipe.made_with(**own) if own and first.recipe is not None else first.recipe
        yield replace(first, specs=specs, recipe=recipe)


def _list_plain(specs: Mapping[str, Spec]) -> dict[str, object]:
    values = {n: s.value for n, s in specs.items() if isinstance(s, Value)}
    values |= {n: _open_list(s) for n, s in specs.items() if isinstance(s, Several)}
    return {n: v for n, v in values.items() if _is_drawn(v)}


def _open_list(spec: Several) -> list[object] | None:
    """Return the plain values of a list of any length."""
    plain = [item.value for item in spec.items if isinstance(item, Value)]
    return plain if len(plain) == len(spec.items) and not (spec.keys or spec.each) else None


def _close_list(spec: Spec, drawn: object) -> Spec:
    """Return the same kind of argument with other values."""
    if isinstance(spec, Several) and isinstance(drawn, list):
        return replace(spec, items=tuple(map(Value, drawn)))
    return Value(drawn)


def _list_settings(one: Assignment, target: Target) -> dict[str, object]:
    """Return the whole numbers and flags that the object of a call is made with."""
    recipe = one.recipe
    if recipe is None or recipe.attributes is not None or recipe.history:
        return {}
    return {n: v for n, v in target.settings_of(recipe).items() if type(v) in {int, bool}}


def _is_drawn(value: object) -> bool:
    """Say whether there is something to draw: a number, or a list of nothing but such."""
    if isinstance(value, list | tuple):
        return (
            bool(value)
            and len({*map(type, value)} & {int, float, str}) == len({*map(type, value)}) == 1
        )
    return type(value) in {int, bool, float}


def draw_numbers(
    known: Mapping[str, object], most: int, source: random.Random
) -> dict[str, object]:
    """Return other numbers of these names, some of which are equal or next to each other."""
    drawn: dict[str, object] = {}
    for name, value in known.items():
        if isinstance(value, list | tuple):
            drawn[name] = _draw_list(value, most, source)
        elif isinstance(value, bool):
            drawn[name] = source.random() < 0.5  # noqa: PLR2004 - a fair coin
        elif isinstance(value, float):
            named = bool(find_named(FLOATS, name))  # half of the others are shares as well
            low, high = (8, 7) if named or most == _SMALL else (4, _QUARTERS)
            fixed = named and not _TINY < value < 1 / _TINY  # an epsilon, the base of a rotation
            drawn[name] = value if fixed else source.randint(1, high) / low
        else:
            others = [v for v in drawn.values() if type(v) is int]
            near = source.choice(others) + source.randint(-1, 1) if others else 0
            ties = others and source.random() < 0.25  # noqa: PLR2004 - a quarter of them
            least = 0 if _FROM_ZERO.search(name) else 1
            drawn[name] = max(near if ties else source.randint(least, most), least)
    lengths = {len(v) for v in known.values() if isinstance(v, list | tuple)}
    if len(lengths) == 1:  # ``scores, labels``: one of each for one thing
        count = source.randint(1, _MOST_ITEMS)
        several = {n: v for n, v in known.items() if isinstance(v, list | tuple)}
        drawn |= {n: _draw_list(v, most, source, count) for n, v in several.items()}
    return keep_below(drawn)


def _draw_list(
    value: Sequence[object], most: int, source: random.Random, count: int | None = None
) -> object:
    """Return a list of as many numbers, for a tuple of its own length: a size of an image."""
    length = len(value) if isinstance(value, tuple) else count or source.randint(1, _MOST_ITEMS)
    flags = {*value} <= {0, 1}
    whole = [source.randint(*((0, 1) if flags else (1, most))) for _ in range(length)]
    quarters = [source.randint(0, _QUARTERS) / 4 for _ in range(length)]
    drawn: list[object] = [*(quarters if type(value[0]) is float else whole)]
    if isinstance(value[0], str):
        drawn = [source.choice(_WORDS) for _ in range(length)]
    return type(value)(drawn)  # type: ignore[call-arg] # of a list or a tuple


def keep_below(drawn: dict[str, object]) -> dict[str, object]:
    """Return the same, with each number below those that its name says it is below."""
    for small, large, gap in _BELOW:
        whole = {n: v for n, v in drawn.items() if type(v) is int}
        limits = [v for n, v in whole.items() if large.search(n) and not small.search(n)]
        for name, value in whole.items():
            if small.search(name) and limits:
                most = min(limits) - gap
                drawn[name] = value if value <= most else value % (most + 1) if most >= 0 else 0
    return drawn
