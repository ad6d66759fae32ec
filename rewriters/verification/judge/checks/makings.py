"""What a changed ``__init__`` makes: it must have run, and its weights start as they did.

Where calls are compared, weights hold numbers that hide nothing, and not those that they start
with: ``nn.init.normal_(weight, std=0.02)`` shows nowhere but here. Nor does whose memory they are.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.coverage import (
    LinesToCover,
    Place,
    find_blocks,
    find_making,
)
from npufix.rewriters.verification.inputs.tracing import read_made, read_ties, trace_making
from npufix.rewriters.verification.judge.checks.refusals import find_running_lines
from npufix.rewriters.verification.verdict import NotVerifiedError, RefutedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.verification.inputs.recipes import Recipe
    from npufix.rewriters.verification.inputs.target import Assignment, Target
    from npufix.rewriters.verification.judge.evidence import Proof

_SEEDS = 8
_SIGMAS = 6.0
_FEW = 64
"""Drawn numbers of which mean and variance say little."""
_CONVERTS = re.compile(r"\.(to|float|half|bfloat16|double|contiguous|reshape|flatten|type_as)\(")
_OTHERWISE = "its weights start with other random numbers, of the same mean and variance"


def require_made(
    run: Proof, original: Target, patched: Target, assignments: Sequence[Assignment]
) -> None:
    """Require that what has changed of ``__init__`` has run, and makes what it made.

    Raises:
        NotVerifiedError: it has not run.
        RefutedError: weights start with something else, or in memory of another.

    """
    job, owner = run.job, run.job.qualname.rpartition(".")[0]
    recipes = list(dict.fromkeys(a.recipe.fresh for a in assignments if a.recipe is not None))
    versions = (
        (original, job.original, job.patched, "original"),
        (patched, job.patched, job.original, "patched text"),
    )
    changed = [find_making(text, other, owner) for _, text, other, _ in versions if owner]
    if not any(changed):
        return
    if run.without_init:
        raise NotVerifiedError("its __init__ has changed, and no object can be made by it here")
    for (target, text, other, which), own, others in zip(
        versions, changed, reversed(changed), strict=True
    ):
        wanted = LinesToCover(
            text,
            target.loaded.filename,
            find_running_lines(text, sorted(own)),
            find_blocks(other, others),
        )
        ran: set[Place] = set()
        for recipe in recipes:
            if wanted.unreached(ran):
                ran |= trace_making(target, recipe)
        if left := wanted.unreached(ran):
            raise NotVerifiedError(
                f"no object was found whose making reaches line {wanted.name(left)} of the {which}"
            )
    for recipe in recipes:
        _compare_weights(run, original, patched, recipe)
        _compare_ties(run, original, patched, recipe)


def _compare_ties(run: Proof, original: Target, patched: Target, recipe: Recipe) -> None:
    """Require that an object shares with its arguments what it shared: a copy is no view.

    Calls are compared with other models than those that objects are made of. Where a conversion
    copies some tensors and is others, nobody counts on either.
    """
    converts = _CONVERTS.search(run.job.original) is not None
    before, after = (read_ties(target, recipe) for target in (original, patched))
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name] and not (converts and before[name]):
            mine, theirs = (
                " and ".join(sorted(ties[name])) or "nothing" for ties in (before, after)
            )
            raise RefutedError(
                f"{name} shares memory with {mine} in the original, with {theirs} in the patched "
                f"code, for an object made with {recipe}",
                why_no_script="no call shows whose memory an object holds",
            )


def _compare_weights(run: Proof, original: Target, patched: Target, recipe: Recipe) -> None:
    before, after = ([read_made(t, recipe, 0)] for t in (original, patched))
    if all(_is_same(value, after[0].get(name)) for name, value in before[0].items()):
        return
    for several, target in ((before, original), (after, patched)):
        several += [read_made(target, recipe, seed) for seed in range(1, _SEEDS)]
    again = read_made(original, recipe, 0)
    for name, value in before[0].items():
        other = after[0].get(name)
        if other is None or value.shape != other.shape or not _is_same(value, again.get(name)):
            continue  # other names are told by ``state_dict``; ``torch.empty`` holds anything
        if _is_same(value, other):
            continue
        mine, theirs = ([made[name].double() for made in several] for several in (before, after))
        drawn = any(not torch.equal(value.double(), one) for one in mine)
        if drawn and _are_alike(torch.stack(mine), torch.stack(theirs)):
            run.notes.append(_OTHERWISE)
            return
        made = f" made with {recipe}" if str(recipe) else ""
        raise RefutedError(
            f"{name} starts with {_describe(mine)} in the original, with {_describe(theirs)} in "
            f"the patched code, for an object{made}",
            why_no_script="no call shows what weights start with",
        )


def _is_same(value: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None or value.shape != other.shape:
        return False
    return torch.allclose(value.double(), other.double(), rtol=1e-5, atol=1e-7, equal_nan=True)


def _are_alike(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Say whether drawn numbers have one mean and one variance, as far as so many can tell."""
    count = mine.numel()
    if count < _FEW:
        return True
    (mean, variance), (other_mean, other_variance) = (
        (float(t.mean()), float(t.var())) for t in (mine, theirs)
    )
    apart = abs(mean - other_mean) > _SIGMAS * math.sqrt((variance + other_variance) / count)
    if not variance or not other_variance:
        return variance == other_variance and not apart
    return not apart and abs(math.log(variance / other_variance)) < _SIGMAS * math.sqrt(4 / count)


def _describe(made: Sequence[torch.Tensor]) -> str:
    """Return the first number of weights, and how far they spread where they are drawn."""
    first = made[0].flatten()[:1]
    words = f"{float(first[0]):.6g}" if first.numel() else "nothing"
    every = torch.stack([*made])
    if torch.equal(every[0], every[-1]):
        return words
    return f"numbers of mean {float(every.mean()):.3g} and deviation {float(every.std()):.3g}"
