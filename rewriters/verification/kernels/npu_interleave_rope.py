"""``npu_interleave_rope``: pairs become halves, then these are rotated; inference only."""

from __future__ import annotations

import torch

from npufix.rewriters.verification.kernels.common import (
    HALF,
    accept,
    accept_chip,
    accept_dtypes,
    accept_elements,
    wide,
)

BACKWARD = "raises"
_NAME = "npu_interleave_rope"
_DIMS = 4
_WIDTH = 64


def forward(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return ``x`` in halves, rotated by the angles of ``cos`` and ``sin``."""
    accept_chip(_NAME, "A2", "A3", "A5")
    accept_dtypes(_NAME, x, cos, sin)
    if x.dtype not in {*HALF, torch.float64}:
        raise RuntimeError(f"{_NAME}: no kernel for {x.dtype}, only for float16 and bfloat16")
    accept(_NAME, x.dim() == cos.dim() == _DIMS, f"x has {x.dim()} dimensions, not 4")
    accept(_NAME, x.shape[-1] == _WIDTH, f"the last dimension is {x.shape[-1]}, not {_WIDTH}")
    accept_elements(_NAME, x)
    batch, _, length, width = x.shape
    accept(
        _NAME,
        cos.shape == sin.shape and cos.shape in {(batch, 1, s, width) for s in (1, length)},
        f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} do not go with {tuple(x.shape)}",
    )
    first, second = wide(x)[..., ::2], wide(x)[..., 1::2]
    halves = torch.cat((first, second), -1)
    rotated = torch.cat((-second, first), -1)
    return (halves * wide(cos) + rotated * wide(sin)).to(x.dtype)
