"""``npu_rotary_mul``: ``x * cos + rotated(x) * sin`` in float32, rounded once.

``cos`` and ``sin`` are cast to the dtype of ``x`` before, whatever they were.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

import torch

from npufix.rewriters.verification.kernels.common import (
    FLOATING,
    NoReferenceKernelError,
    accept,
    accept_even,
    wide,
)

_Layouts: TypeAlias = Mapping[int, Collection[tuple[bool, ...]]]

_NAME = "npu_rotary_mul"
_LONGEST = 896
_MOST_ROWS = 1000
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
    3: {(True, False), (True, True)},
}
_INTERLEAVE: _Layouts = {4: {(False, False, True), (False, True, False), (True, False, False)}}


def forward(
    input: torch.Tensor,  # noqa: A002 — the name in the operator's schema
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return ``input`` rotated by the angles whose cosine is ``r1`` and sine ``r2``."""
    if rotate is not None:
        raise NoReferenceKernelError("there is no reference kernel for npu_rotary_mul with rotate")
    if any(tensor.dtype not in FLOATING for tensor in (input, r1, r2)):
        raise RuntimeError(f"{_NAME}: no kernel for {input.dtype}, {r1.dtype}, {r2.dtype}")
    _check(input, r1, r2, rotary_mode)
    x, cos, sin = (wide(tensor.to(input.dtype)) for tensor in (input, r1, r2))
    if rotary_mode == "half":
        first, second = x.chunk(2, -1)
        rotated = torch.cat((-second, first), -1)
    else:
        rotated = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return (x * cos + rotated * sin).to(input.dtype)


def _check(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: str) -> None:
    layouts = {"half": _HALF, "interleave": _INTERLEAVE}.get(mode)
    if layouts is None:
        raise RuntimeError(f"{_NAME}: rotary_mode is half or interleave, not {mode!r}")
    accept(_NAME, x.dim() in layouts, f"input has {x.dim()} dimensions, {mode} wants 4")
    accept_even(_NAME, x)
    accept(_NAME, x.shape[-1] < _LONGEST, f"the last dimension is {_LONGEST} or more")
    accept(
        _NAME,
        cos.shape == sin.shape and cos.dim() == x.dim() and cos.shape[-1] == x.shape[-1],
        f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} do not go with {tuple(x.shape)}",
    )
    pairs = list(zip(cos.shape[:-1], x.shape[:-1], strict=True))
    fits = all(own in {1, size} for own, size in pairs)
    # A dimension of one is shared and broadcast at once.
    layout = any(
        all(
            size == 1 or (own == size) == shared
            for (own, size), shared in zip(pairs, known, strict=True)
        )
        for known in layouts[x.dim()]
    )
    accept(
        _NAME,
        fits and layout,
        f"cos {tuple(cos.shape)} does not broadcast to {tuple(x.shape)} as {mode} allows",
    )
    rows = sorted(x.shape[:-1])[:2]
    accept(_NAME, all(size < _MOST_ROWS for size in rows), f"{_MOST_ROWS} or more rows or heads")
