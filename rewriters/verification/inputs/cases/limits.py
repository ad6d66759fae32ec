"""Calls at the limits of plain numbers and weights, where a change that is nearly right shows."""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.graph.modules.syntax import last_name, parse_once, walk
from npufix.rewriters.verification.calls.observe import CALL_S
from npufix.rewriters.verification.calls.values import (
    Flavour,
    Several,
    Spec,
    Tensor,
    Value,
    list_kinds,
    list_tensors,
    replace_tensors,
    resize,
)
from npufix.rewriters.verification.inputs.cases.trials import with_specs
from npufix.rewriters.verification.inputs.source.parameters import FLOATS, WIDTH, find_named
from npufix.rewriters.verification.inputs.source.slicing import find_changed, find_names_behind
from npufix.rewriters.verification.inputs.source.usage import find_function, read_source
from npufix.rewriters.verification.inputs.target import Assignment, CallCase
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.inputs.recipes import Recipe
    from npufix.rewriters.verification.inputs.target import Target

DRAWS = re.compile(r"\b(?:rand\w*|\w*bernoulli\w*|(?:normal|uniform)_?|multinomial|choices?)\(")
"""Calls that give random numbers."""
_OWN = re.compile(r"\bself\.(\w+)")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?\b(?!\.)")
_WORD = re.compile(r"(?<![\w.])(?:self\.)?([a-z_]\w*)\b(?! *[.(])")
_BENDS = re.compile(
    r"\b(?:clamp|clip|min|max|exp|sigmoid|tanh|softplus|relu|where|round|floor)\w*\b|[<>]"
)
"""What makes something else of large numbers than of small ones."""
_CUTS = re.compile(r"\b(?:clamp|clip|minimum|maximum|hardtanh)\w*\(")
"""What leaves nothing of how far beyond a limit a number is."""
_SHARE = re.compile(r"(?<![\w.])1(?:\.0*)? *- *(?:self\.)?([a-z_]\w*)")
"""Whose rest is taken as well: ``1 - smoothing`` is of a number that is at most 1."""
_EPSILON = re.compile(r"(?<!st)eps")
_ORDERED = (2.0, 0.5)
_HALF = 0.5
_LENGTHS = (7, 2, 5, 3, 6, 1, 4, 4)
_ROOMS = (9, 12, 3)
"""What some of these fill, more than that, and what most of them are beyond."""
_OF_SIGNS = frozenset({"abs", "max", "min", "fabs", "copysign"})
"""What is called with a number that may be negative."""
_STEEP = 8.0
"""Of a weight: its exponential is beyond a hundred, and its sigmoid next to one."""
_MOST_STEEP = 1e4
_BEYOND = 1024.0
_FAR_BEYOND = 1e4
"""Beyond what is cut off for 8 bits (``finfo(float8_e4m3fn).max`` is 448), in every half dtype."""
_MOST_WEIGHTS = 2
_MOST_ONES = 3
_MOST_PAIRS = 6
_MOST_BOUNDS = 6
_ASKS_SPECIAL = re.compile(r"isnan|isinf|isfinite|nan_to_num|nan(sum|mean|median)")
_SPECIAL_SEEDS = 2


def with_orders(assignments: Sequence[Assignment]) -> Iterator[CallCase]:
    """Yield calls in which of two floats each is once the larger one: ``sigma, sigma_next``.

    And of a half a quarter: ``lam`` and ``1 - lam`` are the same of no other number.
    """
    seen: set[tuple[str, str]] = set()
    for one in assignments:
        given = [(n, s.value) for n, s in one.specs.items() if isinstance(s, Value) and s.given]
        floats = [name for name, value in given if type(value) is float]
        halves = [n for n, value in given if value == _HALF and (n, n) not in seen]
        seen.update((name, name) for name in halves)
        yield from (CallCase(with_specs(one, **{n: Value(_HALF / 2)})) for n in halves)
        for pair in itertools.combinations(floats, 2):
            if pair not in seen:
                seen.add(pair)
                for numbers in (_ORDERED, _ORDERED[::-1]):
                    yield CallCase(
                        with_specs(one, **dict(zip(pair, map(Value, numbers), strict=True)))
                    )


