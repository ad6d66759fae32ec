"""Calls in other modes: in evaluation, under ``no_grad``, with very many random numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.values import MadeArgument
from npufix.rewriters.verification.inputs.cases.limits import DRAWS
from npufix.rewriters.verification.inputs.source.slicing import find_changed
from npufix.rewriters.verification.inputs.source.usage import read_source
from npufix.rewriters.verification.inputs.target import Assignment, CallCase

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.inputs.target import Target

ASKS_GRADIENTS = re.compile(r"\bis_(grad|inference_mode)_enabled\b|\.requires_grad\b")
"""What code that does something else under ``no_grad`` asks."""
_DROPS = re.compile(r"\btraining\b|dropout")
_MODES = r"\.training\b|\.(train|eval)\("
_DRAWN_SEEDS = range(2, 66)
"""Of a coin that is fair and one that is not quite, few draws differ."""
_FLOAT32 = (torch.float32,)


def list_of_chance(one: Assignment, job: Job) -> Iterator[CallCase]:
    """Yield calls of code that draws numbers: in evaluation, and with very many other ones."""
    # a large model leaves no time for it at the end
    if any(find_changed(_DROPS, job)) and one.recipe is not None:
        yield CallCase(one, training=False)
    if job.by_hand and DRAWS.search(read_source(job.original, job.qualname)):
        yield from (CallCase(one, seed=n, dtypes=_FLOAT32) for n in _DRAWN_SEEDS)


def list_without_gradients(
    assignments: Sequence[Assignment], target: Target, job: Job
) -> Iterator[CallCase]:
    """Yield calls as under ``no_grad``: of code that asks in both modes, of others in evaluation.

    An observer may take down ranges ``if self.training or not torch.is_grad_enabled()``.
    """
    asks = ASKS_GRADIENTS.search(job.original + job.patched) is not None
    modes = (True, False) if asks and target.has_modes else (not target.has_modes,)
    for one in assignments if asks else assignments[: target.has_modes]:
        for training in modes:
            yield CallCase(one, training=training, without_gradients=True, dtypes=_FLOAT32)


def sets_modes(assignment: Assignment, job: Job) -> bool:
    """Say whether code trains or evaluates a model that it is given."""
    given = any(isinstance(s, MadeArgument) for s in assignment.specs.values())
    return given and re.search(_MODES, job.original) is not None
