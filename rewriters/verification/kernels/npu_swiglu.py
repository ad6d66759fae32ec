"""``npu_swiglu``: SiLU of the first half times the second, in float32, rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.kernels.common import (
    accept_chip,
    accept_dims,
    accept_dtypes,
    accept_elements,
    accept_even,
    wide,
)

if TYPE_CHECKING:
    from torch import Tensor

_NAME = "npu_swiglu"


def forward(input: Tensor, dim: int = -1) -> Tensor:  # noqa: A002 - the operator's schema
    """Return a tensor with ``dim`` halved."""
    accept_chip(_NAME, "A2", "A3", "A5")
    accept_dtypes(_NAME, input)
    accept_dims(_NAME, input, 1, 8)
    accept_even(_NAME, input, dim)
    accept_elements(_NAME, input)
    gate, up = wide(input).chunk(2, dim)
    return (F.silu(gate) * up).to(input.dtype)
