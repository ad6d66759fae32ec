"""A product whose quantised weight is made wide in every call, or that multiplies integers by hand.

What: ``out = torch.matmul(x, dequantize(qweight, scales))`` of AWQ, GPTQ and other weight-only
quantisation, and ``torch._int_mm`` with scales behind it.

Why it is slow on the NPU: the weight is written in sixteen bits and read again, more traffic than
without quantisation; unpacking takes several vector kernels, and the scales of a product of integers
are two more passes over the result.

Use instead: ``torch_npu.npu_weight_quant_batchmatmul``, which widens and scales in the core, with weights
of four bits packed once by ``npu_convert_weight_to_int4pack``; ``torch_npu.npu_quant_matmul`` with
``npu_dynamic_quant`` where the input is int8 too. vllm-ascend measured +27 and +7 % of throughput with
the fused form of a grouped product (#2275). FRACTAL_NZ, ``npu_format_cast(weight, 29)`` once after
loading, may lose in front of operators that convert it back (#1131): measure it.

Safety: advice. None of them has a gradient; weights have to be packed anew when they are loaded.

References: torch_npu.npu_weight_quant_batchmatmul, npu_quant_matmul and npu_dynamic_quant in the API
reference of Ascend Extension for PyTorch; vllm-ascend #2275, #1131.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import INFERENCE
from npufix.rules.substitution import Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor


def apart(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Make the weight wide, then multiply."""
    return torch.matmul(x, weight.to(x.dtype) * scales)


def together(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Do both in the core."""
    return torch_npu.npu_weight_quant_batchmatmul(x, weight, scales)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return rows in sixteen bits, a weight of int8 and its scales."""
    import torch

    depth, columns = draw.integer(1, 6), draw.integer(1, 4)
    return {
        "x": draw.floats(3, depth, dtype=torch.float16),
        "weight": draw.integers(depth, columns, low=-128, high=127).to(torch.int8),
        "scales": (draw.floats(columns, dtype=torch.float32).abs() / 64 + 0.01).half(),
    }


_DEQUANTISED = """
def forward(x, qweight, qzeros, scales, bits, group):
    out = dequantize_gemm(qweight, qzeros, scales, bits, group)
    out = torch.matmul(x, out)
    return out
"""
_AT_ONCE = """
class Linear(nn.Module):
    def forward(self, x):
        return F.linear(x, self.dequantize(self.weight))
"""
_INTEGERS = """
def forward(x, weight, scale, rows):
    return torch._int_mm(x, weight.t()).float() * scale * rows
"""

RULE = Substitution(
    id="NPU188",
    name="quantised-product",
    summary="a quantised weight is made wide in every call, or integers are scaled by hand",
    table="fusion",
    forms=(Form(apart, together, inputs, (INFERENCE,)),),
    search="quantised-products",
    replaces=("Cast", "MatMulV2", "MatMulV3", "Mul", "RightShift"),
    becomes=("WeightQuantBatchMatmulV2",),
    passes=(2, 0),
    requires="torch_npu>=2.1; chip A2 A3",
    valid=(
        # what is made wide is no weight of a product
        """
def decode(codes, scales):
    wave = dequantize(codes, scales)
    return wave.sum(0)
""",
        # the gradient of one
        """
class Function(torch.autograd.Function):
    @staticmethod
    def backward(ctx, grad):
        weight = dequantize(*ctx.saved_tensors)
        return grad.matmul(weight)
""",
        # floats of eight bits, which the operators do not take
        """
def linear(x, weight, scales):
    return F.linear(x, fp8_weight_dequant(weight, scales))
""",
        # what is taken out of a name, or of a mixture
        """
def mix(x, bank, at):
    weight = extract_weights(bank, at)
    return F.linear(x, weight)
""",
        # once, to keep it
        """
class Linear(nn.Module):
    def __init__(self, weight, scales):
        super().__init__()
        self.weight = nn.Parameter(dequantize(weight, scales))

    def forward(self, x):
        return F.linear(x, self.weight)
""",
        # its author has chosen
        """
def forward(x, weight, scales):
    if x.device.type == "npu":
        return torch_npu.npu_weight_quant_batchmatmul(x, weight, scales)
    return x @ dequantize(weight, scales)
""",
    ),
    rewritten=(
        Rewritten(_DEQUANTISED, _DEQUANTISED),
        Rewritten(_AT_ONCE, _AT_ONCE),
        Rewritten(_INTEGERS, _INTEGERS),
    ),
)
