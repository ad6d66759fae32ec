"""What ``npu_rms_norm`` computes, by its published contract.

Everything in float32, the multiplication with gamma included, and one rounding at the end.
"""

from __future__ import annotations

from typing import Any

import torch

from npufix.rewriters.verification.npu_operators import ShapeRefusedError

_HALF = (torch.float16, torch.bfloat16)
_MOST_DIMS = 8


def forward(
    input: torch.Tensor,  # noqa: A002 — the name in the operator's schema
    gamma: torch.Tensor,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normalised tensor and the reciprocal root mean square."""
    _check(input, gamma)
    wide = _wide(input)
    dims = _dims(gamma)
    rstd = torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + epsilon)
    return (wide * rstd * gamma.to(wide.dtype)).to(input.dtype), rstd


def saved(ctx: Any, arguments: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:  # noqa: ANN401
    """Keep what ``backward`` needs; the second output has no gradient on the device either."""
    ctx.save_for_backward(arguments[0], arguments[1], outputs[1])
    ctx.mark_non_differentiable(outputs[1])


def backward(
    ctx: Any,  # noqa: ANN401 — torch's own
    gradient: torch.Tensor,
    _rstd: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, None]:
    """Return the gradients of input, gamma and epsilon."""
    x, gamma, rstd = ctx.saved_tensors
    wide, upstream = _wide(x), gradient.to(rstd.dtype)
    normalised = wide * rstd
    scaled = upstream * gamma.to(rstd.dtype)
    mean = (scaled * normalised).mean(_dims(gamma), keepdim=True)
    of_x = rstd * (scaled - normalised * mean)
    of_gamma = (upstream * normalised).reshape(-1, *gamma.shape).sum(0)
    return of_x.to(x.dtype), of_gamma.to(gamma.dtype), None


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _dims(gamma: torch.Tensor) -> list[int]:
    return list(range(-gamma.dim(), 0))


def _check(x: torch.Tensor, gamma: torch.Tensor) -> None:
    if not x.is_floating_point() or not (
        x.dtype == gamma.dtype or (x.dtype in _HALF and gamma.dtype == torch.float32)
    ):
        raise RuntimeError(f"npu_rms_norm: no kernel for input {x.dtype} with gamma {gamma.dtype}")
    if not 1 <= x.dim() <= _MOST_DIMS:
        raise ShapeRefusedError(
            f"npu_rms_norm: input has {x.dim()} dimensions, 1 to 8 are supported"
        )
    if not 1 <= gamma.dim() <= x.dim() or x.shape[x.dim() - gamma.dim() :] != gamma.shape:
        raise ShapeRefusedError(
            f"npu_rms_norm: gamma {tuple(gamma.shape)} is not the tail of input {tuple(x.shape)}"
        )
