"""The calls worth comparing, made of arguments under which the original runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rewriters.verification.calls.values import (
    FLAVOURS,
    Flavour,
    Value,
    list_dimensions,
    list_kinds,
    resize,
)
from npufix.rewriters.verification.inputs.target import Assignment, CallCase

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.match.recorded_call import RecordedCall

_HALF_TYPES = ("c10::BFloat16", "c10::Half")
_OTHER_SIZE = 5


def is_mixed(recorded: Sequence[RecordedCall]) -> bool:
    """Say whether the dump shows float32 and half tensors meeting in one operator."""
    return any({"float"} < set(op.types) & {"float", *_HALF_TYPES} for op in recorded)


def generate_cases(assignments: Sequence[Assignment], *, mixed: bool) -> Iterator[CallCase]:
    """Yield the cases worth comparing: values, modes and sizes that tell code apart."""
    for assignment in assignments:
        for seed in range(2):
            yield CallCase(assignment, seed=seed)
    for assignment in assignments:
        if assignment.recipe is not None:
            yield CallCase(assignment, training=False)
            if mixed:
                yield CallCase(assignment, float32_weights=True)
        for flavour in _flavours(assignment):
            yield CallCase(assignment, flavour)
    for assignment in assignments[:3]:
        for old, resized in _resizes(assignment):
            yield CallCase(resized, was=old)


def _flavours(assignment: Assignment) -> Iterator[Flavour]:
    present = list_kinds(assignment.specs.values())
    needs: dict[Flavour, str] = {"negative": "int", "all true": "bool", "all false": "bool"}
    for flavour in FLAVOURS[1:]:
        if flavour in {"zeros", "strided"} or needs.get(flavour, "float") in present:
            yield flavour


def _resizes(assignment: Assignment) -> Iterator[tuple[int | None, Assignment]]:
    """Change one size everywhere it occurs: to one, to nothing, to another, to a square."""
    sizes = list_dimensions(assignment.specs)
    # A dimension of one is structure (a column of labels), not a size.
    for old in (size for size in sizes if size > 1):
        for new in dict.fromkeys((1, _OTHER_SIZE, 0, *sizes)):
            if new != old:
                yield old, Assignment(assignment.recipe, resize(assignment.specs, old, new))
    whole = {n: s for n, s in assignment.specs.items() if isinstance(s, Value)}
    for name, spec in whole.items():
        if type(spec.value) is int and spec.value > 1:
            yield None, Assignment(assignment.recipe, {**assignment.specs, name: Value(1)})
