"""What a search has tried: which sorts of arguments work, how those look that do."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.values import NO_CLASS, Spec, Tensor, Value, list_tensors
from npufix.rewriters.verification.inputs.arguments import MASK, is_integral
from npufix.rewriters.verification.inputs.source.training.losses import is_ignored

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from npufix.rewriters.verification.inputs.recipes import Recipe
    from npufix.rewriters.verification.inputs.source.declarations import Declarations
    from npufix.rewriters.verification.inputs.target import Assignment, CallCase, Keeps

_HOPELESS = 16
"""Calls that fail with an argument of one sort, where others of it work."""
_ENDS = 2
"""Of packed sequences, where there is one."""
_MOST_ALIKE = 1
"""That differ from others in plain floating numbers alone: another rank says more."""


@dataclass(slots=True)
class Sorts:
    """Which sorts of arguments the original takes; what fails beside those is left out."""

    works: set[tuple[str, object]] = field(default_factory=set)
    failed: Counter[tuple[str, object]] = field(default_factory=Counter)

    def are_hopeless(self, assignment: Assignment) -> bool:
        """Say whether one of a call's sorts has failed again and again where the others work."""
        return any(self.failed[one] >= _HOPELESS for one in self._unknown(assignment))

    def note(self, assignment: Assignment, *, works: bool) -> None:
        """Remember how a call went; of one in which several sorts are new, nothing is learned."""
        unknown = self._unknown(assignment)
        if works:
            self.works |= unknown
        elif len(unknown) == 1:
            self.failed.update(unknown)

    def _unknown(self, assignment: Assignment) -> set[tuple[str, object]]:
        return {(n, sort_of(s)) for n, s in assignment.specs.items()} - self.works


@dataclass(slots=True)
class Looks:
    """How the assignments look that were kept: what looks like one of them says nothing new."""

    known: set[tuple[object, ...]] = field(default_factory=set)
    sketches: Counter[tuple[object, ...]] = field(default_factory=Counter)

    def say_nothing(self, assignment: Assignment, *, any_sketch: bool) -> bool:
        """Say whether an assignment looks like some that are known."""
        alike = self.sketches[sketch_of(assignment.specs)] > 0
        enough = self.sketches.total() - len(self.sketches) >= _MOST_ALIKE
        return look_of(assignment.specs) in self.known or (alike and enough and not any_sketch)

    def note(self, assignment: Assignment) -> None:
        """Remember how one looks."""
        self.known.add(look_of(assignment.specs))
        self.sketches[sketch_of(assignment.specs)] += 1


def passes(specs: Mapping[str, Spec], values: Mapping[str, object]) -> bool:
    """Say whether arguments are these values, as far as they are named."""
    passed = {name: getattr(spec, "value", None) for name, spec in specs.items()}
    return all(passed.get(name) == value for name, value in values.items())


def is_unlikely(specs: Mapping[str, Spec], known: Mapping[str, Spec] | None = None) -> bool:
    """Say whether a tensor is bool though nothing in its name asks for it, or has no dimension.

    Where one of that sort is ``known`` to be taken, it may be so again.
    """
    sorts = {(n, sort_of(s)) for n, s in (known or {}).items()}
    new = ((n, s) for n, s in specs.items() if (n, sort_of(s)) not in sorts)
    tensors = ((n.lower(), s) for n, s in new if isinstance(s, Tensor))
    return any(not s.shape or (s.kind == "bool" and not re.search(MASK, n)) for n, s in tensors)


def order_likely(
    tried: Iterable[Assignment],
    declared: Declarations,
    recipe: Recipe,
    shapes: Collection[tuple[int, ...]] = (),
) -> Iterator[Assignment]:
    """Yield calls of a method of an object, those of nothing but whole numbers at last.

    ``shapes``: those that tensors have, where they are compared with others.
    """
    whole = {n for n, d in declared.arguments.items() if "int" in d.kinds}
    made = declared.made_with(recipe.arguments)
    integral: list[Assignment] = []
    for one in tried:
        tensors = (t for s in one.specs.values() for t in list_tensors(s))
        if shapes and not all(tensor.shape in shapes for tensor in tensors):
            continue
        unsaid = {n: s for n, s in one.specs.items() if n not in whole}
        if is_unlikely(unsaid):
            continue
        meant = replace(one, specs=made.widen(one.specs))
        if is_integral(unsaid):
            integral.append(meant)
        else:
            yield meant
    yield from integral


def sort_of(spec: Spec) -> object:
    """Return what most decides whether code takes an argument: its kind and dimensions."""
    if isinstance(spec, Tensor):
        return len(spec.shape), spec.kind
    return type(spec.value) if isinstance(spec, Value) else str(spec)


def look_of(specs: Mapping[str, Spec]) -> tuple[object, ...]:
    """Return what makes assignments different enough: ranks, kinds and plain values.

    What can be added to scores is not meant to select, though a bool can be added as well.
    """
    return tuple(
        (len(s.shape), "additive" if s.kind == "bool" else s.kind)
        if isinstance(s, Tensor)
        else str(s)
        for s in specs.values()
    )


def sketch_of(specs: Mapping[str, Spec]) -> tuple[object, ...]:
    """Return how assignments look that may differ in plain floating numbers alone."""
    named = specs.items()
    plain = {n: Value(0.5) if type(getattr(s, "value", None)) is float else s for n, s in named}
    return look_of(plain)


def keeps_both(
    keeps: Keeps, said: Declarations, case: CallCase, dtype: torch.dtype = torch.float32
) -> bool:
    """Say whether a call is within what is declared, and within what the user vouches for."""
    recipe, specs = case.assignment.recipe, case.assignment.specs
    tensors = [t for s in specs.values() for t in list_tensors(s)]
    if any(t.rises and t.kind == "int" and t.shape[0] < _ENDS for t in tensors):
        return False
    # of several whole numbers, those that may be negative are so in a call of their own
    signed = (n for n, s in specs.items() if any(_may_be_negative(t) for t in list_tensors(s)))
    if case.flavour == "negative" and any(said.of(n).below for n in signed):
        return False
    settings = (*specs.items(), *(recipe.arguments if recipe is not None else ()))
    ignored = {s.value for n, s in settings if isinstance(s, Value) and is_ignored(n)}
    if case.flavour == "negative" and ignored and NO_CLASS not in ignored:
        return False  # of labels, only the one that the call names is none
    void = [n for n, s in specs.items() if any(t.void is not None for t in list_tensors(s))]
    if any(said.of(name).below for name in void):
        return False
    made = said if recipe is None else said.made_with(recipe.arguments)
    return made.fits(specs) and keeps(case, dtype)


def _may_be_negative(tensor: Tensor) -> bool:
    return tensor.kind == "int" and not tensor.sound
