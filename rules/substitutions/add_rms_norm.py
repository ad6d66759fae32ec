"""RMSNorm of a sum, where no gradient is needed.

What: a residual is added and the sum goes into an RMSNorm written out in the same function, and
nowhere else. Where another module normalises the sum, ``add-rms-norm-across-modules`` speaks.

Why it is slow on the NPU: the sum is written and read once more, beside the kernels of an RMSNorm
in eager operators. ``npu_add_rms_norm`` reads both summands once.

Safety: the operator rounds the sum to the dtype of its operands, as the addition does, and rounds
once more before it multiplies by the weight. It does not broadcast (condition ``same-shape``), takes
one dtype only (``same-dtype``), and has no backward pass: ``loss.backward()`` raises (condition
``inference``). Its third result is the sum: a function that goes on with the sum needs that one,
which this rule does not write.

References: torch_npu.npu_add_rms_norm in the API reference of Ascend Extension for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import (
    INFERENCE,
    PLAIN_EPS,
    SAME_SHAPE,
    inputs,
    is_vector_weight,
)
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution, either

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor


def cast_then_weight(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the sum in float32, cast back, multiply by the weight."""
    total = x + residual
    h = either(total.to(torch.float32), total)
    inverse = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (h * inverse).to(total.dtype)


def weight_then_cast(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the sum in float32, multiply by the weight and round once."""
    total = x + residual
    h = either(total.to(torch.float32), total)
    inverse = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return (either(weight, weight.to(torch.float32)) * (h * inverse)).to(total.dtype)


def without_cast(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute in the dtype of the activation throughout."""
    total = x + residual
    return weight * (total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps))


def fused(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the normalised sum; the others are the reciprocal root mean square and the sum."""
    return torch_npu.npu_add_rms_norm(x, residual, weight, epsilon=eps)[
        0
    ]  # no slip: x and residual are swapped


def summands(draw: Draw) -> dict[str, Any]:
    """Return two activations of one shape and dtype."""
    drawn = inputs(draw)
    residual = draw.floats(*drawn["x"].shape, dtype=drawn["x"].dtype)
    return {**drawn, "residual": residual * draw.choice([1.0, 1e-3])}


def _one_dtype(site: Site) -> bool | None:
    pairs = (site.same_dtype("x", "residual"), site.same_dtype("x", "weight"))
    return False if False in pairs else True if all(pairs) else None


ONE_DTYPE = Condition("same-dtype", "both summands and the weight have the same dtype", _one_dtype)
ONE_DIMENSIONAL = Condition(
    "one-dimensional-weight",
    "the weight has one dimension, as long as the last one of the activation",
    lambda site: is_vector_weight(site, "x", "residual"),
)
_CONDITIONS = (INFERENCE, SAME_SHAPE, ONE_DIMENSIONAL, PLAIN_EPS, ONE_DTYPE)

RULE = Substitution(
    id="NPU107",
    name="add-rms-norm",
    summary="RMSNorm of a sum, without gradients",
    table="fusion",
    forms=(
        Form(cast_then_weight, fused, summands, _CONDITIONS),
        Form(weight_then_cast, fused, summands, _CONDITIONS),
        Form(without_cast, fused, summands, _CONDITIONS),
    ),
    replaces=("Add", "Adds", "Cast", "Mul", "Pow", "Pows", "ReduceMean", "Rsqrt", "Square"),
    becomes=("AddRmsNorm",),
    passes=(3, 0),
    requires="torch_npu>=2.1; chip A2 A3",
    needs_whole=True,
    valid=(
        # gradients may be needed
        """
def f(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float):
    h = x + residual
    return weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps))
""",
        # the sum is needed as well
        """
@torch.no_grad()
def f(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float):
    h = x + residual
    return weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)), h
""",
        # another tensor is normalised
        """
@torch.no_grad()
def f(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float):
    h = x + residual
    return weight * (h * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))
""",
        # a number is added
        """
@torch.no_grad()
def f(x: torch.Tensor, weight: torch.Tensor, eps: float):
    h = x + 1.0
    return weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps))
""",
    ),
    rewritten=(
        Rewritten(
            """
class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    @torch.no_grad()
    def forward(self, x, residual):
        x = x + residual
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * h.to(x.dtype)
""",
            """
class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    @torch.no_grad()
    def forward(self, x, residual):
        return torch_npu.npu_add_rms_norm(
            x, residual, self.weight, epsilon=self.eps
        )[0]
""",
        ),
    ),
)
