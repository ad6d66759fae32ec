"""RMSNorm without a weight, and rows divided by their length, in eager operators.

What: ``x * rsqrt(mean(x^2) + eps)`` with no weight behind it, as in queries and keys of attention
(QK norm) and in diffusion models.

Why it is slow on the NPU: four to six kernels, each of which reads or writes the whole activation
(Pow, ReduceMean, Add, Rsqrt, Mul, with casts around them), and about twice as many in the backward
pass. ``npu_rms_norm`` reads it once and writes it once; it wants a weight, for which a vector of
ones, as long as one row, is made.

Safety: the fused kernel computes in float32 and rounds once. It returns the dtype of ``x``, as the
code does. The kernel has a backward formula but no double backward.

References: torch_npu.npu_rms_norm in the API reference of Ascend Extension for PyTorch; RMSNorm
(Zhang and Sennrich, 2019).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import PLAIN_EPS, inputs
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor


def cast_back(x: Tensor, eps: float) -> Tensor:
    """Normalise in float32 and cast back."""
    x32 = x.to(torch.float32)
    return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def plain(x: Tensor, eps: float) -> Tensor:
    """Normalise in the dtype of the activation."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def fused(x: Tensor, eps: float) -> Tensor:
    """Normalise with one kernel, and a weight of ones."""
    return torch_npu.npu_rms_norm(x, x.new_ones(x.shape[-1]), epsilon=eps)[0]


def activations(draw: Draw) -> dict[str, Any]:
    """Return activations with rows so small that a forgotten ``eps`` shows."""
    drawn = inputs(draw)
    return {"x": drawn["x"], "eps": drawn["eps"]}


NO_WEIGHT = Condition(
    "no-wider-fusion",
    "the rows are not those of a LayerNorm, which layer-norm kernels compute as a whole",
    lambda site: not site.is_centred("x"),
)

RULE = Substitution(
    id="NPU168",
    name="rms-norm-without-weight",
    summary="RMSNorm without a weight, written out in eager operators",
    table="fusion",
    forms=(
        Form(cast_back, fused, activations, (NO_WEIGHT, PLAIN_EPS)),
        Form(plain, fused, activations, (NO_WEIGHT, PLAIN_EPS)),
    ),
    replaces=(
        "Add", "Adds", "Cast", "Mul", "Pow", "Pows", "ReduceMean", "Rsqrt", "RsqrtGrad", "Square",
    ),
    becomes=("RmsNorm", "RmsNormGrad", "Fill"),
    passes=(2, 3),
    requires="torch_npu>=2.1",
    valid=(
        # the mean of a group of channels
        """
def f(x: torch.Tensor, eps: float):
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + eps)
""",
        # the sum, not the mean
        """
def f(x: torch.Tensor, eps: float):
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + eps)
""",
        # the root alone
        """
def f(x: torch.Tensor, eps: float):
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
""",
    ),
    rewritten=(
        Rewritten(
            """
class QKNorm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, hidden_states):
        x = hidden_states.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x.type_as(hidden_states)
""",
            """
class QKNorm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, hidden_states):
        return torch_npu.npu_rms_norm(
            hidden_states,
            hidden_states.new_ones(hidden_states.shape[-1]),
            epsilon=self.eps,
        )[0]
""",
        ),
    ),
)
