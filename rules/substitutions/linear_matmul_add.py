"""A linear layer that runs as a matrix product and an addition.

What: ``x @ weight.t() + bias`` or ``x @ weight + bias`` written by hand, ``F.linear`` without a bias
that is added afterwards, or ``F.linear`` on a view that is not contiguous.

Why it is slow on the NPU: MatMul writes its result, and Add reads it, adds the bias and writes it
again. ``addmm`` adds the bias where the product is made.

Not every Linear is worth it: on current versions ``F.linear`` on a matrix already is ``addmm``, and
torch_npu's own ``npu_linear`` is the same operator. So this is reported only where the profile shows
MatMul *and* Add at that line.

Safety: the bias is added before the result is rounded instead of after. ``x`` must be a matrix and
the bias one number per column (conditions ``matrix-input``, ``vector-bias``).

References: case "affinity operator optimisation" (Linear) of the MindStudio guide; torch.addmm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import (
    Condition,
    Draw,
    Form,
    Rewritten,
    Site,
    Substitution,
    all_hold,
)

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

_MATRIX = 2


def by_hand(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Multiply, then add."""
    return x @ weight.t() + bias


def by_hand_transposed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Multiply, then add."""
    return x @ weight.transpose(0, 1) + bias


def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Multiply by a weight that is not transposed, then add."""
    return x @ weight + bias


def linear_then_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Call the library's linear layer without the bias, then add it."""
    return F.linear(x, weight) + bias


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Call the library's linear layer."""
    return F.linear(x, weight, bias)


def addmm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Add where the product is made."""
    return torch.addmm(bias, x, weight.t())


def addmm_product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Add where the product is made."""
    return torch.addmm(bias, x, weight)


def product_inputs(draw: Draw) -> dict[str, Any]:
    """Return a matrix, a weight that is not transposed and a bias."""
    given = inputs(draw)
    return {"x": given["x"], "weight": given["weight"].t(), "bias": given["bias"]}


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a matrix, a weight and a bias."""
    import torch

    rows, depth, columns = draw.integer(1, 5), draw.integer(1, 6), draw.integer(1, 4)
    dtype = draw.choice([torch.float32, torch.bfloat16])
    return {
        "x": draw.floats(rows, depth, dtype=dtype),
        "weight": draw.floats(columns, depth, dtype=dtype),
        "bias": draw.floats(columns, dtype=dtype),
    }


def _are_matrices(site: Site) -> bool | None:
    ranks = site.ndim("x"), site.ndim("weight")
    return all_hold(None if rank is None else rank == _MATRIX for rank in ranks)


def _is_row(site: Site) -> bool | None:
    return _has_length(site, 0)


def _is_column_count(site: Site) -> bool | None:
    return _has_length(site, 1)


def _has_length(site: Site, dim: int) -> bool | None:
    ndim = site.ndim("bias")
    if site.is_tensor("bias") is False or ndim not in {None, 1}:
        return False
    length, columns = site.size("bias", 0), site.size("weight", dim)
    if ndim is None or length is None or columns is None:
        return None
    return length == columns


def _one_dtype(site: Site) -> bool | None:
    return all_hold([site.same_dtype("x", "weight"), site.same_dtype("weight", "bias")])


MATRICES = Condition("matrix-input", "the input and the weight are matrices", _are_matrices)
# Under autocast the product is in half precision and the bias added in float32.
ONE_DTYPE = Condition("same-dtype", "input, weight and bias have the same dtype", _one_dtype)
CONDITIONS = (
    MATRICES,
    Condition("vector-bias", "the bias has one number per column of the product", _is_row),
    ONE_DTYPE,
)
PRODUCT = (
    MATRICES,
    Condition("vector-bias", "the bias has one number per column of the product", _is_column_count),
    ONE_DTYPE,
)

RULE = Substitution(
    id="NPU205",
    name="linear-as-matmul-and-add",
    summary="a linear layer that runs as MatMul and Add",
    table="affinity",
    forms=(
        Form(by_hand, addmm, inputs, CONDITIONS),
        Form(by_hand_transposed, addmm, inputs, CONDITIONS),
        Form(linear, addmm, inputs, CONDITIONS),
        Form(linear_then_bias, addmm, inputs, CONDITIONS),
        Form(product, addmm_product, product_inputs, PRODUCT),
    ),
    replaces=("Add", "BatchMatMul", "BatchMatMulV2", "MatMul", "MatMulV2", "MatMulV3"),
    becomes=("MatMulV2", "MatMulV3"),
    passes=(0, 0),
    requires="torch_npu>=2.1",
    launches_together=(
        ("MatMul", "MatMulV2", "MatMulV3", "BatchMatMul", "BatchMatMulV2"),
        ("Add", "Adds", "Axpy"),
    ),
    valid=(
        # a residual, not a bias
        """
def f(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor):
    n, d = x.shape
    a, b = residual.shape
    return x @ weight.t() + residual
""",
        # three dimensions
        """
def f(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor):
    b, s, d = x.shape
    return x @ weight.t() + bias
""",
    ),
    rewritten=(
        Rewritten(
            """
class Router(nn.Module):
    def __init__(self, hidden: int, experts: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, hidden))
        self.bias = nn.Parameter(torch.zeros(experts))

    def forward(self, hidden: torch.Tensor):
        tokens = hidden.view(-1, hidden.shape[-1])
        logits = tokens @ self.weight.t() + self.bias
        return logits
""",
            """
class Router(nn.Module):
    def __init__(self, hidden: int, experts: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, hidden))
        self.bias = nn.Parameter(torch.zeros(experts))

    def forward(self, hidden: torch.Tensor):
        tokens = hidden.view(-1, hidden.shape[-1])
        logits = torch.addmm(self.bias, tokens, self.weight.t())
        return logits
""",
        ),
    ),
)
