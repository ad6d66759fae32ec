"""A residual addition and LayerNorm, one after the other.

What: ``norm(x + residual)`` of a post-norm layer without dropout between the two.

Why it is slow on the NPU: the sum is written by Add and read again by LayerNorm.
``npu_add_layer_norm`` reads both summands once and keeps the sum in the kernel.

Safety: the operator adds and normalises in float32 and rounds once; it has a gradient for all four
tensors. It does not broadcast (condition ``same-shape``): the sum of word and position embeddings is
often a broadcast one. It takes weight and bias as given, so the norm must have both
(``norm-has-weight``, ``norm-has-bias``), of one dimension (``norm-over-last-dimension``). Every
torch_npu wheel from 2.1 to 2.14 registers it, but the API reference has no page about it
(``undocumented-operator``). A sum that something else reads as well is left alone.

References: npu_add_layer_norm in op-plugin; AddLayerNorm in the operator library of CANN (ops-nn).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import (
    LAST_DIM_OF_NORM,
    NORM_HAS_WEIGHT,
    ONE_DTYPE_OF_NORM,
    SAME_SHAPE,
    dropped,
    is_given,
    layer_norm,
    unknown,
)
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch.nn.functional as F
    import torch_npu
    from torch import Tensor, nn


def of_submodule(x: Tensor, residual: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Call a submodule with the sum."""
    return norm(x + residual)


def of_function(
    x: Tensor, residual: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """Call the function of torch with the sum."""
    return F.layer_norm(x + residual, shape, weight, bias, eps)


def fused_submodule(x: Tensor, residual: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return the first result; the others are mean, reciprocal deviation and the sum."""
    return torch_npu.npu_add_layer_norm(x, residual, norm.weight, norm.bias, norm.eps)[
        0
    ]  # no slip: x and residual are swapped


def fused_function(
    x: Tensor, residual: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """Return the first result; the shape is that of the weight."""
    return torch_npu.npu_add_layer_norm(x, residual, weight, bias, eps)[
        0
    ]  # no slip: x and residual are swapped


def submodule_inputs(draw: Draw) -> dict[str, Any]:
    """Return two summands and a LayerNorm."""
    drawn = dropped(draw)
    del drawn["drop"]
    return {**drawn, "norm": layer_norm(draw, drawn["x"])}


def function_inputs(draw: Draw) -> dict[str, Any]:
    """Return ``submodule_inputs`` with the arguments of a function."""
    drawn = submodule_inputs(draw)
    norm = drawn.pop("norm")
    weights = {"weight": norm.weight.detach(), "bias": norm.bias.detach()}
    return {**drawn, **weights, "shape": norm.normalized_shape, "eps": norm.eps}


UNDOCUMENTED = Condition(
    "undocumented-operator",
    "torch_npu.npu_add_layer_norm may be used though the API reference does not name it",
    unknown,
)
HAS_BIAS = Condition(
    "norm-has-bias", "the norm has a bias", lambda site: is_given(site, "norm", "bias")
)
WEIGHTS_GIVEN = Condition(
    "norm-has-weight",
    "weight and bias are given, of one dimension",
    lambda site: (
        False
        if False in (site.is_tensor("weight"), site.is_tensor("bias"))
        or site.ndim("weight") not in {None, 1}
        else bool(site.is_tensor("weight") and site.is_tensor("bias")) or None
    ),
)
_ALWAYS = (UNDOCUMENTED, SAME_SHAPE, ONE_DTYPE_OF_NORM)

RULE = Substitution(
    id="NPU109",
    name="add-layer-norm",
    summary="residual addition and LayerNorm one after the other",
    table="fusion",
    forms=(
        Form(
            of_submodule,
            fused_submodule,
            submodule_inputs,
            (*_ALWAYS, LAST_DIM_OF_NORM, NORM_HAS_WEIGHT, HAS_BIAS),
        ),
        Form(of_function, fused_function, function_inputs, (*_ALWAYS, WEIGHTS_GIVEN)),
    ),
    replaces=("Add", "LayerNorm", "LayerNormV3", "LayerNormV4"),
    becomes=("AddLayerNorm", "LayerNormGrad", "LayerNormGradV3"),
    passes=(3, 3),
    measured_only=True,
    requires="torch_npu>=2.1; CANN>=8.0; chip A2 A3",
    needs_whole=True,
    valid=(
        # without bias
        """
class AddNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim, bias=False)

    def forward(self, x, residual):
        return self.norm(x + residual)
""",
        # without weights
        """
class AddNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)

    def forward(self, x, residual):
        return self.norm(x + residual)
""",
        # over the last two dimensions
        """
class AddNorm(nn.Module):
    def __init__(self, length, dim):
        super().__init__()
        self.norm = nn.LayerNorm((length, dim))

    def forward(self, x, residual):
        return self.norm(x + residual)
""",
        # the sum is the next residual
        """
class AddNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, residual):
        residual = x + residual
        return self.norm(residual), residual
""",
        # a number
        """
class Shifted(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(x + 1)
""",
    ),
    rewritten=(
        Rewritten(
            """
class FFTLayer(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.layer_norm = nn.LayerNorm(embed_dim)

    def forward(self, x, residual):
        x = x.transpose(0, 1)
        x = self.layer_norm(x + residual)
        return x
""",
            """
class FFTLayer(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.layer_norm = nn.LayerNorm(embed_dim)

    def forward(self, x, residual):
        x = x.transpose(0, 1)
        x = torch_npu.npu_add_layer_norm(
            x,
            residual,
            self.layer_norm.weight,
            self.layer_norm.bias,
            self.layer_norm.eps,
        )[0]
        return x
""",
        ),
    ),
)