def with_signs(assignments: Sequence[Assignment], job: Job) -> Iterator[CallCase]:
    """Yield zero and negative numbers where code asks: ``abs(shift)``, ``max(0, offset)``."""
    asked, cutting = _find_signed(job), _find_cutting(job)
    for one in assignments:
        for name in sorted(cutting & one.specs.keys() - asked):
            value = getattr(one.specs[name], "value", None)
            if type(value) is int and value > 0:
                yield CallCase(with_specs(one, **{name: Value(0)}))
        for name in sorted(asked & one.specs.keys()):
            spec = one.specs[name]
            value = getattr(spec, "value", None)
            if isinstance(spec, Tensor) and spec.kind == "int":
                yield CallCase(with_specs(one, **{name: replace(spec, low=-WIDTH, high=0)}))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                for number in (-value, type(value)(0)):
                    yield CallCase(with_specs(one, **{name: Value(number)}))


def with_far_numbers(assignments: Sequence[Assignment], job: Job) -> Iterator[CallCase]:
    """Yield a number far beyond the others where changed lines cut such off."""
    cuts = any(find_changed(_CUTS, job))
    for one in assignments if cuts else ():
        for name, spec in one.specs.items():
            count = torch.Size(spec.shape).numel() if isinstance(spec, Tensor) else 0
            if isinstance(spec, Tensor) and spec.kind == "float" and count:
                for number in (_FAR_BEYOND, -_FAR_BEYOND):
                    pinned = replace(spec, pinned=(count - 1, number))
                    yield CallCase(with_specs(one, **{name: pinned}))


def with_long_lists(assignments: Sequence[Assignment], target: Target) -> Iterator[CallCase]:
    """Yield longer lists of whole numbers, for code that plans with nothing but such.

    Of the lengths 3 and 5 each has a bin of its own; of eight some fit into two bins that are left.
    """
    said = {p.name: p.annotation for p in target.parameters()}
    for one in assignments[:1]:
        plain = {n: s.value for n, s in one.specs.items() if isinstance(s, Value) and s.given}
        lists = [n for n, v in plain.items() if isinstance(v, tuple | list) and v]
        lists = [n for n in lists if re.search(r"(?i)\b(list|sequence)\[ *int *\]", said[n])]
        if not lists or any(map(list_tensors, one.specs.values())):
            continue
        whole = [n for n, v in plain.items() if type(v) is int]
        made = {name: Value([*_LENGTHS]) for name in lists}
        for number in (None, *_ROOMS) if whole else (None,):
            others = {} if number is None else dict.fromkeys(whole, Value(number))
            yield CallCase(with_specs(one, **made, **others))


def with_negatives(assignment: Assignment) -> Iterator[CallCase]:
    """Yield arguments of which one tensor alone has negative numbers: labels beside classes."""
    specs = assignment.specs
    named = [n for n, s in specs.items() if isinstance(s, Tensor) and s.kind == "int"]
    for name in named if len(named) > 1 else ():
        others = {n: replace(specs[n], sound=True) for n in named if n != name}  # type: ignore[arg-type] # tensors
        wide = replace(specs[name], high=max(3, specs[name].high))  # type: ignore[union-attr,arg-type] # same
        yield CallCase(with_specs(assignment, **others, **{name: wide}), "negative")


def with_special_beside(assignment: Assignment, job: Job) -> Iterator[CallCase]:
    """Yield NaN and Inf in one argument alone, or in one item of it, where code asks for them.

    Scores of which one is NaN, ``scores[~scores.isnan()]``, beside weights of which none is. And
    one of both alone: ``isfinite`` and ``isinf`` agree where there are both.
    """
    specs = assignment.specs
    floats = {n: s for n, s in specs.items() if "float" in list_kinds([s])}
    if not _ASKS_SPECIAL.search(read_source(job.original, job.qualname)):
        return
    alone: tuple[Flavour, ...] = ("NaN", "Inf", "Inf")
    yield from (CallCase(assignment, one, n) for n, one in enumerate(alone) if floats)
    for name, spec in floats.items():
        others = {n: replace_tensors(s, _keep_sound) for n, s in floats.items() if n != name}
        made: list[Spec] = [spec] if others else []
        if isinstance(spec, Several) and len(spec.items) > 1:
            sound = replace_tensors(spec, _keep_sound)
            assert isinstance(sound, Several)  # noqa: S101 - as before
            made.append(replace(spec, items=(spec.items[0], *sound.items[1:])))
        for one in made:
            for seed in range(_SPECIAL_SEEDS):
                yield CallCase(with_specs(assignment, **others, **{name: one}), "NaN and Inf", seed)


