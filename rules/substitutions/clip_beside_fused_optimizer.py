"""Gradients clipped parameter by parameter in front of a fused optimizer.

What: ``torch.nn.utils.clip_grad_norm_(model.parameters(), c)`` where the optimizer whose step follows
is one of ``torch_npu.optim.NpuFused...``; or could be one, which is pointed at.

Why it is slow on the NPU: a norm, and a product, for each parameter: hundreds of small kernels in
each step. The optimizer holds all gradients of a dtype in one combined tensor already: for its
``clip_grad_norm_fused_`` that is one norm and one product.

Safety: the same norm and the same factor, with sums of another order. The gradients of all
parameters of the optimizer are clipped: they must be those that were named (condition
``all-parameters``). Not for sharded parameters, whose norm is that of all ranks.

References: affinity API page of the migration guide (clip_grad_norm_fused_); 9 of 61 ports in Ascend
DrivingSDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import unknown
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def one_by_one(first: Tensor, second: Tensor, limit: float) -> Tensor:
    """Take the norm of each gradient, then of these norms."""
    norm = torch.stack((first.norm(), second.norm())).norm()
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    return torch.cat(((first * factor).flatten(), (second * factor).flatten()))


def combined(first: Tensor, second: Tensor, limit: float) -> Tensor:
    """Take one norm of all gradients."""
    together = torch.cat((first.flatten(), second.flatten()))
    return together * (limit / (together.norm() + 1e-6)).clamp(max=1.0)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return two gradients and a limit below or above their norm."""
    import torch

    scale = draw.choice([1.0, 1e-6])
    return {
        "first": (draw.floats(3, 4, dtype=torch.float32).abs() + 0.5) * scale,
        "second": (draw.floats(5, dtype=torch.float32).abs() + 0.5) * scale,
        "limit": draw.choice([0.1, 1e-6, 100.0]),
    }


ALL = Condition(
    "all-parameters",
    "the optimizer has the parameters that are clipped, no others, and they are not sharded",
    unknown,
)

RULE = Substitution(
    id="NPU174",
    name="clip-beside-fused-optimizer",
    summary="gradients are clipped one by one in front of a fused optimizer",
    table="fusion",
    forms=(Form(one_by_one, combined, inputs, (ALL,)),),
    search="clipping",
    replaces=("LpNormReduceV2", "LpNormV2", "Mul", "Muls", "Pack"),
    becomes=("LpNormV2", "Muls"),
    passes=(3, 0),
    requires="torch_npu>=2.1",
    valid=(
        # an optimizer of torch that is fused as it is, without these methods
        """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def train_step(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
""",
        # two of them
        """
import torch_npu


def train_step(model, other):
    optimizer = torch_npu.optim.NpuFusedAdamW(model.parameters(), lr=1e-3)
    optim2 = torch_npu.optim.NpuFusedAdamW(other.parameters(), lr=1e-3)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optim2.step()
""",
    ),
    rewritten=(
        Rewritten(
            """
from torch_npu import optim


def train(model, batches):
    optimizer = optim.NpuFusedAdamW(model.parameters(), lr=1e-3)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=2)
        optimizer.step()
""",
            """
from torch_npu import optim


def train(model, batches):
    optimizer = optim.NpuFusedAdamW(model.parameters(), lr=1e-3)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).backward()
        norm = optimizer.clip_grad_norm_fused_(1.0, 2)
        optimizer.step()
""",
        ),
    ),
)
