"""A stand-in for mx_driving (Ascend DrivingSDK): fused sum and ReLU, sums over groups, on CPU."""

from __future__ import annotations

import types
from typing import Any

import torch

from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    accept,
    accept_dtypes,
    note_kernel,
)
from npufix.rewriters.verification.reference.scatter_functions import DRIVING

_SMALL = 2_000_000
"""Below so many elements the library adds and cuts off in two operators of torch."""


class _AddRelu(torch.autograd.Function):
    """``relu(x + y)`` with one gradient for both; a large ``x`` is overwritten."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - torch's context
        name = "npu_add_relu"
        note_kernel(name)
        accept_dtypes(name, x, y)
        accept(name, x.shape == y.shape, f"{tuple(x.shape)} is not {tuple(y.shape)}")
        result = torch.relu(x + y) if x.numel() < _SMALL else x.add_(y).relu_()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ANN401 - same
        (result,) = ctx.saved_tensors
        gradient = gradients[0] * (result > 0)
        return gradient, gradient


def _missing(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NoReferenceKernelError(f"there is no reference kernel for mx_driving.{name}")


def modules() -> dict[str, types.ModuleType]:
    """Return the modules of mx_driving that have a stand-in, by dotted name."""
    module = types.ModuleType("mx_driving", "A stand-in by npufix: reference functions on CPU.")
    module.__dict__.update(DRIVING, npu_add_relu=_AddRelu.apply, __getattr__=_missing)
    module.__path__ = []
    return {module.__name__: module}
