"""The calls worth comparing, made of arguments under which the original runs."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.graph.modules.syntax import parse_once
from npufix.rewriters.verification.calls.values import (
    FAR,
    FLAVOURS,
    Flavour,
    MadeArgument,
    Several,
    Spec,
    Tensor,
    Value,
    list_dimensions,
    list_kinds,
    list_tensors,
    resize,
)
from npufix.rewriters.verification.inputs.cases.axes import (
    Axis,
    change_axis,
    find_axes,
    list_places,
    make_distinct,
)
from npufix.rewriters.verification.inputs.cases.boundaries import holds_equal, meet_boundaries
from npufix.rewriters.verification.inputs.cases.broadcasts import list_single
from npufix.rewriters.verification.inputs.cases.forms import (
    is_mask,
    is_said_contiguous,
    list_forms,
    list_with_voids,
    with_flags,
)
from npufix.rewriters.verification.inputs.cases.limits import (
    at_limits,
    with_far_numbers,
    with_long_lists,
    with_negatives,
    with_orders,
    with_signs,
    with_special_beside,
)
from npufix.rewriters.verification.inputs.cases.mixed import list_dtypes
from npufix.rewriters.verification.inputs.cases.modes import (
    list_of_chance,
    list_without_gradients,
    sets_modes,
)
from npufix.rewriters.verification.inputs.cases.overlaps import list_overlapping
from npufix.rewriters.verification.inputs.cases.settings import (
    list_with_odd_sizes,
    list_with_settings,
)
from npufix.rewriters.verification.inputs.cases.shared import list_shared
from npufix.rewriters.verification.inputs.cases.thresholds import meet_thresholds
from npufix.rewriters.verification.inputs.cases.together import draw_together
from npufix.rewriters.verification.inputs.cases.trials import Trials, with_specs
from npufix.rewriters.verification.inputs.objects.offers import without_weights
from npufix.rewriters.verification.inputs.source.declarations import read_declarations
from npufix.rewriters.verification.inputs.source.numbers import list_numbers
from npufix.rewriters.verification.inputs.source.several import find_parallel, list_free
from npufix.rewriters.verification.inputs.source.slicing import find_changed
from npufix.rewriters.verification.inputs.source.usage import find_function, read_source
from npufix.rewriters.verification.inputs.target import Assignment, CallCase
from npufix.rewriters.verification.sandbox.remote import runs_with_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.inputs.target import Keeps, Target

_LIMITS = re.compile(
    r"(?<![-<>])[<>]=?(?!>)|[=!]=|\.(?:lt|le|gt|ge|eq|ne)(?:_?\()|//"
    r"|\b(?:floor|ceil|round|trunc|frac|sign|bucketize|searchsorted|histc|heaviside)\w*"
)
"""What makes something else of numbers on both sides of one."""
_SEARCHES = re.compile(r"bucketize|searchsorted")
_EXPONENTS = re.compile(r"exp(?!and)|softmax|logits|entropy|sigmoid")
_IN_FLOAT32 = re.compile(r"\.float\(|\bfloat32\b|\.double\(|\bfloat64\b")
_OTHER_SIZE = 5
_DERIVES = re.compile(r"\.backward\(|\bzero_grad\b|\.grad\b")
"""What changes the gradients that weights have, or asks for them."""
_LONG = 17
"""Longer than all that a call is made of."""
_ODD = (7, 3, 13, 5)
_LENGTHS = (1, 3, 7, 0)
"""Of lists, which have two otherwise."""
_LARGE = (torch.float32, torch.bfloat16)
"""What large inputs are computed in: what else is done in float16 is as in bfloat16."""
_MANY = 512
_MOST_NUMBERS = 3
_MOST_ELEMENTS = 1 << 18
_LARGE_CALL_S = 0.2
"""A call of the original that takes longer is not compared: nine more follow."""
_FAIRLY_LARGE = 600
_LARGE_S = 2.0
"""Of such calls together."""
_FEW_ASSIGNMENTS = 2
_RESIZED = 3
"""So many assignments are tried with other sizes."""
_FEW_CASES = 4
_RARE_SEEDS = 6
"""Of calls of many rows: of 512 pairs, one is within a tolerance of 0.1 by one rule alone."""
_FRACTIONS = frozenset({"float", "unit", "box", "complex", "rotation"})
_SEEDS: dict[Flavour, int] = {"few values": 4, "far below": 2}


def generate_cases(
    assignments: Sequence[Assignment], target: Target, job: Job, keeps: Keeps
) -> Iterator[CallCase]:
    """Yield the cases worth comparing, the most telling first: values, modes, sizes, dtypes.

    ``target`` is the original: what it takes is a case, if it ``keeps`` to what is declared. It is
    asked where it is loaded, for a few cases at a time: the last ones may not be wanted.
    """
    begin_cases(target, tuple(assignments), job, keeps)
    while few := next_cases(target):
        yield from few


_under_way: list[Iterator[CallCase]] = []


@runs_with_target
def begin_cases(target: Target, assignments: Sequence[Assignment], job: Job, keeps: Keeps) -> None:
    """Begin with the cases of a job."""
    cases = _cases(target, assignments, job, keeps)
    if _DERIVES.search(job.original):
        cases = (replace(case, left=case.seed % 2 == 1) for case in cases)
    _under_way[:] = [cases]


@runs_with_target
def next_cases(_target: Target) -> list[CallCase]:
    """Return the next cases, none at the end."""
    return list(itertools.islice(_under_way[0], _FEW_CASES))


def _cases(
    target: Target, assignments: Sequence[Assignment], job: Job, keeps: Keeps
) -> Iterator[CallCase]:
    yield from (CallCase(a, seed=seed) for a in assignments for seed in range(2))
    yield from list_of_chance(assignments[0], job)
    yield from list_without_gradients(assignments, target, job)
    yield from with_orders(assignments)
    yield from with_signs(assignments[:_FEW_ASSIGNMENTS], job)
    yield from with_long_lists(assignments, target)
    if job.by_hand:
        yield from with_far_numbers(assignments[:_FEW_ASSIGNMENTS], job)
        text = read_source(job.original, job.qualname)
        drawn = draw_together(assignments, target, text)
        trials = Trials.of(target, assignments[0])
        yield from filter(keeps, map(CallCase, list_with_odd_sizes(assignments, trials)))
        others = itertools.chain(list_with_settings(assignments, trials), drawn)
        yield from filter(keeps, (CallCase(a, dtypes=_LARGE[:1]) for a in others))
    yield from list_with_voids(assignments, target, job)
    first = assignments[:_FEW_ASSIGNMENTS]
    yield from _of_whole_range(first, job)
    yield from at_limits(assignments, target, job)
    telling = [_Telling(Trials.of(target, assignments[0]), a, job, keeps) for a in first]
    for one in telling:
        yield from list_overlapping(one.distinct, one.axes, one.takes_soon)
        yield from one.list_at_boundaries()
        yield from one.list_independent()
        yield from list_single(one.distinct, one.axes, one.takes_soon, job)
        yield from list_shared(one.trials, one.assignment, job) if job.by_hand else ()
        yield from one.list_forms()
    for one in telling:
        yield from list_dtypes(one.assignment, job)
    for number, assignment in enumerate(assignments):
        recipe = assignment.recipe
        if recipe is not None or sets_modes(assignment, job):
            yield CallCase(assignment, seed=number, training=False)
        if recipe is not None and recipe.history and assignments[0].recipe != recipe:
            continue  # what else may happen to numbers is seen on the fresh object
        yield from _with_values(assignment, job)
        if number < len(telling):
            yield from telling[number].list_around_numbers()
    # Positions beyond 256 are no numbers of ``dtype=torch.bfloat16``.
    low = None if any(map(_is_in_halves, first)) else _find_in_halves(assignments)
    if low is not None and telling[0].trials.accepts(low):
        yield from _Telling(Trials.of(target, low), low, job, keeps).list_around_numbers()
    yield from _resize(assignments, target)


def _with_values(assignment: Assignment, job: Job) -> Iterator[CallCase]:
    """Yield a call with numbers of all kinds: zeros, large ones, few values."""
    for flavour in _flavours(assignment, job):
        most = 2 if flavour == "far from zero" and _loses_digits(job) else 1
        only = _LARGE[:most] if flavour in FAR else ()
        # That numbers meet one is a matter of luck.
        for seed in range(_SEEDS.get(flavour, 1)):
            yield CallCase(assignment, flavour, seed, dtypes=only)
    yield from with_negatives(assignment)
    yield from with_special_beside(assignment, job)


def _of_whole_range(assignments: Sequence[Assignment], job: Job) -> Iterator[CallCase]:
    """Yield calls with whole numbers of all that the text of a function allows, and in order."""
    for one in assignments:
        wide = _widen(one, job)
        yield from (CallCase(wide, seed=n) for n in range(2) if wide != one)
        if "int" in list_kinds(wide.specs.values()):
            yield CallCase(wide, "in order")


def _widen(one: Assignment, job: Job) -> Assignment:
    declared = read_declarations(job.original, job.qualname, job.assumed)
    made = () if one.recipe is None else one.recipe.arguments
    return replace(one, specs=declared.made_with(made).widen(one.specs))


@dataclass(slots=True)
class _Telling:
    """The cases that expose, made of one assignment by trying what the original takes."""

    trials: Trials
    assignment: Assignment
    job: Job
    keeps: Keeps
    """What tells whether a call is one that callers may make."""
    distinct: Assignment = field(init=False)
    """The same with a size of its own for each axis that can have one."""
    axes: list[Axis] = field(init=False)

    def __post_init__(self) -> None:
        """Find the axes."""
        specs = self.assignment.specs
        target, recipe = self.trials.target, self.assignment.recipe
        held = getattr(target.make_object(recipe), "__dict__", {}).values()
        found = find_axes(specs, self._accepts, [v for v in held if type(v) is int and v > 1])
        made, self.axes = make_distinct(specs, found, self._accepts)
        self.distinct = replace(self.assignment, specs=made)

    def _accepts(self, specs: Mapping[str, Spec]) -> bool:
        made = replace(self.assignment, specs=specs)
        return self.keeps(CallCase(made)) and self.trials.accepts(made)

    def list_at_boundaries(self) -> Iterator[CallCase]:
        """Yield calls at which both sides of a comparison that has changed are equal."""
        met = meet_boundaries(self.trials, self.distinct, self.axes, self.job)
        exact = meet_thresholds(self.trials, self.assignment, self.job)
        cases = (CallCase(assignment) for assignment, ran in met if ran)
        yield from filter(self.keeps, itertools.chain(cases, exact))

    def list_independent(self) -> Iterator[CallCase]:
        """Yield sizes that are equal elsewhere as different ones, and one against many."""
        specs = self.distinct.specs
        if specs != self.assignment.specs:
            yield CallCase(self.distinct)
            yield CallCase(self.distinct, seed=1)
        sharing = len(self.axes) > len(set(list_places(self.assignment.specs).values()))
        for axis in self.axes:
            parts = (3 * axis.step,) if axis.step > 1 else ()
            few = (1, 2) if sharing else (1,) * (self.job.by_hand and axis.step == 1)
            for new in (*few, *parts, _LONG * axis.step):
                made = change_axis(specs, axis, new, self._accepts)
                if made is not None and new != axis.size:
                    yield CallCase(replace(self.assignment, specs=made), was=axis.size)
            # Where one odd size is refused, for what another argument is, others may do.
            odd = (change_axis(specs, axis, n, self._accepts) for n in _ODD if axis.step > 1)
            made = next((m for m in odd if m is not None), None)
            if made is not None:
                yield CallCase(replace(self.assignment, specs=made), was=axis.size)
        yield from self._list_many()
        yield from self._list_lengths()
        bare = without_weights(specs)
        recipe = self.assignment.recipe
        own = [s for _, s in recipe.arguments if isinstance(s, MadeArgument)] if recipe else []
        # An average over models, where nothing is put through them, may have nothing to do; unless
        # it is one of the model that its object is made with.
        plain = not own and not list_kinds(specs.values())
        if bare and plain and self._accepts({**specs, **bare}):
            yield CallCase(with_specs(self.distinct, **bare))

    def _list_many(self) -> Iterator[CallCase]:
        """Yield a call of so many rows that some of them show what is rare."""
        for axis in self.axes:
            new = _MANY * axis.step
            made = change_axis(self.distinct.specs, axis, new, self.takes_soon)
            if made is not None:
                many = replace(self.assignment, specs=made)
                seeds = _RARE_SEEDS if any(find_changed(_LIMITS, self.job)) else 1
                for seed in range(seeds):  # 1 is called as 0 is
                    yield CallCase(many, seed=seed + (seed > 0), was=axis.size, dtypes=_LARGE[:1])
                kinds = list_kinds(made.values())
                if kinds & _FRACTIONS and _compares_otherwise(self.job):  # few of them are halves
                    yield CallCase(many, "few values", was=axis.size, dtypes=_LARGE[:1])
                return

    def _list_lengths(self) -> Iterator[CallCase]:
        """Yield lists of other lengths, all or one, dictionaries without a key or turned round."""
        specs = self.distinct.specs
        function = find_function(parse_once(self.job.original), self.job.qualname)
        lists = list_free(specs, find_parallel(function))
        every = [list(lists), *([name] for name in lists)] if len(lists) > 1 else [list(lists)]
        for count in _LENGTHS if lists else ():
            for names in every:
                longer = {
                    n: replace(s, items=(s.items * count)[: count * (s.each or 1)])
                    for n, s in lists.items()
                    if n in names
                }
                if self._accepts({**specs, **longer}):
                    yield CallCase(with_specs(self.distinct, **longer))
                    break
        named = [(n, s) for n, s in specs.items() if isinstance(s, Several) and s.keys]
        other = [(n, s.without(k)) for n, s in named for k in s.keys]
        other += [(n, s.backwards()) for n, s in named if len(s.keys) > 1]
        made = (with_specs(self.distinct, **{n: s}) for n, s in other)
        yield from (CallCase(one) for one in made if self.trials.accepts(one))

    def list_forms(self) -> Iterator[CallCase]:
        """Yield masks and labels of other dtypes that mean the same."""
        source = read_source(self.job.original, self.job.qualname)
        for assignment in list_forms(self.trials, self.distinct, source):
            yield CallCase(assignment)
            specs = assignment.specs.items()
            if any(is_mask(n) for n, s in specs if s != self.distinct.specs.get(n)):
                yield CallCase(assignment, "whole rows", seed=1)

    def list_around_numbers(self) -> Iterator[CallCase]:
        """Yield sizes and values on both sides of the numbers that stand in the code."""
        texts = (self.job.original, self.job.patched)
        numbers = list_numbers(texts, self.job.qualname)
        until = time.process_time() + _LARGE_S
        for number in numbers[:_MOST_NUMBERS]:
            # All at once last: what two numbers are multiplied to may take all the time.
            ways = self._of_values(number), self._of_sizes(number), self._of_all(number)
            for case in itertools.chain.from_iterable(ways):
                if time.process_time() > until:
                    return
                yield case

    def _of_values(self, number: int) -> Iterator[CallCase]:
        for name, spec in self.distinct.specs.items():
            if isinstance(spec, Tensor) and spec.kind == "int":
                for low in (number - 1, number):
                    around = replace(spec, low=low, high=number + 2)
                    made = with_specs(self.distinct, **{name: around})
                    if self.takes_soon(made.specs):
                        yield CallCase(made)

    def _of_sizes(self, number: int) -> Iterator[CallCase]:
        known = {place for axis in self.axes for place in axis.places}
        whole = [p for p in list_places(self.distinct.specs) if p.axis is None and p not in known]
        axes = self.axes + [Axis(frozenset({place}), 0) for place in whole]
        for axis in sorted(axes, key=lambda axis: min(p.axis or 0 for p in axis.places) == 0):
            for new in (number, number + axis.step):
                made = None
                if self._will_take_soon(axis, new):
                    made = change_axis(self.distinct.specs, axis, new, self.takes_soon)
                if made is not None:
                    resized = replace(self.assignment, specs=made)
                    yield CallCase(resized, was=axis.size, dtypes=_LARGE)
                    for flags in with_flags(resized, {p.name for p in axis.places}, self.trials):
                        yield CallCase(flags, "all true", was=axis.size, dtypes=_LARGE)

    def _of_all(self, number: int) -> Iterator[CallCase]:
        """Yield a call with all sizes beyond a number: a table that is short hides positions."""
        specs = self.distinct.specs
        rows_last = sorted(self.axes, key=lambda axis: min(p.axis or 0 for p in axis.places) == 0)
        for n, axis in enumerate(rows_last if len(rows_last) > 1 else ()):
            specs = change_axis(specs, axis, number + (n + 1) * axis.step, self.takes_soon) or specs
        if specs != self.distinct.specs:
            large = replace(self.assignment, specs=specs)
            yield from (CallCase(one, dtypes=_LARGE) for one in (large, _widen(large, self.job)))
            # so many of one: what is counted, as of a class
            if "int" in list_kinds(specs.values()):
                yield CallCase(large, "zeros", dtypes=_LARGE[:1])

    def _will_take_soon(self, axis: Axis, new: int) -> bool:
        """Say whether a large size is worth a try: by how long a smaller one takes."""
        if new <= _FAIRLY_LARGE:
            return True
        smaller = change_axis(self.distinct.specs, axis, _FAIRLY_LARGE, self.takes_soon)
        growth = (new / _FAIRLY_LARGE) ** 2  # as of scores between positions
        return smaller is not None and self.trials.seconds * growth <= _LARGE_CALL_S

    def takes_soon(self, specs: Mapping[str, Spec]) -> bool:
        """Say whether the original takes a large input, and soon enough."""
        every = (tensor for spec in specs.values() for tensor in list_tensors(spec))
        if any(torch.Size(tensor.shape).numel() > _MOST_ELEMENTS for tensor in every):
            return False
        case = CallCase(replace(self.assignment, specs=specs))
        # What no caller passes is left out later: then no larger size would have been tried.
        runs = self.keeps(case) and self.trials.run(case) is not None
        return runs and self.trials.seconds <= _LARGE_CALL_S


def _is_in_halves(assignment: Assignment) -> bool:
    """Say whether a call asks for numbers of few digits by an argument."""
    given = (spec.value for spec in assignment.specs.values() if isinstance(spec, Value))
    return any(value in _LARGE[1:] for value in given if isinstance(value, torch.dtype))


def _find_in_halves(assignments: Sequence[Assignment]) -> Assignment | None:
    """Return a call that asks for numbers of few digits, or one that is made to, if one can be."""
    found = next(filter(_is_in_halves, assignments), None)
    for one in assignments if found is None else ():
        for name, spec in one.specs.items():
            if isinstance(spec, Value) and isinstance(spec.value, torch.dtype):
                return with_specs(one, **{name: Value(_LARGE[1])})
    return found


@runs_with_target
def list_edges(target: Target, assignments: Sequence[Assignment], job: Job) -> list[CallCase]:
    """Return calls with values and sizes at their edges: no rows, all true, zeros."""
    flavoured = [CallCase(a, flavour) for a in assignments for flavour in _flavours(a, job)]
    return [*flavoured, *_resize(assignments, target)]


def _resize(assignments: Sequence[Assignment], target: Target) -> Iterator[CallCase]:
    trials = Trials.of(target, assignments[0]) if target.on_npu and assignments else None
    on_host = trials is not None and not trials.target.on_npu
    later = [a for a in assignments[_RESIZED:] if a.recipe is not None and a.recipe.history]
    for assignment in (*assignments[:_RESIZED], *later):
        for old, other in (
            _resizes(assignment) if assignment not in later else _with_one(assignment)
        ):
            # Of no elements, a device may divide by their number and end the process.
            empty = 0 in list_dimensions(other.specs)
            if empty and on_host and trials is not None and not trials.accepts(other):
                continue
            yield CallCase(other, was=old)


def _compares_otherwise(job: Job) -> bool:
    """Say whether a change is one of what happens to numbers that are equal, or half of one.

    Elsewhere they tell nothing: which of two equal numbers is the largest is for nobody to say.
    """
    before, after = map(Counter, find_changed(_LIMITS, job))
    return before != after or any(map(_SEARCHES.match, before)) or holds_equal(job)


def _loses_digits(job: Job) -> bool:
    """Say whether less is computed in float32: in bfloat16, 64 and 64.2 are the same number."""
    before, after = map(len, find_changed(_IN_FLOAT32, job))
    return before > after and "torch_npu" not in job.patched


def _flavours(assignment: Assignment, job: Job) -> Iterator[Flavour]:
    present = list_kinds(assignment.specs.values())
    flags = bool(present & {"bool", "binary"}) or any(map(is_mask, assignment.specs))
    needs: dict[Flavour, bool] = {
        "negative": "int" in present,
        "all true": flags,
        "all false": flags,
        "whole rows": flags,
        "highest": "int" in present,
        "zeros": True,
        "few values": bool(present & _FRACTIONS) and _compares_otherwise(job),
        "strided": not is_said_contiguous(job),
        "far below": "float" in present and any(find_changed(_EXPONENTS, job)),
    }
    yield from (f for f in FLAVOURS[1:] if needs.get(f, "float" in present))


def _resizes(assignment: Assignment) -> Iterator[tuple[int | None, Assignment]]:
    """Change one size everywhere it occurs: to one, to nothing, to another, to a square."""
    sizes = list_dimensions(assignment.specs)
    # A dimension of one is structure (a column of labels), not a size.
    for old in (size for size in sizes if size > 1):
        for new in dict.fromkeys((1, _OTHER_SIZE, 0, *sizes)):
            if new != old:
                yield old, Assignment(assignment.recipe, resize(assignment.specs, old, new))
    yield from _with_one(assignment)


def _with_one(assignment: Assignment) -> Iterator[tuple[None, Assignment]]:
    """Make one whole number one."""
    for name, spec in assignment.specs.items():
        if isinstance(spec, Value) and type(spec.value) is int and spec.value > 1:
            yield None, Assignment(assignment.recipe, {**assignment.specs, name: Value(1)})
