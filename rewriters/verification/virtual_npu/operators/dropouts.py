"""The dropouts of the device, and its masks: of bits padded to 128, or of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.virtual_npu.operators.random_numbers import draw_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

_BITS = 8
_MASK_STEP = 128


def _dropout(x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:  # noqa: FBT001, FBT002 - the operator's schema
    """Drop as ``native_dropout`` does; the device keeps its mask as bits."""
    rate = p if train else 0.0
    kept = _draw_kept(x.numel(), rate)
    return _drop(x, kept, rate), _as_bits(kept)


def _dropout_backward(gradient: Tensor, mask: Tensor, scale: float) -> Tensor:
    kept = _as_kept(mask, gradient.numel()).reshape(gradient.shape)
    return torch.where(kept, gradient * scale, 0).to(gradient.dtype)


def _dropout_mask(
    _x: Tensor,
    size: Sequence[int],
    p: float,
    seed: int,
    offset: int,
    *_schedule: bool,
    **_more_schedule: bool,
) -> Tensor:
    """Draw, as bits, what an operator draws that drops from this seed and offset on."""
    with draw_from((seed, offset)):
        return _as_bits(_draw_kept(torch.Size(size).numel(), p))


def _draw_kept(count: int, p: float) -> Tensor:
    """Draw as ``bernoulli_`` does, of which ``F.dropout_`` and dropout on the host consist."""
    return torch.empty(count).bernoulli_(1 - p).bool()


def _as_bits(kept: Tensor) -> Tensor:
    bits = torch.zeros(-(-kept.numel() // _MASK_STEP) * _MASK_STEP, dtype=torch.uint8)
    bits[: kept.numel()] = kept.flatten()
    return (bits.reshape(-1, _BITS) << torch.arange(_BITS)).sum(-1).to(torch.uint8)


def _with_byte_mask(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    kept = _draw_kept(x.numel(), p)
    return _drop(x, kept, p), kept.to(torch.uint8).reshape(x.shape)


def _with_byte_mask_backward(gradient: Tensor, mask: Tensor, p: float) -> Tensor:
    return _drop(gradient, mask.flatten()[: gradient.numel()].bool(), p)


def _with_add_softmax(
    x: Tensor, x1: Tensor, alpha: float, p: float, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Drop from the softmax of ``x1 + alpha * x``."""
    probabilities = torch.softmax(x1.float() + x.float() * alpha, dim).to(x.dtype)
    kept = _draw_kept(x.numel(), p)
    return kept.to(torch.uint8), probabilities, _drop(probabilities, kept, p)


def _with_add_softmax_backward(  # noqa: PLR0913, PLR0917 - the operator's schema
    gradient: Tensor, mask: Tensor, probabilities: Tensor, alpha: float, p: float, dim: int
) -> tuple[Tensor, Tensor]:
    dropped = _with_byte_mask_backward(gradient, mask, p).float()
    weighted = dropped * probabilities.float()
    inner = weighted - probabilities.float() * weighted.sum(dim, keepdim=True)
    return (inner * alpha).to(gradient.dtype), inner.to(gradient.dtype)


def _drop(x: Tensor, kept: Tensor, p: float) -> Tensor:
    scale = 1 / (1 - p) if p < 1 else 1.0
    return torch.where(kept.reshape(x.shape), x * scale, 0).to(x.dtype)


def _as_kept(mask: Tensor, count: int) -> Tensor:
    return ((mask.flatten()[:, None].int() >> torch.arange(_BITS)) & 1).flatten()[:count].bool()


DROPOUTS: Mapping[str, Callable[..., object]] = {
    "_dropout_with_byte_mask": _with_byte_mask,
    "_dropout_with_byte_mask_backward": _with_byte_mask_backward,
    "dropout_with_byte_mask": lambda x, p, train: _with_byte_mask(x, p)[0] if train else x,
    "_npu_dropout": _dropout,
    "_npu_dropout_gen_mask": _dropout_mask,
    "native_dropout": _dropout,
    "native_dropout_backward": _dropout_backward,
    "npu_dropout_backward": lambda gradient, mask, p: _dropout_backward(
        gradient, mask, 1 / (1 - p) if p < 1 else 1.0
    ),
    "npu_dropout_with_add_softmax": _with_add_softmax,
    "npu_dropout_with_add_softmax_backward": _with_add_softmax_backward,
}
