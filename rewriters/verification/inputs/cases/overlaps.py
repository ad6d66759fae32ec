"""Calls with boxes that overlap, of which one suppresses or matches another: NMS, anchors, tracks.

Several in turn: what a greedy loop does depends on which box comes first, and on whether one that
is suppressed would have suppressed a third.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.values import Tensor, list_tensors, replace_tensors
from npufix.rewriters.verification.inputs.cases.axes import change_axis
from npufix.rewriters.verification.inputs.target import CallCase

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.verification.inputs.cases.axes import Accepts, Axis
    from npufix.rewriters.verification.inputs.target import Assignment

_ROWS = (12, 7)
"""Boxes of the first argument, and of one beside it that may have another number of them."""
_DRAWS = 8
_PIXELS = 64
"""The size of a box of every other call: ``x2 - x1 + 1`` says nothing of smaller ones."""
_SCORES = re.compile(r"score|conf|prob|quality|objectness")
_EXACT = (torch.float32,)
"""In halves, many boxes overlap by as much as a limit says."""


def list_overlapping(one: Assignment, axes: Sequence[Axis], takes: Accepts) -> Iterator[CallCase]:
    """Yield calls with as many boxes as suppress each other; nothing where there are none."""
    boxes = {n for n, s in one.specs.items() if any(t.kind == "box" for t in list_tensors(s))}
    if not boxes:
        return
    lengths = {n: max(len(t.shape) for t in list_tensors(one.specs[n])) for n in boxes}
    specs, rows = one.specs, iter(_ROWS)
    for axis in axes:
        # the boxes of an image, not the images
        if any(p.name in boxes and p.axis == lengths[p.name] - 2 for p in axis.places):
            specs = change_axis(specs, axis, next(rows, _ROWS[-1]) * axis.step, takes) or specs
    for number in range(_DRAWS):
        size = _PIXELS if number % 2 else 1
        change = partial(_sized, size=size)
        made = {
            n: replace_tensors(s, partial(change, shares=number % 4 > 1 or _is_score(n)))
            for n, s in specs.items()
        }
        if takes(made):
            yield CallCase(replace(one, specs=made), "overlapping", seed=number, dtypes=_EXACT)


def _is_score(name: str) -> bool:
    return _SCORES.search(name.lower()) is not None


def _sized(tensor: Tensor, *, size: int, shares: bool) -> Tensor:
    """Return boxes as large as said, and scores as shares, some of which are nearly equal."""
    if tensor.kind == "box":
        return replace(tensor, high=size)
    row = shares and tensor.kind == "float" and len(tensor.shape) == 1
    return replace(tensor, kind="unit") if row else tensor
