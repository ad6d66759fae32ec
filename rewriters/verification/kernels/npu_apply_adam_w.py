"""``npu_apply_adam_w``: one step of AdamW, in float32, on the tensors that ``out`` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import NoReferenceKernelError, wide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_apply_adam_w"


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: Tensor | None,
    amsgrad: bool | None,  # noqa: FBT001 - the operator's schema
    maximize: bool | None,  # noqa: FBT001 - as above
    out: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new weights and averages; the powers of beta are those of the step before."""
    if len(out) < 3:  # noqa: PLR2004 - weights and two averages
        raise RuntimeError(f"{_NAME}: weights and averages are given by out")
    if amsgrad or max_grad_norm is not None:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} with amsgrad")
    weights, first, second = (wide(tensor) for tensor in out[:3])
    gradient = -wide(grad) if maximize else wide(grad)
    first = first * beta1 + gradient * (1 - beta1)
    second = second * beta2 + gradient * gradient * (1 - beta2)
    scale = torch.sqrt(second / (1 - beta2_power * beta2)) + epsilon
    weights = weights * (1 - lr * weight_decay)
    weights = weights - lr * first / (1 - beta1_power * beta1) / scale
    new = zip((weights, first, second), out, strict=False)
    made = [tensor.to(own.dtype) for tensor, own in new]
    return made[0], made[1], made[2]
