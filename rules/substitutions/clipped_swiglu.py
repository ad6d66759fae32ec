"""SwiGLU of clamped halves, with a factor in the sigmoid and an offset, in eager operators.

What: ``gate = gate.clamp(max=limit)``, ``up = up.clamp(-limit, limit)``, then ``(up + 1) * gate *
sigmoid(alpha * gate)``, where gate and up alternate in one projection or are its halves. GPT-OSS.

Why it is slow on the NPU: seven kernels, each of which reads or writes a projection that is several
times as wide as the hidden state; strided slices copy it first. ``npu_clipped_swiglu`` reads the
projection once and writes the product once.

Safety: the kernel computes in float32 and rounds once where eager code rounds seven times. It has no
gradient, and loses one without an error: for inference alone (``inference``).

References: torch_npu.npu_clipped_swiglu in the API reference of Ascend Extension for PyTorch; the
experts of GPT-OSS in transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import INFERENCE
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution, either

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor


def alternating(x: Tensor, alpha: float, limit: float) -> Tensor:
    """Take gate and up from every other column."""
    gate = x[..., ::2].clamp(max=limit)
    up = x[..., 1::2].clamp(-limit, limit)
    glu = gate * torch.sigmoid(gate * alpha)
    return (up + 1) * glu


def fused_alternating(x: Tensor, alpha: float, limit: float) -> Tensor:
    """Clamp, activate and multiply with one kernel."""
    return torch_npu.npu_clipped_swiglu(x, alpha=alpha, limit=limit)


def halves(x: Tensor, alpha: float, limit: float) -> Tensor:
    """Take gate and up from the halves."""
    first, second = x.chunk(2, dim=-1)
    gate = first.clamp(max=limit)
    up = second.clamp(-limit, limit)
    return either(
        (up + 1) * (gate * torch.sigmoid(gate * alpha)),
        gate * torch.sigmoid(gate * alpha) * (up + 1),
    )


def fused_halves(x: Tensor, alpha: float, limit: float) -> Tensor:
    """Clamp, activate and multiply the halves with one kernel."""
    return torch_npu.npu_clipped_swiglu(x, alpha=alpha, limit=limit, interleaved=False)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a projection with numbers beyond the limit."""
    import torch

    shape = draw.choice([(8,), (3, 6), (2, 3, 8)])
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    return {
        "x": draw.floats(*shape, dtype=dtype) * draw.choice([1.0, 8.0]),
        "alpha": draw.choice([1.702, 1.0]),
        "limit": draw.choice([7.0, 1.5]),
    }


SETTINGS = Condition(
    "plain-settings",
    "alpha and limit are numbers",
    lambda site: (
        (site.is_plain("alpha") or site.is_number("alpha"))
        and (site.is_plain("limit") or site.is_number("limit"))
    ),
)
_EXPERTS = """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha = 1.702
        self.limit = 7.0

    @torch.no_grad()
    def activate(self, gate_up):
        gate, up = gate_up[..., ::2], gate_up[..., 1::2]
        gate = gate.clamp(min=None, max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        glu = gate * torch.sigmoid(gate * self.alpha)
        return (up + 1) * glu
"""

RULE = Substitution(
    id="NPU181",
    name="clipped-swiglu",
    summary="SwiGLU of clamped halves, written out in eager operators",
    table="fusion",
    forms=(
        Form(alternating, fused_alternating, inputs, (SETTINGS, INFERENCE)),
        Form(halves, fused_halves, inputs, (SETTINGS, INFERENCE)),
    ),
    replaces=(
        "Add",
        "Adds",
        "ClipByValue",
        "ClipByValueV2",
        "Mul",
        "Muls",
        "Sigmoid",
        "Slice",
        "StridedSlice",
    ),
    becomes=("ClippedSwiglu",),
    passes=(1.5, 2.5),
    requires="torch_npu>=2.9; chip A2 A3",
    valid=(
        # other limits for both sides
        """
def f(x: torch.Tensor, alpha: float, low: float, limit: float):
    gate, up = x[..., ::2].clamp(max=limit), x[..., 1::2].clamp(low, limit)
    return (up + 1) * (gate * torch.sigmoid(gate * alpha))
""",
        # clamped after it was activated
        """
def f(x: torch.Tensor, limit: float):
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)
""",
        # another offset
        """
def f(x: torch.Tensor, alpha: float, limit: float):
    gate, up = x[..., ::2].clamp(max=limit), x[..., 1::2].clamp(-limit, limit)
    return (up + 2) * (gate * torch.sigmoid(gate * alpha))
""",
        # the second half is activated
        """
def f(x: torch.Tensor, alpha: float, limit: float):
    up, gate = x.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(gate * alpha))
""",
    ),
    rewritten=(
        Rewritten(
            _EXPERTS,
            _EXPERTS.partition("        gate, up")[0]
            + """        return torch_npu.npu_clipped_swiglu(
            gate_up, alpha=self.alpha, limit=self.limit
        )
""",
        ),
    ),
)
