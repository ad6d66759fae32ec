"""Calls on objects that are made with other numbers and flags: ``gain=0.75`` in place of 1.

``gain * (x + shift)`` is ``gain * x + shift`` as long as the one is 1 or the other 0, which they
are by default. Each setting is another one alone, and all fractions are together.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.observe import CALL_S
from npufix.rewriters.verification.calls.values import (
    MadeArgument,
    Tensor,
    Value,
    replace_tensors,
)
from npufix.rewriters.verification.inputs.cases.together import SHAPED, keep_below
from npufix.rewriters.verification.inputs.objects.offers import vary_weights
from npufix.rewriters.verification.inputs.source.parameters import guess_scalars, list_parameters
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from npufix.rewriters.verification.inputs.cases.trials import Trials
    from npufix.rewriters.verification.inputs.recipes import Recipe
    from npufix.rewriters.verification.inputs.target import Assignment, Target

_MOST = 10
"""Settings that are other ones alone."""
_MOST_RECIPES = 4
"""For which all fractions are others."""
_MOST_ODD = 3
"""For which sizes are others."""
_TINY, _TINY_TIMES = 0.01, 64
_SEEN = 2**-10
"""What only keeps a division possible stays small, and yet shows beside numbers about one: it is
something else outside a root than inside."""


def list_with_settings(assignments: Sequence[Assignment], trials: Trials) -> Iterator[Assignment]:
    """Yield calls on objects of other settings, as far as the original takes them."""
    for number, (one, recipe) in enumerate(_list_made_anew(assignments)[:_MOST_RECIPES]):
        others = _list_others(one, trials)
        fractions = {n: v for n, v in others.items() if type(v) in {float, tuple}}
        alone = [{name: value} for name, value in others.items()][:_MOST]
        tried = [fractions, *(a for a in alone if not number and a != fractions)]
        for values in filter(None, tried):
            made = recipe.made_with(**{n: Value(v) for n, v in values.items()})
            other = replace(one, recipe=made)
            if trials.accepts(other):
                yield other
    changed = (made for one in assignments[:1] for made in islice(list_weight_variants(one), 1))
    yield from (made for made in changed if made not in assignments and trials.accepts(made))


def list_weight_variants(one: Assignment) -> Iterator[Assignment]:
    """Yield the same call with weights of a convolution among those that are trained.

    And with a gradient that is infinite.
    """
    for name, spec in one.specs.items():
        for other in vary_weights(spec):
            yield replace(one, specs={**one.specs, name: other})
    recipe = one.recipe
    if recipe is not None:
        every = ((n, other) for n, s in recipe.arguments for other in vary_weights(s))
        yield from (replace(one, recipe=recipe.made_with(**{n: other})) for n, other in every)


def _list_made_anew(assignments: Sequence[Assignment]) -> list[tuple[Assignment, Recipe]]:
    """Return the first call on each object that a constructor makes, and how."""
    found: list[tuple[Assignment, Recipe]] = []
    for one in assignments:
        known = any(one.recipe == recipe for _, recipe in found)
        if one.recipe is not None and one.recipe.attributes is None and not known:
            found.append((one, one.recipe))
    return found


def list_with_odd_sizes(assignments: Sequence[Assignment], trials: Trials) -> Iterator[Assignment]:
    """Yield calls on objects whose sizes are no powers of two, as far as the original takes them.

    ``2 ** (-8 * head / heads)`` is a number of few digits for 2, 4 and 8 heads alone. A size is
    another one alone, or with what has the same size in the call, or with all sizes of the object.
    """
    for number, (one, recipe) in enumerate(_list_made_anew(assignments)[:_MOST_ODD]):
        sizes = _list_powers_of_two(recipe, trials.target)
        for names in filter(None, [*([n] for n in sizes), list(sizes) if len(sizes) > 1 else []]):
            made = _make_with(recipe, {n: _grow(sizes[n]) for n in names})
            grown = {sizes[n] for n in names}
            specs = {
                name: replace_tensors(spec, lambda t: _with_grown(t, grown))  # noqa: B023 - at once
                for name, spec in one.specs.items()
            }
            ways = (replace(one, recipe=made, specs=s) for s in (one.specs, specs))
            found = next((way for way in ways if trials.accepts(way)), None)
            if found is not None:
                yield found
            if found is not None and number:
                break


def _list_powers_of_two(recipe: Recipe, target: Target) -> dict[str, int]:
    """Return the sizes of an object by the names of its arguments: ``heads``, ``config.heads``."""
    known = target.settings_of(recipe)
    if any(isinstance(spec, MadeArgument) for _, spec in recipe.arguments):
        found = try_call(lambda: recipe.given(target.loaded.find), CALL_S).value
        given = found if isinstance(found, dict) else {}
        try_call(lambda: (target.owner or object)(**given), CALL_S)  # a stand-in is asked by it
        kinds = dict(recipe.arguments)
        for name, value in given.items():
            if isinstance(kinds[name], MadeArgument) and not isinstance(value, torch.nn.Module):
                held = getattr(value, "__dict__", {})
                known |= {f"{name}.{n}": v for n, v in held.items()}
    sizes = {n: v for n, v in known.items() if type(v) is int and SHAPED.search(n)}
    return {n: v for n, v in sizes.items() if v > 1 and not v & (v - 1)}


def _make_with(recipe: Recipe, sizes: Mapping[str, int]) -> Recipe:
    made = recipe.made_with(**{n: Value(v) for n, v in sizes.items() if "." not in n})
    chosen = {**dict(made.chosen), **{n: v for n, v in sizes.items() if "." in n}}
    return replace(made, chosen=tuple(chosen.items()))


def _grow(size: int) -> int:
    """Return half as much again: 3 for 2, 6 for 4, 12 for 8."""
    return size * 3 // 2


def _with_grown(tensor: Tensor, sizes: Collection[int]) -> Tensor:
    shape = tuple(_grow(size) if size in sizes else size for size in tensor.shape)
    return replace(tensor, shape=shape)


def _list_others(one: Assignment, trials: Trials) -> Mapping[str, object]:
    """Return another value for each number and flag that the object of a call is made with."""
    if one.recipe is None:
        return {}
    known = trials.target.settings_of(one.recipe)
    signature = inspect.Signature(list(trials.target.constructor.values()))
    others: dict[str, object] = {}
    for parameter in list_parameters(signature):
        name, value = parameter.name, known.get(parameter.name)
        if SHAPED.search(name):
            continue
        if value is None and parameter.default is None:
            guesses = [s.value for s in guess_scalars(parameter) if isinstance(s, Value)]
            others |= {name: guesses[0]} if guesses else {}
        elif isinstance(value, bool):
            others[name] = not value
        elif isinstance(value, float):
            others[name] = vary_number(value)
        elif isinstance(value, tuple) and value and all(type(v) is float for v in value):
            others[name] = tuple(map(vary_number, value))
        elif type(value) is int and value >= 0:
            # no rank beyond the number of ranks
            whole = {n: v for n, v in known.items() if type(v) is int}
            other = keep_below({**whole, name: value + 1})[name]
            others |= {name: other} if other != value else {}
    return others


def vary_number(value: float) -> float:
    """Return another fraction that may stand in its place: most are shares, or may be."""
    if not value:
        return 0.25
    if abs(value) < _TINY:
        return math.copysign(max(abs(value) * _TINY_TIMES, _SEEN), value)
    return value * 0.75
