"""An activation written out in the operators of its formula.

What: ``x * torch.sigmoid(x)`` is SiLU, ``x * torch.tanh(F.softplus(x))`` is Mish,
``x * 0.5 * (1 + torch.erf(x / sqrt(2)))`` and its tanh form are GELU, and
``x * torch.sigmoid(1.702 * x)`` is what ``npu_fast_gelu`` computes.

Why it is slow on the NPU: two to nine kernels, each of which reads and writes the whole
activation, and a tensor kept for the backward pass by every one of them. There is one kernel for
each of these functions, with one for its gradient.

Safety: equal up to rounding; the kernel computes in float32 and rounds once. The exact GELU
becomes ``torch_npu.npu_gelu``: ``F.gelu`` runs the tanh form on the NPU whatever it is asked for.
Below about -90 the formula and the kernel both return zero, with either sign.

References: GELU (Hendrycks and Gimpel, 2016); torch_npu.npu_gelu and torch_npu.npu_fast_gelu in
the API reference of Ascend Extension for PyTorch, which lists npu_silu and npu_mish as deprecated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Draw, Form, Rewritten, Substitution, either

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    import torch_npu
    from torch import Tensor


def sigmoid_product(x: Tensor) -> Tensor:
    """Return SiLU by its formula."""
    return x * torch.sigmoid(x)


def sigmoid_quotient(x: Tensor) -> Tensor:
    """Return SiLU by its formula, the sigmoid written out as well."""
    return x / (1 + torch.exp(-x))


def mish(x: Tensor) -> Tensor:
    """Return Mish by its formula."""
    return x * torch.tanh(F.softplus(x))


def scaled_sigmoid_product(x: Tensor) -> Tensor:
    """Return the approximation of GELU that CLIP was trained with."""
    return x * torch.sigmoid(1.702 * x)


def gelu(x: Tensor) -> Tensor:
    """Return the exact GELU by its formula."""
    scaled = either(
        x / math.sqrt(2.0), x / 1.4142135623730951, x * 0.7071067811865476, x * 0.70710678
    )
    bell = 1.0 + torch.erf(scaled)
    return either(x * 0.5 * bell, x * (0.5 * bell), 0.5 * (x * bell))


def gelu_tanh(x: Tensor) -> Tensor:
    """Return the tanh form of GELU by its formula."""
    factor = either(math.sqrt(2.0 / math.pi), 0.7978845608028654, 0.7978845608, 0.79788456)
    cube = either(torch.pow(x, 3.0), x * (x * x))
    inner = either(
        factor * (x + 0.044715 * cube),
        factor * x * (1.0 + 0.044715 * x * x),
        factor * (x * (1.0 + 0.044715 * x * x)),
        factor * x * (1.0 + 0.044715 * (x * x)),
    )
    bell = 1.0 + torch.tanh(inner)
    return either(x * 0.5 * bell, x * (0.5 * bell), 0.5 * (x * bell))


def native_silu(x: Tensor) -> Tensor:
    """Return SiLU with one kernel."""
    return F.silu(x)


def native_mish(x: Tensor) -> Tensor:
    """Return Mish with one kernel."""
    return F.mish(x)


def fast_gelu(x: Tensor) -> Tensor:
    """Return the approximation of GELU with one kernel."""
    return torch_npu.npu_fast_gelu(x)


def exact_gelu(x: Tensor) -> Tensor:
    """Return the exact GELU with one kernel."""
    return torch_npu.npu_gelu(x)


def native_gelu_tanh(x: Tensor) -> Tensor:
    """Return the tanh form of GELU with one kernel."""
    return F.gelu(x, approximate="tanh")


def inputs(draw: Draw) -> dict[str, Any]:
    """Return activations between the bend of the curve and the ends of its straight parts."""
    import torch

    shape = draw.choice([(), (7,), (2, 3), (2, 0), (2, 3, 4)])
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    return {"x": draw.floats(*shape, dtype=dtype) * draw.choice([1.0, 4.0])}


def moderate_inputs(draw: Draw) -> dict[str, Any]:
    """Return activations where ``1 + erf(x)`` still has digits: not so far below zero."""
    return {"x": inputs(draw)["x"].clamp(-1.25, 8.0)}


SMALL_KERNELS = (
    "Adds", "Div", "Erf", "Exp", "Mul", "Muls", "Neg", "Pow", "Pows", "RealDiv", "Reciprocal",
    "Sigmoid", "SigmoidGrad", "SoftplusV2", "SoftplusV2Grad", "Tanh", "TanhGrad",
)  # fmt: skip

FUSED_KERNELS = (
    "FastGelu", "FastGeluGrad", "Gelu", "GeluGrad", "GeluV2", "GeluGradV2", "Mish", "MishGrad",
    "Silu", "SiluGrad", "Swish", "SwishGrad",
)  # fmt: skip

RULE = Substitution(
    id="NPU206",
    name="written-out-silu",
    summary="SiLU, GELU or Mish written out in the operators of its formula",
    table="affinity",
    forms=(
        Form(sigmoid_product, native_silu, inputs),
        Form(sigmoid_quotient, native_silu, inputs),
        Form(mish, native_mish, inputs),
        Form(scaled_sigmoid_product, fast_gelu, inputs),
        Form(gelu, exact_gelu, moderate_inputs),
        Form(gelu_tanh, native_gelu_tanh, inputs),
    ),
    replaces=SMALL_KERNELS,
    becomes=FUSED_KERNELS,
    passes=(2, 3),
    floats_only=True,
    needs_whole=True,
    requires="torch_npu>=2.1",
    valid=(
        # a gate: two tensors
        """
