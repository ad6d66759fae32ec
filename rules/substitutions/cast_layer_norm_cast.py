"""LayerNorm between two casts.

What: ``F.layer_norm(x.float(), shape, weight.float(), bias.float(), eps).to(x.dtype)``, written to
keep the statistics in float32; the same of a module, ``self.norm(x.float()).to(x.dtype)``, of a class
that calls ``super().forward(x.float())``, and without weights.

Why it is slow on the NPU: two Cast kernels that each read and write the activation, and a LayerNorm
that moves twice the bytes. The LayerNorm kernels of CANN compute in float32 whatever they are given.

Use instead: ``F.layer_norm(x, shape, weight, bias, eps)``, with the weights in the dtype of ``x``.

Safety: advice. Equal up to one rounding of the weights, but weights that are kept in float32 on
purpose would have to be kept twice; check the accuracy of the model.

References: "Cast-LayerNorm-Cast" of the MindStudio advisor; the mixed-precision page of the tuning
guide, which wants norms in float32: they are, inside the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import INFERENCE, layer_norm
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn


def in_float32(
    x: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """Cast, normalise in float32, cast back."""
    return F.layer_norm(
        x.to(torch.float32),
        shape,
        weight.to(torch.float32),
        bias.to(torch.float32),
        eps,
    ).to(x.dtype)


def weights_kept(
    x: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """Cast the activation alone (CLIP, Wan)."""
    return F.layer_norm(x.to(torch.float32), shape, weight, bias, eps).to(x.dtype)


def without_weights(x: Tensor, shape: tuple[int, ...], eps: float) -> Tensor:
    """Cast where there are no weights."""
    return F.layer_norm(x.to(torch.float32), shape, None, None, eps).to(x.dtype)


def of_module(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Cast around a module."""
    return norm(x.to(torch.float32)).to(x.dtype)


def module_in_dtype(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Let the kernel of the module do the casts."""
    return norm(x)


def in_dtype_without(x: Tensor, shape: tuple[int, ...], eps: float) -> Tensor:
    """Let the kernel do the casts."""
    return F.layer_norm(x, shape, None, None, eps)


def in_dtype(x: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Let the kernel do the casts."""
    return F.layer_norm(x, shape, weight, bias, eps)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return activations and weights of one dtype."""
    import torch

    hidden = draw.choice([8, 16])
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    return {
        "x": draw.floats(*draw.choice([(3, hidden), (2, 5, hidden)]), dtype=dtype),
        "shape": (hidden,),
        "weight": draw.floats(hidden, dtype=dtype),
        "bias": draw.floats(hidden, dtype=dtype),
        "eps": draw.choice([1e-5, 1e-3]),
    }


def float_weights(draw: Draw) -> dict[str, Any]:
    """Return ``inputs`` with weights in float32."""
    drawn = inputs(draw)
    return {**drawn, "weight": drawn["weight"].float(), "bias": drawn["bias"].float()}


def no_weights(draw: Draw) -> dict[str, Any]:
    """Return ``inputs`` without weights."""
    return {name: value for name, value in inputs(draw).items() if name not in {"weight", "bias"}}


def with_module(draw: Draw) -> dict[str, Any]:
    """Return activations and a LayerNorm in float32."""
    x = inputs(draw)["x"]
    return {"x": x, "norm": layer_norm(draw, x.float())}


TAKES_BOTH = Condition(
    "float32-weights",
    "the LayerNorm of the device takes weights in float32 beside an activation in half precision",
    lambda _site: None,
)
SAME_DTYPE = Condition(
    "same-dtype",
    "the activation and the weights have the same dtype",
    lambda site: site.same_dtype("x", "weight"),
)

RULE = Substitution(
    id="NPU117",
    name="cast-layer-norm-cast",
    summary="LayerNorm between two casts",
    table="fusion",
    forms=(
        Form(in_float32, in_dtype, inputs, (SAME_DTYPE,)),
        Form(without_weights, in_dtype_without, no_weights),
        Form(weights_kept, in_dtype, float_weights, (TAKES_BOTH, INFERENCE)),
        Form(of_module, module_in_dtype, with_module, (TAKES_BOTH, INFERENCE)),
    ),
    replaces=("Cast", "LayerNorm", "LayerNormV3", "LayerNormV4"),
    becomes=("LayerNorm", "LayerNormV3", "LayerNormV4"),
    passes=(2, 3),
    requires="torch_npu>=2.1",
    advice=(
        "drop the casts: the LayerNorm kernels compute in float32 anyway. Whether the weights may be "
        "kept in the dtype of the activation is a question of accuracy that only a run answers"
    ),
    valid=(
        # the result stays float32
        """
def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor):
    return F.layer_norm(x.float(), x.shape[-1:], weight.float(), bias.float(), 1e-5)
""",
        # no cast
        """
def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor):
    return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)
""",
        # a class of another base
        """
class Norm(nn.GroupNorm):
    def forward(self, x):
        return super().forward(x.float()).type_as(x)
""",
        # double precision
        """
def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor):
    y = F.layer_norm(x.double(), x.shape[-1:], weight.double(), bias.double(), 1e-5)
    return y.to(x.dtype)
""",
    ),
    rewritten=(
        # Wan, CLIP: the forward of the base between casts
        Rewritten(
            """
class WanLayerNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.float()).type_as(x)
""",
            """
class WanLayerNorm(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(
            x, self.normalized_shape, self.weight, self.bias, self.eps
        )
""",
        ),
        Rewritten(
            """
class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(x.float()).to(x.dtype)
""",
            """
class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(x)
""",
        ),
        Rewritten(
            """
class Fp32LayerNorm(nn.LayerNorm):
    def forward(self, input):
        output = F.layer_norm(
            input.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps
        )
        return output.type_as(input)
""",
            """
class Fp32LayerNorm(nn.LayerNorm):
    def forward(self, input):
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
""",
        ),
    ),
)
