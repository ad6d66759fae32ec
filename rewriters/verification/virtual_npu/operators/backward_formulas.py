"""Backward operators that get saved statistics instead of what the forward operator got.

Written from the definitions; everything in float32, as the kernels do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels import (
    npu_cross_entropy_loss,
    npu_group_norm_swish,
    npu_moe_token_unpermute,
)
from npufix.rewriters.verification.kernels.common import tail
from npufix.rewriters.verification.virtual_npu.operators.autograd import record_gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor


def _rms_norm(dy: Tensor, x: Tensor, gamma: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    dims = tail(gamma)
    normalised = x.float() * rstd
    weighted = dy.float() * gamma.float()
    shared = (weighted * normalised).mean(dims, keepdim=True)
    leading = list(range(x.dim() - gamma.dim()))
    dgamma = dy.float() * normalised
    return (
        ((weighted - normalised * shared) * rstd).to(x.dtype),
        dgamma.sum(leading) if leading else dgamma,
    )


def _add_layer_norm(  # noqa: PLR0913, PLR0917 - the operator's schema
    dy: Tensor | None,
    x1: Tensor,
    x2: Tensor,
    rstd: Tensor,
    mean: Tensor,
    gamma: Tensor,
    dsum: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = x1.float() + x2.float()
    dims = tail(gamma)
    dy = torch.zeros_like(total) if dy is None else dy.float()
    normalised = (total - mean) * rstd
    weighted = dy * gamma.float()
    centred = weighted - weighted.mean(dims, keepdim=True)
    dx = (centred - normalised * (weighted * normalised).mean(dims, keepdim=True)) * rstd
    if dsum is not None:
        dx = dx + dsum.float()
    leading = list(range(total.dim() - gamma.dim()))
    dgamma, dbeta = dy * normalised, dy
    if leading:
        dgamma, dbeta = dgamma.sum(leading), dbeta.sum(leading)
    return dx.to(x1.dtype), dx.to(x2.dtype), dgamma, dbeta


def _scaled_masked_softmax(
    dy: Tensor,
    y: Tensor,
    mask: Tensor,
    scale: float,
    fixed_triu_mask: bool,  # noqa: FBT001, ARG001 - the operator's schema; True was refused
) -> Tensor:
    probability = y.float()
    weighted = dy.float() * probability
    dx = (weighted - probability * weighted.sum(-1, keepdim=True)) * scale
    return dx.masked_fill(mask, 0).to(y.dtype)


def _group_norm_swish(  # noqa: PLR0913, PLR0917 - the operator's schema
    dy: Tensor,
    x: Tensor,
    groups: int,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    wanted: Sequence[bool],  # noqa: ARG001 - all gradients are computed
    swish_scale: float | None = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    npu_group_norm_swish.check_backward(x, groups)
    scale = 1.0 if swish_scale is None else swish_scale
    batch, channels = x.shape[:2]

    def grouped(tensor: Tensor) -> Tensor:
        return tensor.reshape(batch, groups, -1)

    own_rstd = rstd.float().reshape(batch, groups, 1)
    centred = grouped(x.float()) - mean.float().reshape(batch, groups, 1)
    normalised = (centred * own_rstd).reshape(batch, channels, -1)
    y = normalised * weight.float()[:, None] + bias.float()[:, None]
    sigmoid = torch.sigmoid(scale * y)
    inner = dy.float().reshape(y.shape) * sigmoid * (1 + scale * y * (1 - sigmoid))
    weighted = grouped(inner * weight.float()[:, None])
    own = grouped(normalised)
    shared = own * (weighted * own).mean(-1, keepdim=True)
    dx = (weighted - weighted.mean(-1, keepdim=True) - shared) * own_rstd
    return (
        dx.reshape(x.shape).to(x.dtype),
        (inner * normalised).sum((0, 2)).to(weight.dtype),
        inner.sum((0, 2)).to(bias.dtype),
    )


def _cross_entropy_loss(  # noqa: PLR0913, PLR0917 - the operator's schema
    grad_loss: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    grad_zloss: Tensor | None = None,  # noqa: ARG001 - without z-loss, which has no reference
    lse_for_zloss: Tensor | None = None,  # noqa: ARG001 - as above
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,  # noqa: ARG001 - as above
) -> Tensor:
    settings = (reduction, ignore_index, label_smoothing)
    npu_cross_entropy_loss.check_backward(log_prob, target, weight, *settings)
    scores = log_prob.float().detach().requires_grad_()

    def differentiate() -> Tensor:
        loss = torch.nn.functional.cross_entropy(
            scores,
            target,
            weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        )
        return torch.autograd.grad(loss, scores, grad_loss.float().reshape(loss.shape))[0]

    # Scores and their logarithms of probability differ by a constant per row: same gradient.
    return record_gradients(differentiate).to(log_prob.dtype)


def _confusion_transpose(
    gradient: Tensor,
    perm: Sequence[int],
    shape: Sequence[int],
    transpose_first: bool,  # noqa: FBT001 - the operator's schema
) -> Tensor:
    """Go back to ``shape``, which is that of the input."""
    inverse = sorted(range(len(perm)), key=perm.__getitem__)
    if transpose_first:  # here: the forward operator reshaped first
        return gradient.permute(inverse).reshape(list(shape)).contiguous()
    return gradient.reshape([shape[place] for place in perm]).permute(inverse).contiguous()


def _moe_token_permute(  # noqa: PLR0913, PLR0917 - the operator's schema
    gradient: Tensor,
    places: Tensor,
    tokens: int,
    dtype: torch.dtype,
    each: int,  # noqa: ARG001 - follows from the others
    padded: bool = False,  # noqa: FBT001, FBT002, ARG001 - the operator's schema; True was refused
) -> Tensor:
    """Add up the gradients of all copies of a token."""
    kept = places < gradient.shape[0]
    rows = gradient.float()[places.long().clamp(max=max(gradient.shape[0] - 1, 0))]
    rows = rows * kept[:, None]
    return rows.reshape(tokens, -1, gradient.shape[1]).sum(1).to(dtype)


def _moe_token_permute_1(
    tokens: Tensor, gradient: Tensor, indices: Tensor, places: Tensor, *_padded: bool
) -> Tensor:
    each = 1 if indices.dim() == 1 else indices.shape[1]
    return _moe_token_permute(gradient, places, tokens.shape[0], tokens.dtype, each)


def _moe_token_unpermute_1(
    permuted: Tensor, gradient: Tensor, places: Tensor, probs: Tensor | None, *_padded: object
) -> tuple[Tensor, Tensor | None]:
    given = [permuted] if probs is None else [permuted, probs]
    inputs = [tensor.detach().requires_grad_() for tensor in given]

    def differentiate() -> tuple[Tensor, ...]:
        weights = inputs[1] if len(inputs) > 1 else None
        result = npu_moe_token_unpermute.forward(inputs[0], places, weights)
        return torch.autograd.grad(result, inputs, gradient)

    found = record_gradients(differentiate)
    return found[0], found[1] if probs is not None else None


def _moe_token_unpermute(  # noqa: PLR0913, PLR0917 - the operator's schema
    gradient: Tensor,
    places: Tensor,
    count: int,
    dtype: torch.dtype,
    probs: Tensor | None = None,
    padded: bool = False,  # noqa: FBT001, FBT002, ARG001 - the operator's schema; True was refused
    shape: Sequence[int] | None = None,  # noqa: ARG001 - as above
    permuted: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    if permuted is None or permuted.numel() == 0:  # its values do not matter without probs
        permuted = gradient.new_zeros(count, gradient.shape[1], dtype=dtype)
    return _moe_token_unpermute_1(permuted, gradient, places, probs)


FORMULAS: Mapping[str, Callable[..., object]] = {
    "npu_add_layer_norm_backward": _add_layer_norm,
    "npu_confusion_transpose_backward": _confusion_transpose,
    "npu_cross_entropy_loss_backward": _cross_entropy_loss,
    "npu_group_norm_swish_grad": _group_norm_swish,
    "_npu_moe_token_unpermute": lambda x, *more: (npu_moe_token_unpermute.forward(x, *more), x),
    "npu_moe_token_permute_grad": _moe_token_permute_1,
    "npu_moe_token_permute_grad_v2": _moe_token_permute,
    "npu_moe_token_unpermute_grad": _moe_token_unpermute_1,
    "npu_moe_token_unpermute_grad_v2": _moe_token_unpermute,
    "npu_rms_norm_backward": _rms_norm,
    "npu_scaled_masked_softmax_backward": _scaled_masked_softmax,
}