def f(x: torch.Tensor, gate: torch.Tensor):
    return x * torch.sigmoid(gate)
""",
        # a trained slope: Swish
        """
def f(x: torch.Tensor, beta: torch.Tensor):
    return x * torch.sigmoid(beta * x)
""",
        # another factor
        """
def f(x: torch.Tensor):
    return x * torch.sigmoid(1.8 * x)
""",
        # in place
        """
def f(x: torch.Tensor):
    return x.mul_(x.sigmoid())
""",
        # the sigmoid is needed as well
        """
def f(x: torch.Tensor):
    s = torch.sigmoid(x)
    return x * s, s
""",
        # the tensor changes in between
        """
def f(x: torch.Tensor):
    s = torch.sigmoid(x)
    x.clamp_(min=0)
    return x * s
""",
        # the gradient of SiLU, by hand
        """
class SwishFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)
""",
        # the distribution function alone
        """
def f(x: torch.Tensor):
    return 0.5 * (1.0 + torch.erf(x / 1.4142135623730951))
""",
        # another slope of the softplus
        """
def f(x: torch.Tensor):
    return x * torch.tanh(F.softplus(x, beta=2))
""",
        # compiled into one kernel already
        """
@torch.jit.script
def f(x: torch.Tensor):
    return x * torch.sigmoid(x)
""",
    ),
    rewritten=(
        # SiLU
        Rewritten(
            """
def swish(x):
    return x * torch.sigmoid(x)
""",
            """
def swish(x):
    return F.silu(x)
""",
        ),
        # the sigmoid written out as well
        Rewritten(
            """
def swish(x):
    return x / (1 + torch.exp(-x))
""",
            """
def swish(x):
    return F.silu(x)
""",
        ),
        # CLIP
        Rewritten(
            """
def quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)
""",
            """
def quick_gelu(x):
    return torch_npu.npu_fast_gelu(x)
""",
        ),
        # BERT
        Rewritten(
            """
def gelu(x):
    return x * 0.5 * (1.0 + torch.erf(x / 1.4142135623730951))
""",
            """
def gelu(x):
    return torch_npu.npu_gelu(x)
""",
        ),
        # BLOOM
        Rewritten(
            """
def bloom_gelu(x):
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))
""",
            """
def bloom_gelu(x):
    return F.gelu(x, approximate="tanh")
""",
        ),
        # YOLOv4
        Rewritten(
            """
def mish(x):
    return x * torch.tanh(F.softplus(x))
""",
            """
def mish(x):
    return F.mish(x)
""",
        ),
    ),
)
