"""From a call that tells two versions apart to a smaller one that still does."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.device import LIMITS
from npufix.rewriters.verification.calls.values import Tensor, Value, list_dimensions, resize
from npufix.rewriters.verification.judge.difference import Difference, Seen
from npufix.rewriters.verification.judge.judge import Judge
from npufix.rewriters.verification.judge.observe_case import (
    CaseRun,
    drop_far_gradients,
    drop_incomparable,
    gives_nan,
    observe_in_float64,
    observe_original,
    observe_version,
    offer_further_runs,
)
from npufix.rewriters.verification.kernels.common import ShapeRefusedError
from npufix.rewriters.verification.sandbox.remote import spent_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npufix.rewriters.verification.inputs.target import Assignment, CallCase, Target

_SECONDS = 4.0
_MANY_DIGITS = 16
_SIZES = (32, 1, 2, 3, 16)
"""What a size may become; an image is at least two patches wide."""
_REFUSALS = LIMITS | {ShapeRefusedError.__name__}
_CANNOT = r"not implemented for|MemoryError|can't allocate memory|AttributeError: 'StandIn"


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A call, and what it shows."""

    one: CaseRun
    difference: Difference

    @property
    def is_refusal(self) -> bool:
        """Whether one version alone raises: of too few elements, that is not what was found."""
        return self.difference.seen is Seen.ERROR

    @property
    def rank(self) -> tuple[object, ...]:
        """Smallest is the easiest to read."""
        case = self.one.case
        return (
            *self.difference.rank,
            case.flavour != "ordinary",
            self.one.dtype != torch.float32,
            case.digits or _MANY_DIGITS,
        )


@dataclass(frozen=True, slots=True)
class Shrinker:
    """The two versions, and which calls count."""

    original: Target
    patched: Target
    keeps: Callable[[CallCase, torch.dtype], bool]
    inference: bool
    reference: bool
    """Whether reference kernels run, or a device."""
    judge: Judge
    """Of all calls, for their tolerance: what is small shall not be judged more strictly."""

    def smallest(self, first: Counterexample) -> Counterexample:
        """Take whatever makes the call smaller, until nothing does or the time is up."""
        deadline = spent_s() + _SECONDS
        best, better = first, True
        while better:
            better = False
            for case, dtype in _smaller(best.one, self.original):
                if spent_s() > deadline:
                    return best
                found = self.shown(case, dtype, best.one)
                if found is None or found.is_refusal > first.is_refusal:
                    continue
                if found.rank < best.rank:
                    best, better = found, True
                    break
        return best

    def shown(self, case: CallCase, dtype: torch.dtype, like: CaseRun) -> Counterexample | None:
        """Run one call of both; None if they agree or one of them cannot run."""
        one = observe_original(
            self.original,
            case,
            dtype,
            inference=self.inference,
            modes=(like.gradients,),
            second=like.second,
        )
        if one is None or not self.keeps(case, dtype) or gives_nan(one) > gives_nan(like):
            return None
        after = observe_version(self.patched, one)
        if after.kind in _REFUSALS or re.search(_CANNOT, after.error):
            return None
        before, then = (
            drop_incomparable(case, seen, reference=self.reference)
            for seen in (one.original, after)
        )
        before, then = drop_far_gradients(case, before, then)
        judge = Judge()
        oracle = partial(observe_in_float64, self.original, one)
        further = offer_further_runs(self.original, self.patched, one)
        judge.add(
            one.label, case.size, before, then, oracle, further=further, any_numbers=self.reference
        )
        judge.decide(self.judge)
        found = min(judge.differences, key=lambda d: d.rank, default=None)
        return None if found is None else Counterexample(one, found)


def _smaller(one: CaseRun, target: Target) -> Iterator[tuple[CallCase, torch.dtype]]:
    """Yield simpler calls, those that simplify most first."""
    case, dtype = one.case, one.dtype
    if case.flavour != "ordinary":
        yield replace(case, flavour="ordinary"), dtype
    if dtype != torch.float32:
        yield case, torch.float32
    for assignment in _shrunk(case.assignment, target):
        yield replace(case, assignment=assignment), dtype
    for digits in (1, 2, 3):
        if case.digits is None or digits < case.digits:
            yield replace(case, digits=digits), dtype


def _shrunk(assignment: Assignment, target: Target) -> Iterator[Assignment]:
    for old in sorted(list_dimensions(assignment.specs), reverse=True):
        for new in _SIZES:
            if new < old:
                specs = resize(assignment.specs, old, new)
                yield replace(assignment, specs=specs)
                smaller = _with_smaller_object(assignment, target, old, new)
                if smaller != assignment:
                    yield replace(smaller, specs=specs)
    for name, spec in assignment.specs.items():
        if not isinstance(spec, Tensor) or spec.kind == "box":
            continue
        for axis, size in enumerate(spec.shape):
            if size > 1 and spec.shape.count(size) > 1:  # [2, 2]: perhaps of a batch and a length
                shape = (*spec.shape[:axis], 1, *spec.shape[axis + 1 :])
                specs = {**assignment.specs, name: replace(spec, shape=shape)}
                yield replace(assignment, specs=specs)


def _with_smaller_object(assignment: Assignment, target: Target, old: int, new: int) -> Assignment:
    """Make the object for the smaller size as well, if that is one of its arguments.

    So does ``img_size=224`` where it is left out, as the object then asserts images of its size.
    """
    recipe = assignment.recipe
    if recipe is None:
        return assignment
    given = {name: s.value for name, s in recipe.arguments if isinstance(s, Value)}
    sizes = {
        n: Value(new) for n, v in (target.sizes | given).items() if type(v) is int and v == old
    }
    return replace(assignment, recipe=recipe.made_with(**sizes))