def _keep_sound(tensor: Tensor) -> Tensor:
    return replace(tensor, sound=True)


def _find_signed(job: Job) -> set[str]:
    """Return the names whose sign one of both versions asks for, beside nothing but zeros.

    ``max(k, len(x))`` says how large, ``max(k, 0)`` and ``abs(k)`` that it may be below zero.
    """
    found = set[str]()
    for text in (job.original, job.patched):
        function = find_function(parse_once(text), job.qualname)
        for node in walk(function) if function is not None else ():
            if isinstance(node, ast.Call) and last_name(node.func) in _OF_SIGNS:
                names = [a.id for a in node.args if isinstance(a, ast.Name)]
                others = [a for a in node.args if not isinstance(a, ast.Name)]
                signed = last_name(node.func) not in {"max", "min"} or others
                if signed and all(isinstance(a, ast.Constant) and a.value == 0 for a in others):
                    found.update(names)
    return found


def _find_cutting(job: Job) -> set[str]:
    """Return what changed lines cut by: of ``x[a:-b]`` nothing is left for no ``b``."""
    found = set[str]()
    for text, lines in (
        (job.original, job.lines_original),
        (job.patched, job.lines_patched),
    ):
        function = find_function(parse_once(text), job.qualname)
        for node in walk(function) if function is not None else ():
            if isinstance(node, ast.Slice) and node.lineno in lines:
                bounds = [bound for bound in (node.lower, node.upper) if bound is not None]
                found |= {n.id for n in walk(*bounds) if isinstance(n, ast.Name)}
    return found


def at_limits(assignments: Sequence[Assignment], target: Target, job: Job) -> Iterator[CallCase]:
    """Yield calls at the limits of what the changed lines read, the object's own included."""
    yield from _of_compared(assignments, target, job)
    yield from _of_nothing(assignments, target, job)
    yield from _of_bent(assignments[:1], target, job)
    one = next(iter(assignments), None)
    if one is not None and one.recipe is not None and one.recipe.attributes is None:
        yield from _with_ones(one, one.recipe, target, job)
        yield from _with_steep_weights(one, one.recipe, target, job)


def _of_compared(assignments: Sequence[Assignment], target: Target, job: Job) -> Iterator[CallCase]:
    """Yield calls with 0 and 1 for a number that a changed line compares: ``top_p``.

    Of an object, those that its class is made with: that refuses what cannot be. And a half beside
    two equal numbers, of whose softmax the first is as much.
    """
    names = set[str]().union(*_list_compared(job))
    if names:  # ``floor`` of ``probs < floor`` may be ``min_p * probs.amax()``
        behind = find_names_behind(job.original, job.lines_original)
        names |= {n for n in behind if not _EPSILON.search(n)}
    made, divisors = target.constructor, _find_divisors(job)
    around = _around_bounds(job)
    limits = {
        n: (*((0.0, 1.0) if n in names else ()), *around.get(n, ())) for n in names | {*around}
    }
    seen, halved = set[tuple[str, float]](), set[str]()
    for one in assignments:
        own = target.make_object(one.recipe) if limits.keys() & made.keys() else None
        for name in sorted(n for n in limits if n in one.specs or n in made):
            spec = one.specs.get(name)
            number = spec.value if isinstance(spec, Value) else getattr(own, name, None)
            for limit in limits[name] if type(number) is float else ():
                if limit == number or (name, limit) in seen or (name in divisors and not limit):
                    continue
                seen.add((name, limit))
                other = _with_number(one, name, limit)
                yield CallCase(other)
                yield CallCase(other, "few values")
                if name in around:  # what bends at a ratio to it, small numbers tell
                    yield CallCase(other, "tiny rows", dtypes=(torch.float32,))
                if limit == 1:  # of equal scores, each is as large as the largest
                    yield CallCase(other, "zeros", dtypes=(torch.float32,))
            if type(number) is float and name in names and name not in halved:
                halved.add(name)
                every = (t for spec in one.specs.values() for t in list_tensors(spec))
                widths = (t.shape[-1] for t in every if t.kind in {"float", "unit"} and t.shape)
                pairs = replace(one, specs=resize(one.specs, next(widths, 2), 2))
                pairs, few = (_with_number(at, name, _HALF) for at in (pairs, one))
                yield CallCase(pairs, "zeros", dtypes=(torch.float32,))
                yield CallCase(few, "few values", dtypes=(torch.float32,))


