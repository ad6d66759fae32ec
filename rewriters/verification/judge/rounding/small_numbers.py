"""Where small numbers in halves have lost the digits that the original has.

Positions of 500 tokens that are counted in bfloat16 are off by one. Next to a bias of 500 that is
rounding, next to one of 2 it is another bias. A product that is written as a sum of rounded
products is as far off where its terms cancel: but so is the original, if its arguments are moved by
one rounding of their dtype. What no such motion explains is no rounding of anything that the caller
has passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.judge.allowances import (
    CREDIBLE_ULPS,
    NOISES,
    ULPS,
    Further,
    Triple,
    eps_of,
    find_noise,
    make_real,
    max_magnitude,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LEAST = 1e-3
"""Of the largest element: smaller ones are what sums have left of it."""
_HALVES = frozenset({torch.bfloat16, torch.float16})
_MOST = 6
"""Tensors that are asked of: what is counted in halves is off in most calls of many elements."""


def find_lost(
    triples: Iterable[tuple[str, int, Triple, Further | None]],
) -> Iterator[tuple[str, int, Triple, torch.Tensor]]:
    """Yield where results are off by more than any motion of the arguments explains."""
    asked = 0
    for case, size, triple, further in triples:
        lost = _find_coarse(triple) if further is not None and size else None
        if lost is None or not lost.any() or further is None:
            continue
        lost &= ~_find_moved(triple, further)
        if lost.any():
            lost &= ~find_noise(triple, further, lost)
        if lost.any():
            yield case, size, triple, lost
        asked += 1
        if asked >= _MOST:
            return


def _find_coarse(triple: Triple) -> torch.Tensor | None:
    """Return where the original is right to its last digit, and the patched code in none."""
    halves = {triple.original.dtype, triple.patched.dtype} <= _HALVES
    if triple.oracle is None or not halves or triple.what.startswith("gradient of "):
        return None
    left, right = triple.original.double(), triple.patched.double()
    reference, eps = triple.oracle.double(), eps_of(triple.original.dtype)
    finite = left.isfinite() & right.isfinite() & reference.isfinite()
    size, least = reference.abs(), _LEAST * max_magnitude(reference, finite)
    exact = (left - reference).abs() <= ULPS * eps * size
    coarse = (right - reference).abs() > CREDIBLE_ULPS * eps * size
    return finite & exact & coarse & (size > least)


def _find_moved(triple: Triple, further: Further) -> torch.Tensor:
    """Return where the original is as far off, if its arguments are moved by one rounding."""
    assert triple.oracle is not None  # noqa: S101 - nothing is coarse without
    center, right = triple.oracle.double(), triple.patched.double()
    spread = torch.zeros_like(center)
    for seen in further.moved():
        value = seen.tensors.get(triple.what)
        if value is not None and make_real(value).shape == center.shape:
            off = (make_real(value).double() - center).abs()
            spread = spread.maximum(off.nan_to_num(0.0, 0.0, 0.0))
    return (right - center).abs() <= NOISES * spread
