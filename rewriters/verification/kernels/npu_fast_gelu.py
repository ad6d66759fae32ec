"""``npu_fast_gelu``: ``x * sigmoid(1.702 x)``, in float32, rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import accept_dims, accept_dtypes, wide

if TYPE_CHECKING:
    from torch import Tensor

SILENT_IN = frozenset(
    {
        *("2.1.0.post17", "2.3.1.post6", "2.4.0", "2.4.0.post4"),
        *("2.5.1.post1", "2.6.0", "2.7.1", "2.8.0"),
    }
)
"""Versions of torch_npu whose wheel has no derivative of it: gradients are lost there."""


def forward(input: Tensor) -> Tensor:  # noqa: A002 - the name in the operator's schema
    """Return the activation."""
    accept_dtypes("npu_fast_gelu", input)
    accept_dims("npu_fast_gelu", input, 0, 8)
    x = wide(input)
    return (x * torch.sigmoid(1.702 * x)).to(input.dtype)
