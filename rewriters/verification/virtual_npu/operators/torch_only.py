"""Operators that stock torch computes, under another name or in another form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.virtual_npu.operators.autograd import record_gradients
from npufix.rewriters.verification.virtual_npu.operators.random_numbers import draw_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor


OPAQUE = frozenset({"aten::max_pool2d_with_indices"})
"""Operators with a result in a form of the device's own: only their backward reads it."""
_MEAN = 1
_SCALAR_TYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
}
"""c10::ScalarType, which some schemas call int."""
_BITS = 8
_MASK_STEP = 128


def _linear_backward(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    rows = gradient.reshape(-1, gradient.shape[-1])
    return gradient @ weight, rows.t() @ x.reshape(-1, x.shape[-1])


def _cast(x: Tensor, dtype: torch.dtype | int, *_dtypes: object) -> Tensor:
    return x.to(_SCALAR_TYPES[dtype] if isinstance(dtype, int) else dtype)


def _gather_backward(
    gradient: Tensor, size: Sequence[int], dim: int, index: Tensor, *_sparse: bool
) -> Tensor:
    return gradient.new_zeros(list(size)).scatter_add(dim, index, gradient)


def _l1_loss_backward(gradient: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    scale = 1 / x.numel() if reduction == _MEAN else 1.0
    return (x - target).sign() * gradient * scale


def _kl_div_backward(
    gradient: Tensor, x: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False
) -> Tensor:
    scale = 1 / x.numel() if reduction == _MEAN else 1.0
    return -(target.exp() if log_target else target.clamp(min=0)) * gradient * scale


def _bce_with_logits_backward(  # noqa: PLR0913, PLR0917 - the operator's schema
    gradient: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    pos_weight: Tensor | None,
    reduction: int,
) -> Tensor:
    own = x.detach().requires_grad_()

    def differentiate() -> Tensor:
        names = ("none", "mean", "sum")
        loss = F.binary_cross_entropy_with_logits(
            own, target, weight, reduction=names[reduction], pos_weight=pos_weight
        )
        return torch.autograd.grad(loss, own, gradient)[0]

    return record_gradients(differentiate)


def _repeat_interleave_backward(
    gradient: Tensor, x: Tensor, repeats: int | Tensor, dim: int | None = None
) -> Tensor:
    own = x.detach().requires_grad_()
    return record_gradients(
        lambda: torch.autograd.grad(own.repeat_interleave(repeats, dim), own, gradient)[0]
    )


def _log_sigmoid_backward(gradient: Tensor, x: Tensor, _buffer: Tensor) -> Tensor:
    """Make the buffer again that only the host's forward leaves."""
    back: Tensor = torch.ops.aten.log_sigmoid_backward(gradient, x, torch.exp(-x.abs()))
    return back


def _histc(x: Tensor, bins: int = 100, low: float = 0, high: float = 0) -> Tensor:
    """Count as the device does, integers too: ``double`` holds those that are bounds of bins."""
    counted = x if x.is_floating_point() or x.dtype == torch.bool else x.double()
    return torch.histc(counted, bins, low, high)


def _prelu_backward(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    dx, dweight = torch.ops.aten._prelu_kernel_backward(gradient, x, weight)  # noqa: SLF001 - its name
    return dx, dweight.sum_to_size(weight.shape)


def _max_pool2d_backward(gradient: Tensor, x: Tensor, *settings: object) -> Tensor:
    *shape, indices = settings
    assert isinstance(indices, torch.Tensor)  # noqa: S101 - by the operator's schema
    if indices.shape != gradient.shape:
        size = gradient.numel() * torch.int64.itemsize
        indices = indices.flatten().view(torch.uint8)[:size].view(torch.int64)
    back: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
        gradient, x, *shape, indices.reshape(gradient.shape)
    )
    return back


def _dropout(x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:  # noqa: FBT001, FBT002 - the operator's schema
    """Drop as ``native_dropout`` does; the device keeps its mask as bits, padded to 128."""
    kept = _draw_kept(x.numel(), p if train else 0.0)
    scale = 1 / (1 - p) if train and p < 1 else 1.0
    return torch.where(kept.reshape(x.shape), x * scale, 0).to(x.dtype), _as_bits(kept)


def _dropout_backward(gradient: Tensor, mask: Tensor, scale: float) -> Tensor:
    bits = (mask[:, None].int() >> torch.arange(_BITS)) & 1
    kept = bits.flatten()[: gradient.numel()].reshape(gradient.shape).bool()
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


TORCH_ONLY: Mapping[str, Callable[..., object]] = {
    "histc": _histc,
    "log_sigmoid_backward": _log_sigmoid_backward,
    "_prelu_kernel_backward": _prelu_backward,
    "kl_div_backward": _kl_div_backward,
    "l1_loss_backward": _l1_loss_backward,
    "max_pool2d_with_indices_backward": _max_pool2d_backward,
    "npu_binary_cross_entropy_with_logits_backward": _bce_with_logits_backward,
    "npu_format_cast": lambda x, *_format: x.clone(),
    "npu_format_cast_": lambda x, *_format: x,
    "npu_gather_backward": _gather_backward,
    "_npu_dropout": _dropout,
    "_npu_dropout_gen_mask": _dropout_mask,
    "native_dropout": _dropout,
    "native_dropout_backward": _dropout_backward,
    "npu_dropout_backward": lambda gradient, mask, p: _dropout_backward(
        gradient, mask, 1 / (1 - p) if p < 1 else 1.0
    ),
    "_npu_dtype_cast": _cast,
    "_npu_dtype_cast_backward": _cast,
    "fast_gelu": lambda x: (x.float() * torch.sigmoid(1.702 * x.float())).to(x.dtype),
    "npu_dtype_cast": _cast,
    "npu_dtype_cast_backward": _cast,
    "npu_linear": F.linear,
    "npu_linear_backward": _linear_backward,
    "npu_mish": F.mish,
    "npu_silu": F.silu,
    "repeat_interleave_backward_int": _repeat_interleave_backward,
    "repeat_interleave_backward_tensor": _repeat_interleave_backward,
    "one_": lambda x: x.fill_(1),
}
