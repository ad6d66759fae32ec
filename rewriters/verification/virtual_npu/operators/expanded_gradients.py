"""Gradients that the wheel returns in the shape that an operand was broadcast to.

``(2, 1, 5, 3) @ (2, 4, 3, 6)`` gives its left operand a gradient of (2, 4, 5, 3), which autograd
adds up. So these references see what the operator itself returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import torch

from npufix.rewriters.verification.virtual_npu.operators.autograd import record_gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

_MATRIX = 2


def _matmul_backward(
    result: object, gradient: Tensor, left: Tensor, right: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    inputs = _expand((left, right), _results(result, 2))
    found = record_gradients(lambda: torch.autograd.grad(torch.matmul(*inputs), inputs, gradient))
    return tuple(own if want else None for own, want in zip(found, wanted, strict=True))


def _matmul_double_backward(  # noqa: PLR0913, PLR0917 - the operator's schema
    result: object,
    grad_left: Tensor | None,
    grad_right: Tensor | None,
    gradient: Tensor,
    left: Tensor,
    right: Tensor,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Differentiate ``_matmul_backward`` by the gradient and both operands."""
    outer = gradient.detach().requires_grad_()
    results = _results(result, 3)
    inputs = _expand((left, right), results[1:])

    def differentiate() -> tuple[Tensor | None, ...]:
        product = torch.matmul(*inputs)
        first = torch.autograd.grad(product, inputs, outer, create_graph=True)
        used = [
            (own.sum_to_size(given.shape) if own.numel() > given.numel() else own, given)
            for own, given in zip(first, (grad_left, grad_right), strict=True)
            if given is not None
        ]
        return torch.autograd.grad(
            [own.expand(given.shape) for own, given in used],
            [outer, *inputs],
            [given for _, given in used],
            allow_unused=True,
        )

    found = record_gradients(differentiate)
    return tuple(
        own.reshape(like.shape) if want and own is not None and _holds(like, own) else own
        for own, like, want in zip(found, results, wanted, strict=True)
    )


def _holds(result: object, computed: Tensor) -> TypeGuard[Tensor]:
    """Say whether a result has these numbers, if in another shape: a vector's as a matrix."""
    return isinstance(result, torch.Tensor) and result.numel() == computed.numel()


def _cdist_backward(  # noqa: PLR0913, PLR0917 - the operator's schema
    result: object, gradient: Tensor, left: Tensor, right: Tensor, p: float, distances: Tensor
) -> Tensor:
    (left,) = _expand((left,), [result])
    batch = left.shape[:-2]
    right = right.expand(*batch, *right.shape[-2:])
    back: Tensor = torch.ops.aten._cdist_backward(  # noqa: SLF001 - its name
        gradient.contiguous(), left.detach().contiguous(), right.contiguous(), p, distances
    )
    return back


def _results(result: object, count: int) -> list[object]:
    return list(result) if isinstance(result, tuple | list) else [None] * count


def _expand(operands: Sequence[Tensor], gradients: Sequence[object]) -> list[Tensor]:
    """Return each operand in the shape that its gradient has."""
    found = []
    for operand, gradient in zip(operands, gradients, strict=True):
        own = operand.detach()
        if isinstance(gradient, torch.Tensor) and _expands_to(operand, gradient):
            own = own.expand(gradient.shape)
        found.append(own.requires_grad_())
    return found


def _expands_to(operand: Tensor, larger: Tensor) -> bool:
    # A vector gets its gradient as the matrix that the wheel makes of it.
    if larger.numel() == 0 or not _MATRIX <= operand.dim() <= larger.dim():
        return False
    try:
        shape = torch.broadcast_shapes(operand.shape, larger.shape)  # type: ignore[no-untyped-call] # torch does not annotate it
        return bool(shape == larger.shape)
    except RuntimeError:
        return False


EXPANDED: Mapping[str, Callable[..., object]] = {
    "_cdist_backward": _cdist_backward,
    "matmul_backward": _matmul_backward,
    "matmul_double_backward": _matmul_double_backward,
}
"""They take what the operator returned before its arguments."""