def _find_divisors(job: Job) -> set[str]:
    """Return names that numbers are divided by, and that are asked of nothing: no caller passes 0.

    ``torch.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta)``, where ``<=`` is the same.
    """
    function = find_function(parse_once(job.original), job.qualname)
    nodes = [*walk(function)] if function is not None else []
    by = (n.right for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div))
    asked = {
        ast.unparse(n.left)
        for n in nodes
        if isinstance(n, ast.Compare) and isinstance(n.comparators[0], ast.Constant)
    }
    return {getattr(n, "attr", getattr(n, "id", "")) for n in by if ast.unparse(n) not in asked} - {
        ""
    }


def _with_number(one: Assignment, name: str, number: float) -> Assignment:
    """Return the same call with another number of this name, or on an object made with it."""
    if name in one.specs or one.recipe is None:
        return with_specs(one, **{name: Value(number)})
    return replace(one, recipe=one.recipe.made_with(**{name: Value(number)}))


def _list_compared(job: Job, *, none: bool = False) -> tuple[set[str], set[str]]:
    """Return the names in comparisons on changed lines, before and after: ``mass <= 1 - top_p``.

    With ``none`` in those with None alone: ``momentum is not None``. What is drawn is hardly
    ever at a limit: with ``torch.rand_like(x) >= p``, a ``p`` of 1 makes a dropout divide by 0.
    """
    found: list[set[str]] = []
    sides = (job.original, job.lines_original), (job.patched, job.lines_patched)
    for text, lines in sides:
        function = find_function(parse_once(text), job.qualname)
        nodes = (n for n in walk(function) if isinstance(n, ast.Compare)) if function else ()
        asked = [n for n in nodes if n.lineno in lines and (not none or _is_none(n))]
        asked = [n for n in asked if not DRAWS.search(ast.unparse(n))]
        names = (getattr(n, "attr", getattr(n, "id", "")) for n in walk(*asked))
        found.append({*names} - {"", "self"})
    before, after = found
    return before, after


def _is_none(node: ast.Compare) -> bool:
    other = node.comparators[0]
    return isinstance(other, ast.Constant) and other.value is None


def _of_nothing(assignments: Sequence[Assignment], target: Target, job: Job) -> Iterator[CallCase]:
    """Yield calls with 0 or "" where one version asks for None, the other if there is something.

    ``momentum if momentum is not None else 0.1`` is another than ``momentum or 0.1`` for 0 alone.
    """
    before, after = _list_compared(job, none=True)
    seen: set[tuple[str, object]] = set()
    for name in sorted(before ^ after):
        for one in assignments:
            recipe, spec = one.recipe, one.specs.get(name)
            value = spec.value if isinstance(spec, Value) else None
            own = spec is None and recipe is not None and name in target.constructor
            if own and recipe is not None and recipe.attributes is None:
                value = target.settings_of(recipe).get(name)
            if type(value) not in {int, float, str} or (name, value) in seen:
                continue
            seen.add((name, value))
            nothing = Value(type(value)())
            if own and recipe is not None:
                yield CallCase(replace(one, recipe=recipe.made_with(**{name: nothing})))
            else:
                yield CallCase(with_specs(one, **{name: nothing}))


def _around_bounds(job: Job) -> dict[str, tuple[float, ...]]:
    """Return numbers on both sides of those that stand beside a bend that has changed.

    ``max(self.temperature, 1e-2)`` is another than ``self.temperature`` below 0.01 alone.
    """
    before, after = map(sorted, find_changed(_BENDS, job))
    bounds = sorted({float(n) for n in _list_named(_NUMBER, job)}) if before != after else []
    around = [n for bound in bounds if 0 < bound <= _BEYOND for n in (bound / 2, 2 * bound)]
    few, shares = around[:_MOST_BOUNDS], _find_shares(job)
    named = _list_named(_WORD, job)
    return {name: tuple(n for n in few if name not in shares or n <= 1) for name in named}


