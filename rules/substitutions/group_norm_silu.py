"""GroupNorm and SiLU, one after the other.

What: ``silu(norm(x))``, by name or as ``h * h.sigmoid()``, as in every residual block of a diffusion UNet or VAE.

Why it is slow on the NPU: GroupNorm writes an image that Swish reads again, and writes once more.
``npu_group_norm_swish`` does both in one kernel, forward and backward.

Safety: the operator computes in float32 and rounds once. It needs weight and bias of the dtype of
the image (conditions ``norm-has-weight``, ``same-dtype``), and its backward pass takes at most
4000 channels per group, more than any model has. Where no gradient is needed by proof, ``npu_group_norm_silu`` does the same for
norms without a weight too; it has no gradient, and nobody would say so (condition ``inference``).

References: torch_npu.npu_group_norm_swish and npu_group_norm_silu in the API reference of Ascend
Extension for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import INFERENCE, is_given, unknown
from npufix.rules.substitution import (
    Activation,
    Condition,
    Draw,
    Form,
    Rewritten,
    Site,
    Substitution,
    is_activation,
)

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    import torch_npu
    from torch import Tensor, nn


def of_submodule(x: Tensor, norm: nn.GroupNorm) -> Tensor:
    """Call a submodule, then SiLU."""
    return F.silu(norm(x))


def of_table(x: Tensor, norm: nn.GroupNorm, act: Activation) -> Tensor:
    """Call a submodule, then an activation out of a table."""
    return act(norm(x))


def of_function(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Call two functions of torch."""
    return F.silu(F.group_norm(x, groups, weight, bias, eps))


def formula_of_submodule(x: Tensor, norm: nn.GroupNorm) -> Tensor:
    """Call a submodule, then compute SiLU by its formula."""
    h = norm(x)
    return h * torch.sigmoid(h)


