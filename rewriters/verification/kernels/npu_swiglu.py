"""``npu_swiglu``: SiLU of the first half times the second, in float32, rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F  # noqa: N812 — the field's name

from npufix.rewriters.verification.kernels.common import accept_dtypes, accept_even, wide

if TYPE_CHECKING:
    from torch import Tensor


def forward(input: Tensor, dim: int = -1) -> Tensor:  # noqa: A002 — the operator's schema
    """Return a tensor with ``dim`` halved."""
    accept_dtypes("npu_swiglu", input)
    accept_even("npu_swiglu", input, dim)
    gate, up = wide(input).chunk(2, dim)
    return (F.silu(gate) * up).to(input.dtype)