def _find_shares(job: Job) -> set[str]:
    return set(_SHARE.findall(read_source(job.original, job.qualname)))


def _of_bent(assignments: Sequence[Assignment], target: Target, job: Job) -> Iterator[CallCase]:
    """Yield calls with large numbers of either sign, where a bend has changed.

    ``max(0.0, mu - surprise)`` is another only for a surprise that is large. What a name says of a
    number, as of a rate, is left at that.
    """
    before, after = map(sorted, find_changed(_BENDS, job))
    free = [p for p in target.parameters() if not p.has_default]
    names = {p.name for p in free if not find_named(FLOATS, p.name.lower())} - _find_shares(job)
    for one in assignments if before != after else ():
        for name in sorted(names & one.specs.keys()):
            if type(getattr(one.specs[name], "value", None)) is float:
                for number in (_BEYOND, -_BEYOND):
                    yield CallCase(with_specs(one, **{name: Value(number)}))


def _with_ones(one: Assignment, recipe: Recipe, target: Target, job: Job) -> Iterator[CallCase]:
    """Yield calls on objects made with one of something, where changed lines see what comes of it.

    Of a kernel of one position nothing is left over: ``x[:, :, -self.left:]`` is all of ``x``. What
    is added to the last rows, the rank 0 of two may never see.
    """
    named = _list_named(_OWN, job)
    if job.by_hand:  # those beside the changed lines as well
        named.update(_OWN.findall(read_source(job.original, job.qualname)))
    known = _numbers_of(target.make_object(recipe), named)

    def differs(other: Recipe) -> bool:
        made = try_call(lambda: target.make_object(other), CALL_S).value
        return made is not None and _numbers_of(made, named) != known

    given = target.settings_of(recipe)
    several = {n: v for n, v in given.items() if known and type(v) is int and v >= 0 and v != 1}
    single = (recipe.made_with(**{name: Value(1)}) for name in several)
    yield from itertools.islice(
        (CallCase(replace(one, recipe=r)) for r in single if differs(r)), _MOST_ONES
    )
    if job.by_hand and not any(map(list_tensors, one.specs.values())):
        # of numbers alone much can be asked: five for two ranks, seen by the second
        larger = {n: Value(2 * v + 1) for n, v in several.items()}
        for pair in itertools.islice(itertools.combinations(larger.items(), 2), _MOST_PAIRS):
            other = recipe.made_with(**dict(pair))
            yield from [CallCase(replace(one, recipe=other))] if differs(other) else []


def _numbers_of(made: object, named: Collection[str]) -> dict[str, int]:
    """Return the whole numbers of an object that have these names."""
    held: Mapping[str, object] = getattr(made, "__dict__", {})
    return {n: v for n, v in held.items() if n in named and type(v) is int}


def _with_steep_weights(
    one: Assignment, recipe: Recipe, target: Target, job: Job
) -> Iterator[CallCase]:
    """Yield calls with large weights, where changed lines bend them: ``scale.clamp(max=100)``."""
    made = target.make_object(recipe)
    if not isinstance(made, torch.nn.Module) or not any(find_changed(_BENDS, job)):
        return
    named = _list_named(_OWN, job)
    own = [n for n, w in made.named_parameters(recurse=False) if n in named and w.dim() <= 1]
    numbers = (float(n) + 1 for n in _list_named(_NUMBER, job))
    beyond = sorted(n for n in numbers if _STEEP < n <= _MOST_STEEP)
    for name in own[:_MOST_WEIGHTS]:
        for number in (_STEEP, -_STEEP, *beyond[-1:]):
            steep = replace(recipe, filled=((name, number),))
            yield CallCase(replace(one, recipe=steep), dtypes=(torch.float32,))


def _list_named(pattern: re.Pattern[str], job: Job) -> set[str]:
    """Return what a pattern finds on the changed lines of either version."""
    return {found for side in find_changed(pattern, job) for found in side}