def formula_of_function(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Call a function of torch, then compute SiLU by its formula."""
    h = F.group_norm(x, groups, weight, bias, eps)
    return h * torch.sigmoid(h)


def silu_submodule(x: Tensor, norm: nn.GroupNorm) -> Tensor:
    """Return the first result; the others are mean and reciprocal deviation of the groups."""
    return torch_npu.npu_group_norm_silu(x, norm.weight, norm.bias, norm.num_groups, norm.eps)[0]


def swish_submodule(x: Tensor, norm: nn.GroupNorm) -> Tensor:
    """Return the first result; this operator takes the number of groups before the weight."""
    return torch_npu.npu_group_norm_swish(x, norm.num_groups, norm.weight, norm.bias, eps=norm.eps)[
        0
    ]


def swish_table(x: Tensor, norm: nn.GroupNorm, act: Activation) -> Tensor:
    """As ``swish_submodule``; the activation is part of the operator."""
    return torch_npu.npu_group_norm_swish(x, norm.num_groups, norm.weight, norm.bias, eps=norm.eps)[
        0
    ]


def swish_function(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return the first result."""
    return torch_npu.npu_group_norm_swish(x, groups, weight, bias, eps=eps)[0]


def submodule_inputs(draw: Draw) -> dict[str, Any]:
    """Return an image, or a sequence of channels, and a GroupNorm."""
    import torch
    from torch import nn

    groups = draw.choice([2, 4, 8])
    channels = groups * draw.choice([4, 6])
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    rest = draw.choice([(5,), (4, 3), (2, 3, 2)])
    norm = nn.GroupNorm(groups, channels, eps=draw.choice([1e-5, 1e-3]))
    norm.weight.data = draw.floats(channels, dtype=dtype)
    norm.bias.data = draw.floats(channels, dtype=dtype)
    return {"x": draw.floats(draw.integer(2, 3), channels, *rest, dtype=dtype), "norm": norm}


def table_inputs(draw: Draw) -> dict[str, Any]:
    """Return ``submodule_inputs`` and SiLU."""
    import torch

    return {**submodule_inputs(draw), "act": torch.nn.functional.silu}


def function_inputs(draw: Draw) -> dict[str, Any]:
    """Return ``submodule_inputs`` as arguments of functions."""
    drawn = submodule_inputs(draw)
    norm = drawn.pop("norm")
    weights = {"weight": norm.weight.detach(), "bias": norm.bias.detach()}
    return {**drawn, **weights, "groups": norm.num_groups, "eps": norm.eps}


def _weights_given(site: Site) -> bool | None:
    given = [site.is_tensor(name) for name in ("weight", "bias")]
    return False if False in given else all(given) or None


SAME_DTYPE = Condition(
    "same-dtype",
    "the norm's weights have the dtype of its input (under autocast they have not)",
    unknown,
)
HAS_WEIGHT = Condition(
    "norm-has-weight",
    "the norm has weight and bias (affine)",
    lambda site: is_given(site, "norm", "affine"),
)
WEIGHTS_GIVEN = Condition("norm-has-weight", "weight and bias are given", _weights_given)
SILU = Condition(
    "activation-is-silu",
    "the activation out of the table is SiLU",
    lambda site: is_activation(site, "act", "silu"),
)

RULE = Substitution(
    id="NPU111",
    name="group-norm-silu",
    summary="GroupNorm and SiLU one after the other",
    table="fusion",
    forms=(
        Form(of_submodule, silu_submodule, submodule_inputs, (INFERENCE, SAME_DTYPE)),
        Form(of_submodule, swish_submodule, submodule_inputs, (HAS_WEIGHT, SAME_DTYPE)),
        Form(formula_of_submodule, swish_submodule, submodule_inputs, (HAS_WEIGHT, SAME_DTYPE)),
        Form(formula_of_function, swish_function, function_inputs, (WEIGHTS_GIVEN, SAME_DTYPE)),
        Form(of_table, swish_table, table_inputs, (SILU, HAS_WEIGHT, SAME_DTYPE)),
        Form(of_function, swish_function, function_inputs, (WEIGHTS_GIVEN, SAME_DTYPE)),
    ),
    replaces=(
        "GroupNorm",
        "GroupNormV2",
        "GroupNormGrad",
        "Silu",
        "SiluGrad",
        "Swish",
        "SwishGrad",
    ),
    becomes=("GroupNormSilu", "GroupNormSwish", "GroupNormSwishGrad"),
    passes=(2, 3),
    requires="torch_npu>=2.1,!=2.4.0; chip A2 A3",
    needs_whole=True,
    valid=(
        # another activation
        """
class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)

    def forward(self, x):
        return F.gelu(self.norm(x))
""",
        # a scale between the two
        """
def f(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor):
    return F.silu(scale * F.group_norm(x, 32, weight, bias))
""",
        # others see what the activation writes into
        """
class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        h = self.norm(x)
        skip = h
        h = self.act(h)
        return h + skip

    def kept(self, x, features):
        h = self.norm(x)
        features.append(h)
        h = self.act(h)
        return h

    def second(self, x):
        h = self.norm(x)
        y = self.act(h)
        return y, h
""",
        # another norm
        """
class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.silu(self.norm(x))
""",
        # the normalised image is needed as well
        """
class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)

    def forward(self, x):
        h = self.norm(x)
        return F.silu(h) + h
""",
        # no weights, and gradients may be needed
        """
class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(32, channels, affine=False)

    def forward(self, x):
        return F.silu(self.norm(x))
""",
        # the sigmoid of something else
        """
def f(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor):
    return F.group_norm(x, 32, weight, bias) * torch.sigmoid(y)
""",
        # something between the two: a scale and a shift
        """
class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)

    def forward(self, x, scale, shift):
        return F.silu(self.norm(x) * (2 + scale) + shift)
""",
    ),
    rewritten=(
        # made by a function, and an activation that writes into what nobody else sees
        Rewritten(
            """
def Normalize(channels, groups=32):
    return nn.GroupNorm(num_groups=groups, num_channels=channels, eps=1e-6, affine=True)


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = Normalize(channels)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        h = self.norm(x)
        h = self.act(h)
        return h
""",
            """
def Normalize(channels, groups=32):
    return nn.GroupNorm(num_groups=groups, num_channels=channels, eps=1e-6, affine=True)


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = Normalize(channels)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        h = torch_npu.npu_group_norm_swish(
            x, self.norm.num_groups, self.norm.weight, self.norm.bias, eps=self.norm.eps
        )[0]
        return h
""",
        ),
        Rewritten(
            """
class ResnetBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm1 = nn.GroupNorm(num_groups=32, num_channels=channels, eps=1e-6)
        self.act = nn.SiLU()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, hidden_states):
        hidden_states = self.norm1(hidden_states)
        hidden_states = self.act(hidden_states)
        return self.conv1(hidden_states)
""",
            """
class ResnetBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm1 = nn.GroupNorm(num_groups=32, num_channels=channels, eps=1e-6)
        self.act = nn.SiLU()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, hidden_states):
        hidden_states = torch_npu.npu_group_norm_swish(
            hidden_states,
            self.norm1.num_groups,
            self.norm1.weight,
            self.norm1.bias,
            eps=self.norm1.eps,
        )[0]
        return self.conv1(hidden_states)
""",
        ),
        # the formula of SiLU
        Rewritten(
            """
def decode(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor):
    h = F.group_norm(x, 32, weight, bias, 1e-6)
    return h * torch.sigmoid(h)
""",
            """
def decode(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor):
    return torch_npu.npu_group_norm_swish(x, 32, weight, bias, eps=1e-6)[0]
""",
        ),
        Rewritten(
            """
@torch.no_grad()
def decode(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor):
    return F.silu(F.group_norm(x, 32, weight, bias, eps=1e-6))
""",
            """
@torch.no_grad()
def decode(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor):
    return torch_npu.npu_group_norm_swish(x, 32, weight, bias, eps=1e-6)[0]
""",
        ),
    ),
)
