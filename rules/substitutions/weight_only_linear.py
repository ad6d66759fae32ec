"""A linear layer whose int8 weight is cast to the dtype of its input in every call.

What: ``F.linear(x, weight.to(x.dtype)) * scales`` and ``F.linear(x, weight.to(x.dtype) * scales[:, None])``,
as weight-only quantisation is written out.

Why it is slow on the NPU: Cast writes the whole weight in sixteen bits and MatMul reads it again: more
traffic than without quantisation, which was there to save it. ``npu_weight_quant_batchmatmul`` casts
and scales in the core.

Use instead: ``torch_npu.npu_weight_quant_batchmatmul(x, weight.t(), scales)``; it takes matrices, so
what stands in front of the last dimension is flattened. Weights of four bits are packed once with
``npu_convert_weight_to_int4pack``, groups are ``antiquant_group_size``. Where a weight is kept in
FRACTAL_NZ, ``torch_npu.npu_format_cast(weight, 29)`` once after loading, measure it: vllm-ascend has
undone it (#1131) in front of operators that convert it back in each call.

Safety: int8 weights (columns, depth) with one scale for each column, of the dtype of ``x``, float16 or
bfloat16 (``int8-weight``); depth and columns at most 65535. The scale comes before the sum instead of
behind it. No gradient, and it does not say so (``inference``).

References: torch_npu.npu_weight_quant_batchmatmul in the API reference of Ascend Extension for PyTorch;
its test in op-plugin; vllm-ascend #1131.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import INFERENCE
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution

if TYPE_CHECKING:
    import torch.nn.functional as F
    import torch_npu
    from torch import Tensor


def scaled_after(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Cast, multiply, then scale the columns of the product."""
    return F.linear(x, weight.to(x.dtype)) * scales


def scaled_before(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Cast and scale the rows of the weight, then multiply."""
    return F.linear(x, weight.to(x.dtype) * scales[:, None])


def scaled_unsqueezed(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Do the same with a method."""
    return F.linear(x, weight.to(x.dtype) * scales.unsqueeze(-1))


def product_scaled(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Cast, multiply by the transposed weight, then scale."""
    return (x @ weight.t().to(x.dtype)) * scales


def together(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Cast and scale in the core."""
    return torch_npu.npu_weight_quant_batchmatmul(x.flatten(0, -2), weight.t(), scales).unflatten(
        0, x.shape[:-1]
    )


def inputs(draw: Draw) -> dict[str, Any]:
    """Return rows in sixteen bits, a weight of int8 and its scales."""
    import torch

    depth, columns = draw.integer(1, 6), draw.integer(1, 4)
    dtype = draw.choice([torch.float16, torch.bfloat16])
    shape = draw.choice([(3,), (2, 3), (1, 2, 2)])
    return {
        "x": draw.floats(*shape, depth, dtype=dtype),
        "weight": draw.integers(columns, depth, low=-128, high=127).to(torch.int8),
        "scales": (draw.floats(columns, dtype=torch.float32).abs() / 64 + 0.01).to(dtype),
    }


_OTHERS = (
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "uint8",
)  # fmt: skip
"""What weights may be quantised to instead, where the module mentions it."""


def _is_int8(site: Site) -> bool | None:
    if not site.mentions_beside("int8") or site.is_number("scales"):
        return False  # a weight that is scaled for equal learning rates, in this class
    dtype = site.dtype("weight")
    if dtype is None and site.mentions(*_OTHERS):
        return False  # which of them the weight is nobody can tell, and few are for fewer bits
    known = dtype in {None, "int8"}
    return None if known and site.ndim("weight") in {None, 2} else False


INT8 = Condition(
    "int8-weight",
    "the weight is a matrix of int8, with a scale for each column of the product in the dtype of x, "
    "float16 or bfloat16",
    _is_int8,
)
_CONDITIONS = (INT8, INFERENCE)

RULE = Substitution(
    id="NPU187",
    name="weight-only-linear",
    summary="a weight of int8 is cast in every call, then multiplied and scaled",
    table="fusion",
    forms=(
        Form(scaled_after, together, inputs, _CONDITIONS),
        Form(scaled_before, together, inputs, _CONDITIONS),
        Form(scaled_unsqueezed, together, inputs, _CONDITIONS),
        Form(product_scaled, together, inputs, _CONDITIONS),
    ),
    replaces=("Cast", "MatMulV2", "MatMulV3", "Mul"),
    becomes=("WeightQuantBatchMatmulV2",),
    passes=(2, 0),
    requires="torch_npu>=2.1; chip A2 A3",
    valid=(
        # a weight that is cast for mixed precision, and nothing scales it
        """
class Head(nn.Module):
    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))
""",
        # one of float32, which is scaled for equal learning rates
        """
class EqualLinear(nn.Module):
    def __init__(self, dim, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim, dim))
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype)) * self.scale
""",
        # fp8 beside int8: it may be either
        """
class Linear(nn.Module):
    def __init__(self, n, kind):
        super().__init__()
        dtype = torch.float8_e4m3fn if kind == "fp8" else torch.int8
        self.register_buffer("weight", torch.empty((n, n), dtype=dtype))
        self.register_buffer("scales", torch.ones(n))

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype)) * self.scales
""",
        # another class of the file has int8
        """
class Head(nn.Module):
    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype)) * self.scale

class Table(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("weight", torch.empty((n, n), dtype=torch.int8))
""",
        # the input is cast, not the weight
        """
def f(x, weight, scales):
    return F.linear(x.to(weight.dtype), weight) * scales
""",
    ),
    rewritten=(
        Rewritten(
            """
class WeightOnlyInt8Linear(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.register_buffer("weight", torch.empty((m, n), dtype=torch.int8))
        self.register_buffer("scales", torch.ones(m, dtype=torch.bfloat16))

    def forward(self, x):
        y = F.linear(x, self.weight.to(dtype=x.dtype)) * self.scales
        return y
""",
            """
class WeightOnlyInt8Linear(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.register_buffer("weight", torch.empty((m, n), dtype=torch.int8))
        self.register_buffer("scales", torch.ones(m, dtype=torch.bfloat16))

    def forward(self, x):
        y = torch_npu.npu_weight_quant_batchmatmul(
            x.flatten(0, -2), self.weight.t(), self.scales
        ).unflatten(0, x.shape[:-1])
        return y
""",
        ),
    ),
)
