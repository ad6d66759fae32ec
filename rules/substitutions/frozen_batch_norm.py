"""A BatchNorm with fixed statistics that is written out.

What: ``FrozenBatchNorm2d`` of detectors: the scale and the shift of each channel are computed from
buffers in every call, then ``x * scale + shift``.

Why it is slow on the NPU: five small kernels for the vectors, each of which costs a launch, and two
that read and write the whole image, once per BatchNorm of the backbone: a ResNet-50 has 53 of them.
``F.batch_norm`` with ``training=False`` is one kernel.

Safety: the same up to rounding. ``F.batch_norm`` counts channels in the second dimension, the code
in the third one from the end: equal for images in a batch (condition ``batch-of-images``). It
returns the dtype of the image, where a float32 statistic would have made half precision float32
(condition ``same-dtype``), and has no gradient for the statistics
(``statistics-without-gradient``, proven for buffers).

References: torch.nn.functional.batch_norm; Deformable DETR in Ascend DrivingSDK, whose port does
the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import PLAIN_EPS
from npufix.rules.substitution import (
    Buffer,
    Condition,
    Draw,
    Form,
    Rewritten,
    Site,
    Substitution,
    either,
)
from npufix.rules.substitutions.written_out_layer_norm import IMAGES

if TYPE_CHECKING:
    import torch.nn.functional as F
    from torch import Tensor


def vectors(x: Tensor, mean: Buffer, var: Buffer, weight: Tensor, bias: Tensor, eps: float) -> Tensor:  # fmt: skip
    """Compute the scale of each channel as a vector, then turn it (Detectron2)."""
    scale = weight * (var + eps).rsqrt()
    shift = bias - mean * scale
    return either(
        x * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1),
        x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1),
        x * scale[None, :, None, None] + shift[None, :, None, None],
        x * scale[:, None, None] + shift[:, None, None],
    )


def turned(x: Tensor, mean: Buffer, var: Buffer, weight: Tensor, bias: Tensor, eps: float) -> Tensor:  # fmt: skip
    """Turn the statistics, then compute the scale (torchvision, DETR)."""
    scale = weight.reshape(1, -1, 1, 1) * (var.reshape(1, -1, 1, 1) + eps).rsqrt()
    other = weight.view(1, -1, 1, 1) * (var.view(1, -1, 1, 1) + eps).rsqrt()
    return either(
        x * scale + (bias.reshape(1, -1, 1, 1) - mean.reshape(1, -1, 1, 1) * scale),
        x * other + (bias.view(1, -1, 1, 1) - mean.view(1, -1, 1, 1) * other),
    )


def batch_norm(x: Tensor, mean: Buffer, var: Buffer, weight: Tensor, bias: Tensor, eps: float) -> Tensor:  # fmt: skip
    """Normalise with one kernel."""
    return F.batch_norm(x, mean, var, weight, bias, eps=eps)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return images and the statistics of their channels."""
    import torch

    channels = draw.integer(1, 5)
    dtype = draw.choice([torch.float32, torch.bfloat16])
    return {
        "x": draw.floats(2, channels, draw.integer(1, 3), 4, dtype=dtype),
        "mean": draw.floats(channels, dtype=dtype),
        "var": draw.floats(channels, dtype=dtype).abs() + 0.25,
        "weight": draw.floats(channels, dtype=dtype),
        "bias": draw.floats(channels, dtype=dtype),
        "eps": draw.choice([1e-5, 0.5]),
    }


def _same_dtype(site: Site) -> bool | None:
    found = [site.same_dtype("x", name) for name in ("mean", "var", "weight", "bias")]
    return True if all(found) else None


SAME_DTYPE = Condition(
    "same-dtype", "the image and the statistics have the same dtype", _same_dtype
)

_GIVEN = frozenset({"attr", "param", "global", "getitem", "detach"})
"""What a statistic is that was not computed here; one that was has a gradient in training."""


def _are_buffers(site: Site) -> bool | None:
    if site.is_buffer("mean") and site.is_buffer("var"):
        return True
    if site.is_without_gradients() or {site.operator("mean"), site.operator("var")} <= _GIVEN:
        return None
    return False


BUFFERS = Condition(
    "statistics-without-gradient",
    "mean and variance take no gradient: they are buffers",
    _are_buffers,
)
_CONDITIONS = (IMAGES, SAME_DTYPE, BUFFERS, PLAIN_EPS)

RULE = Substitution(
    id="NPU167",
    name="frozen-batch-norm",
    summary="a BatchNorm with fixed statistics that is written out",
    table="fusion",
    forms=(
        Form(vectors, batch_norm, inputs, _CONDITIONS),
        Form(turned, batch_norm, inputs, _CONDITIONS),
    ),
    replaces=("Add", "Adds", "Mul", "Rsqrt", "Sub"),
    becomes=("BNInfer", "BatchNormV3"),
    passes=(2, 2),
    requires="torch_npu>=2.1",
    valid=(
        # normalised first, then scaled by something else
        """
class Film(nn.Module):
    def forward(self, x, scale, shift):
        scale = scale.reshape(1, -1, 1, 1)
        return x * scale + shift.reshape(1, -1, 1, 1)
""",
        # eps is added to the root
        """
def f(x, mean, var, weight, bias):
    scale = weight / (var.sqrt() + 1e-5)
    shift = bias - mean * scale
    return x * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1)
""",
        # the mean is not scaled
        """
def f(x, mean, var, weight, bias):
    scale = weight * (var + 1e-5).rsqrt()
    shift = bias - mean
    return x * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1)
""",
        # channels last
        """
def f(x, mean, var, weight, bias):
    scale = weight * (var + 1e-5).rsqrt()
    shift = bias - mean * scale
    return x * scale + shift
""",
    ),
    rewritten=(
        Rewritten(
            """
class FrozenBatchNorm2d(nn.Module):
    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(num_features))
        self.register_buffer("bias", torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x):
        w = self.weight.reshape(1, -1, 1, 1)
        b = self.bias.reshape(1, -1, 1, 1)
        rv = self.running_var.reshape(1, -1, 1, 1)
        rm = self.running_mean.reshape(1, -1, 1, 1)
        scale = w * (rv + self.eps).rsqrt()
        bias = b - rm * scale
        return x * scale + bias
""",
            """
class FrozenBatchNorm2d(nn.Module):
    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(num_features))
        self.register_buffer("bias", torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x):
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            eps=self.eps,
        )
""",
        ),
    ),
)
