"""Operators that stock torch computes, under another name or in another form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.virtual_npu.operators.autograd import record_gradients
from npufix.rewriters.verification.virtual_npu.operators.dropouts import DROPOUTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor


OPAQUE = frozenset({"aten::max_pool2d_with_indices"})
"""Operators with a result in a form of the device's own: only their backward reads it."""
_POOLS = (
    "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward",
    "max_pool3d_with_indices_backward",
)
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


def _mish_backward(gradient: Tensor, x: Tensor) -> Tensor:
    back: Tensor = torch.ops.aten.mish_backward(gradient, x)
    return back


def _pool_backward(operator: str) -> Callable[..., Tensor]:
    """Return the gradient of a pool whose indices are int32 on the device."""

    def back(gradient: Tensor, x: Tensor, *settings: object) -> Tensor:
        *window, indices = settings
        assert isinstance(indices, torch.Tensor)  # noqa: S101 - by the operators' schemas
        found: Tensor = getattr(torch.ops.aten, operator)(gradient, x, *window, indices.long())
        return found

    return back


TORCH_ONLY: Mapping[str, Callable[..., object]] = {
    **DROPOUTS,
    **{name: _pool_backward(name) for name in _POOLS},
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
    "_npu_dtype_cast": _cast,
    "_npu_dtype_cast_backward": _cast,
    "fast_gelu": lambda x: (x.float() * torch.sigmoid(1.702 * x.float())).to(x.dtype),
    "npu_dtype_cast": _cast,
    "npu_dtype_cast_backward": _cast,
    "npu_linear": F.linear,
    "npu_linear_backward": _linear_backward,
    "npu_mish": F.mish,
    "npu_mish_backward": _mish_backward,
    "npu_silu": F.silu,
    "npu_silu_": lambda x: F.silu(x, inplace=True),
    "npu_silu_backward": lambda gradient, x, _result: torch.ops.aten.silu_backward(gradient, x),
    "repeat_interleave_backward_int": _repeat_interleave_backward,
    "repeat_interleave_backward_tensor": _repeat_interleave_backward,
    "one_": lambda x: x.fill_(1),
}
