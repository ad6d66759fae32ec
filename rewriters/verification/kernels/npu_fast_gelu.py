"""``npu_fast_gelu``: ``x * sigmoid(1.702 x)``, in float32, rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import accept_dtypes, wide

if TYPE_CHECKING:
    from torch import Tensor


def forward(input: Tensor) -> Tensor:  # noqa: A002 — the name in the operator's schema
    """Return the activation."""
    accept_dtypes("npu_fast_gelu", input)
    x = wide(input)
    return (x * torch.sigmoid(1.702 * x)).to(input.dtype)
