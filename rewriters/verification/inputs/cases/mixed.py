"""Calls in which dtypes meet: weights beside activations, masks of ones, autocast."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.values import Tensor
from npufix.rewriters.verification.inputs.cases.forms import with_ones
from npufix.rewriters.verification.inputs.cases.trials import with_specs
from npufix.rewriters.verification.inputs.source.declarations import read_declarations
from npufix.rewriters.verification.inputs.source.slicing import find_changed
from npufix.rewriters.verification.inputs.target import Assignment, CallCase

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.match.recorded_call import RecordedCall

_CASTS = re.compile(r"\bdtype\b|\.(?:to|type_as|float|half|bfloat16|double)\(")
_DOUBLES = re.compile(r"\b(float64|double)\b|\bdtype *(==|!=|(not )?in\b|is\b)")
"""How code tells float64 from float32, or halves from both."""
_HALF_TYPES = ("c10::BFloat16", "c10::Half")
_HALVES = (torch.bfloat16,)


def is_mixed(recorded: Sequence[RecordedCall]) -> bool:
    """Say whether the dump shows float32 and half tensors meeting in one operator."""
    return any({"float"} < set(op.types) & {"float", *_HALF_TYPES} for op in recorded)


def list_dtypes(assignment: Assignment, job: Job) -> Iterator[CallCase]:
    """Yield calls in which one tensor is float32 beside half ones, and those under autocast."""
    recipe = assignment.recipe
    asked = job.by_hand and re.search(r"\bself\.\w+\.dtype\b", job.patched)
    casts = job.by_hand and "torch_npu" not in job.patched and any(find_changed(_CASTS, job))
    if recipe is not None and (asked or casts or is_mixed(job.recorded)):
        yield CallCase(assignment, float32_weights=True)
    # Under autocast a product of float32 operands is one of halves.
    outside = {"no-autocast", "single-precision"}.intersection(job.vouched)
    if not outside and re.search(r"\bautocast\b|custom_fwd", job.original + job.patched):
        both = torch.float32, torch.bfloat16
        yield CallCase(assignment, autocast=True, dtypes=both)
        yield CallCase(assignment, autocast=True, float32_weights=True, dtypes=both[1:])
        # Of exact products in halves, the rounding of later ones is to be seen.
        made = None if recipe is None else replace(recipe, coarse=recipe.attributes is None)
        exact = replace(assignment, recipe=made)
        yield CallCase(exact, "few values", autocast=True, dtypes=both[:1])
    named_doubles = _DOUBLES.search(job.original + job.patched)
    if job.by_hand and named_doubles and any(find_changed(_CASTS, job)):
        yield CallCase(assignment, dtypes=(torch.float64,))
    if "torch_npu" in job.patched:
        return  # what an operator makes of two dtypes is its own
    named = assignment.specs.items()
    floating = {n: s for n, s in named if isinstance(s, Tensor) and s.kind in {"float", "unit"}}
    # One in float32 beside halves: a weight; one half beside others: an activation.
    beside = [{n} for n in floating] if len(floating) > 1 else []
    beside += [floating.keys() - {n} for n in floating] if len(floating) > 2 else []  # noqa: PLR2004 - of two, one is the other
    # nobody rounds labels and keeps logits: there, torch computes that loss in halves as well
    declared = read_declarations(job.original, job.qualname, job.assumed)
    labels = {n for n in floating if declared.of(n).use.measured == "share"}
    for names in (each for each in beside if labels <= each):
        wide = {n: replace(floating[n], dtype=torch.float32) for n in names}
        yield CallCase(with_specs(assignment, **wide), dtypes=_HALVES)
    # ``(x * mask).to(x.dtype)``: a mask of ones and zeros may be made in float32.
    before, after = map(len, find_changed(_CASTS, job))
    if job.by_hand and before > after:
        for ones in with_ones(assignment, assignment.specs, torch.float32):
            yield CallCase(ones, dtypes=_HALVES)
