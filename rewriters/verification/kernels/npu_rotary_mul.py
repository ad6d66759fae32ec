"""``npu_rotary_mul``: ``x * cos + rotated(x) * sin`` in float32, rounded once.

``cos`` and ``sin`` are cast to the dtype of ``x`` before, whatever they were. With ``rotate``, a
matrix, ``x @ rotate`` takes the place of the rotated ``x``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

import torch

from npufix.rewriters.verification.kernels.common import (
    accept,
    accept_even,
    accept_floating,
    chip,
    wide,
)

_Layouts: TypeAlias = Mapping[int, Collection[tuple[bool, ...]]]

_NAME = "npu_rotary_mul"
_LONGEST = 896
_MOST_ROWS = 1000
_MOST_ROWS_OF_GRADIENT = 1024
_DIMS = 4
# Which leading dimensions cos and sin share with the input, True where they do: the layouts
# BNSD, BSND, SBND and TND; every other one of them broadcasts.
_HALF: _Layouts = {
    4: {
        (False, False, True),
        (True, False, True),
        (True, True, True),
        (False, True, False),
        (True, True, False),
        (True, False, False),
    },
    3: {(True, False), (True, True), (False, False)},
}
_INTERLEAVE: _Layouts = {
    4: {(False, False, True), (False, True, False), (True, False, False)},
    3: {(True, False), (True, True), (False, False)},
}

_MODES = {"half": _HALF, "interleave": _INTERLEAVE}
_OLDER = frozenset({"910A", "310P", "310B"})


def forward(
    input: torch.Tensor,  # noqa: A002 - the name in the operator's schema
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return ``input`` rotated by the angles whose cosine is ``r1`` and sine ``r2``.

    The result is new memory in the order of its dimensions, whatever strides ``input`` has.
    """
    accept_floating(_NAME, input, r1, r2)
    _check(input, r1, r2, rotary_mode)
    x, cos, sin = (wide(tensor.to(input.dtype)) for tensor in (input, r1, r2))
    if rotate is not None:
        accept_floating(_NAME, rotate)
        size = input.shape[-1]
        accept(_NAME, rotate.shape == (size, size), f"rotate is not a {size} x {size} matrix")
        rotated = x @ wide(rotate)
    elif rotary_mode == "half":
        first, second = x.chunk(2, -1)
        rotated = torch.cat((-second, first), -1)
    else:
        rotated = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return (x * cos + rotated * sin).to(input.dtype).contiguous()


def check_backward(
    input: torch.Tensor,  # noqa: A002 - the name in the operator's schema
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> None:
    """Refuse what only the backward kernel refuses."""
    if rotate is not None:
        raise RuntimeError(f"{_NAME}: no gradient with rotate")
    if rotary_mode == "half" and (r1.requires_grad or r2.requires_grad):
        rows = _fewest_rows(input, r1, rotary_mode)
        accept(
            _NAME,
            rows <= _MOST_ROWS_OF_GRADIENT,
            f"batch times heads is {rows}, "
            f"above {_MOST_ROWS_OF_GRADIENT}: too many for the gradient of cos and sin",
        )


def _check(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: str) -> None:
    if mode not in _MODES:
        raise RuntimeError(
            f"The rotary_mode of {_NAME} should be half or interleave, but got {mode}"
        )
    if chip() in _OLDER:
        if mode != "half":
            raise RuntimeError(f"{_NAME}: rotary_mode {mode} has no kernel on {chip()}")
        accept(_NAME, x.dim() == _DIMS, f"input has {x.dim()} dimensions, {chip()} wants 4")
    accept(_NAME, x.dim() in _MODES[mode], f"input has {x.dim()} dimensions, {mode} wants 3 or 4")
    accept_even(_NAME, x)
    accept(_NAME, x.shape[-1] < _LONGEST, f"the last dimension is {_LONGEST} or more")
    accept(
        _NAME,
        cos.shape == sin.shape and cos.dim() == x.dim() and cos.shape[-1] == x.shape[-1],
        f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} do not go with {tuple(x.shape)}",
    )
    accept(
        _NAME,
        bool(_layouts(x, cos, mode)),
        f"cos {tuple(cos.shape)} does not broadcast to {tuple(x.shape)} as {mode} allows",
    )
    if mode == "half":
        rows = sorted(x.shape[:-1])[:2]
        few = all(size < _MOST_ROWS for size in rows)
        accept(_NAME, few, f"{_MOST_ROWS} or more rows or heads")
    else:
        count = _fewest_rows(x, cos, mode)
        few = count < _MOST_ROWS
        accept(_NAME, few, f"batch times heads is {count}, {mode} wants less than {_MOST_ROWS}")


def _layouts(x: torch.Tensor, cos: torch.Tensor, mode: str) -> list[tuple[bool, ...]]:
    """Return the layouts that these shapes may be meant in."""
    pairs = list(zip(cos.shape[:-1], x.shape[:-1], strict=True))
    if any(own not in {1, size} for own, size in pairs):
        return []
    # A dimension of one is shared and broadcast at once.
    return [
        known
        for known in _MODES[mode][x.dim()]
        if all(
            size == 1 or (own == size) == shared
            for (own, size), shared in zip(pairs, known, strict=True)
        )
    ]


def _fewest_rows(x: torch.Tensor, cos: torch.Tensor, mode: str) -> int:
    """Return batch times heads in the layout in which that is least."""
    leading = x.shape[:-1]
    if x.dim() != _DIMS:
        return leading[-1]
    shared = {place for known in _layouts(x, cos, mode) for place in range(3) if known[place]}
    return min(leading.numel() // max(leading[place], 1) for place in shared)
