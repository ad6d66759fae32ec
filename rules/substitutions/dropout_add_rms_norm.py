"""Dropout, a residual addition and RMSNorm, one after the other.

What: ``norm(dropout(x) + residual)`` with the RMSNorm of torch.

Why it is slow on the NPU: three operators in a row that the host has to launch, and torch_npu takes
RMSNorm apart into six to eight more. ``npu_dropout_add_rms_norm`` of MindSpeed is one call.

Safety: as ``dropout-add-layer-norm``: float32 inside, its own random numbers in training, (B, S, H)
of one dtype with H a multiple of 8 up to 8192. RMSNorm has no bias, and MindSpeed ignores one. An
RMSNorm without eps takes one that depends on the version of torch: left alone (``norm-has-eps``).

References: mindspeed/ops/dropout_add_rms_norm.py of MindSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import (
    BATCH_SEQUENCE_HIDDEN,
    LAST_DIM_OF_NORM,
    MINDSPEED,
    NORM_HAS_EPS,
    NORM_HAS_WEIGHT,
    ONE_DTYPE_OF_NORM,
    RANDOM_NUMBERS,
    dropped,
    rms_norm,
)
from npufix.rules.substitution import Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import mindspeed  # type: ignore[import-not-found]  # the verifier supplies it
    import torch.nn.functional as F
    from torch import Tensor, nn


def of_submodules(x: Tensor, residual: Tensor, drop: nn.Dropout, norm: nn.RMSNorm) -> Tensor:
    """Call two submodules."""
    return norm(drop(x) + residual)


def of_function_and_submodule(
    x: Tensor, residual: Tensor, p: float, training: bool, norm: nn.RMSNorm
) -> Tensor:
    """Call a function of torch, then a submodule."""
    return norm(F.dropout(x, p, training) + residual)


def fused_submodules(x: Tensor, residual: Tensor, drop: nn.Dropout, norm: nn.RMSNorm) -> Tensor:
    """Take the settings of the submodules at the time of the call."""
    return mindspeed.ops.dropout_add_rms_norm.npu_dropout_add_rms_norm(
        x, residual, norm.weight, None, drop.p if drop.training else 0.0, norm.eps
    )


def fused_function_and_submodule(
    x: Tensor, residual: Tensor, p: float, training: bool, norm: nn.RMSNorm
) -> Tensor:
    """Pass a probability of zero in evaluation."""
    return mindspeed.ops.dropout_add_rms_norm.npu_dropout_add_rms_norm(
        x, residual, norm.weight, None, p if training else 0.0, norm.eps
    )


def submodule_inputs(draw: Draw) -> dict[str, Any]:
    """Return what two submodules are called with."""
    drawn = dropped(draw)
    return {**drawn, "norm": rms_norm(draw, drawn["x"])}


def mixed_inputs(draw: Draw) -> dict[str, Any]:
    """Return ``submodule_inputs`` with the arguments of a function in place of the Dropout."""
    drawn = submodule_inputs(draw)
    drop = drawn.pop("drop")
    return {**drawn, "p": drop.p, "training": drop.training}


_CONDITIONS = (
    MINDSPEED,
    RANDOM_NUMBERS,
    BATCH_SEQUENCE_HIDDEN,
    ONE_DTYPE_OF_NORM,
    LAST_DIM_OF_NORM,
    NORM_HAS_WEIGHT,
    NORM_HAS_EPS,
)

RULE = Substitution(
    id="NPU119",
    name="dropout-add-rms-norm",
    summary="dropout, residual addition and RMSNorm one after the other",
    table="fusion",
    forms=(
        Form(of_submodules, fused_submodules, submodule_inputs, _CONDITIONS),
        Form(of_function_and_submodule, fused_function_and_submodule, mixed_inputs, _CONDITIONS),
    ),
    replaces=("Add", "DropOutDoMask", "DropOutDoMaskV3", "Mul", "Pow", "ReduceMean", "Rsqrt"),
    becomes=("Add", "Mul", "Pow", "ReduceSum"),
    passes=(4, 5),
    requires="torch_npu>=2.1",
    needs_whole=True,
    valid=(
        # normalised, then dropped
        """
class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.RMSNorm(size, eps=1e-6)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, residual):
        return self.dropout(self.norm(x + residual))
""",
        # eps depends on the version of torch
        """
class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.RMSNorm(size)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, residual):
        return self.norm(self.dropout(x) + residual)
""",
        # no weight
        """
class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.RMSNorm(size, eps=1e-6, elementwise_affine=False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, residual):
        return self.norm(self.dropout(x) + residual)
""",
    ),
    rewritten=(
        Rewritten(
            """
class Sublayer(nn.Module):
    def __init__(self, dim, p):
        super().__init__()
        self.norm = nn.RMSNorm(dim, eps=1e-6)
        self.dropout = nn.Dropout(p)

    def forward(self, x, residual):
        return self.norm(residual + self.dropout(x))
""",
            """
class Sublayer(nn.Module):
    def __init__(self, dim, p):
        super().__init__()
        self.norm = nn.RMSNorm(dim, eps=1e-6)
        self.dropout = nn.Dropout(p)

    def forward(self, x, residual):
        return npu_dropout_add_rms_norm(
            x,
            residual,
            self.norm.weight,
            None,
            self.dropout.p if self.dropout.training else 0.0,
            self.norm.eps,
        )
""",
        ),
    ),
)
