"""``npu_rms_norm``: everything in float32, the product with gamma included; one rounding."""

from __future__ import annotations

import torch

from npufix.rewriters.verification.kernels.common import (
    HALF,
    accept,
    accept_dims,
    accept_floating,
    accept_tail,
    chip,
    tail,
    wide,
)

NOT_DIFFERENTIABLE = (1,)
_WITHOUT_MIXED = frozenset({"910A", "310P"})
_LEAST_BYTES = 32


def forward(
    input: torch.Tensor,  # noqa: A002 - the name in the operator's schema
    gamma: torch.Tensor,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normalised tensor and the reciprocal root mean square."""
    check("npu_rms_norm", input, gamma)
    x = wide(input)
    rstd = torch.rsqrt(x.pow(2).mean(tail(gamma), keepdim=True) + epsilon)
    return (x * rstd * gamma.to(x.dtype)).to(input.dtype), rstd


def check(operator: str, x: torch.Tensor, gamma: torch.Tensor) -> None:
    """Refuse what RMSNorm kernels refuse."""
    accept_floating(operator, x, gamma)
    mixed = x.dtype in HALF and gamma.dtype == torch.float32 and chip() not in _WITHOUT_MIXED
    if not (x.dtype == gamma.dtype or mixed):
        raise RuntimeError(
            f"{operator}: no kernel for input {x.dtype} with gamma {gamma.dtype} on {chip()}"
        )
    accept_dims(operator, x, 2, 8)
    accept_tail(operator, x, gamma)
    if chip() == "310P":
        for tensor in (x, gamma):
            accept(
                operator,
                tensor.shape[-1] * tensor.element_size() >= _LEAST_BYTES,
                f"the last dimension has less than {_LEAST_BYTES} bytes, too few on 310P",
            )
