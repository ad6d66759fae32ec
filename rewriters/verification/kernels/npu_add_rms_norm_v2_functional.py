"""``npu_add_rms_norm_v2_functional``: ``npu_add_rms_norm`` with its results in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rewriters.verification.kernels import npu_add_rms_norm

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = "silent"


def forward(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the reciprocal root mean square, the normalised sum and the sum."""
    normalised, rstd, total = npu_add_rms_norm.forward(x1, x2, gamma, epsilon)
    return rstd, normalised, total
