"""Gemma's RMSNorm, whose gain is one plus the weight, where no gradient is needed.

What: a module computes ``x * rsqrt(mean(x^2) + eps) * (1 + weight)`` operator by operator.

Why it is slow on the NPU: six to eight kernels that each read and write the whole activation.
``npu_gemma_rms_norm`` reads it once, and adds one to the weight itself; ``eager-rms-norm`` leaves
that addition (and the cast before it) in front of its kernel, two small launches per call.

Safety: the operator computes in float32 and rounds once, as Gemma does. It has no gradient: the
weight would not be trained, and nobody would say so. So it is taken where the function itself runs
without gradients (``torch.no_grad``, ``torch.inference_mode``), and ``eager-rms-norm``, which keeps
them, everywhere else (condition ``inference``).

References: torch_npu.npu_gemma_rms_norm in the API reference of Ascend Extension for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.shared.operands.norms import (
    INFERENCE,
    KERNEL_DTYPES,
    ONE_DIMENSIONAL,
    PLAIN_EPS,
    inputs,
)
from npufix.rules.substitution import Form, Rewritten, Substitution, either

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor


def one_plus_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Multiply by one plus the weight and round once."""
    x32 = either(x.to(torch.float32), x)
    inverse = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return ((x32 * inverse) * (1.0 + either(weight.to(torch.float32), weight))).to(x.dtype)


def fused(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the normalised activation; the operator adds the one."""
    return torch_npu.npu_gemma_rms_norm(x, weight, epsilon=eps)[0]


RULE = Substitution(
    id="NPU108",
    name="gemma-rms-norm",
    summary="RMSNorm with a gain of one plus the weight, without gradients",
    table="fusion",
    forms=(
        Form(
            one_plus_weight, fused, inputs, (INFERENCE, ONE_DIMENSIONAL, PLAIN_EPS, KERNEL_DTYPES)
        ),
    ),
    replaces=("Add", "Adds", "Cast", "Mul", "Pow", "Pows", "ReduceMean", "Rsqrt", "Square"),
    becomes=("GemmaRmsNorm",),
    passes=(2, 0),
    requires="torch_npu>=2.1,!=2.4.0; chip A2 A3",
    valid=(
        # gradients may be needed: eager-rms-norm keeps them
        """
def gemma_norm(x: torch.Tensor, weight: torch.Tensor, eps: float):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return (h * (1.0 + weight.float())).type_as(x)
""",
        # the weight itself
        """
@torch.no_grad()
def llama_norm(x: torch.Tensor, weight: torch.Tensor, eps: float):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return (h * weight.float()).type_as(x)
""",
        # two plus the weight
        """
@torch.no_grad()
def norm(x: torch.Tensor, weight: torch.Tensor, eps: float):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return (h * (2.0 + weight.float())).type_as(x)
""",
    ),
    rewritten=(
        Rewritten(
            """
class Gemma2RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    @torch.inference_mode()
    def forward(self, x):
        output = self._norm(x.float())
        # Llama does x.to(float16) * w whilst Gemma2 is (x * w).to(float16)
        output = output * (1.0 + self.weight.float())
        return output.type_as(x)
""",
            """
class Gemma2RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    @torch.inference_mode()
    def forward(self, x):
        # Llama does x.to(float16) * w whilst Gemma2 is (x * w).to(float16)
        return torch_npu.npu_gemma_rms_norm(
            x, self.weight, epsilon=self.eps
        )[0]
""",
        ),
    ),
)
