"""``npu_gemma_rms_norm``: RMSNorm with a weight of one plus gamma; for inference only."""

from __future__ import annotations

import torch

from npufix.rewriters.verification.kernels import npu_rms_norm
from npufix.rewriters.verification.kernels.common import tail, wide

BACKWARD = "silent"


def forward(
    input: torch.Tensor,  # noqa: A002 - the name in the operator's schema
    gamma: torch.Tensor,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normalised tensor and the reciprocal root mean square."""
    npu_rms_norm.check("npu_gemma_rms_norm", input, gamma)
    x = wide(input)
    rstd = torch.rsqrt(x.pow(2).mean(tail(gamma), keepdim=True) + epsilon)
    return (x * rstd * (1 + gamma.to(x.dtype))).to(input.dtype), rstd
