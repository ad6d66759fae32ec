"""LayerNorm written out in eager operators.

What: a module subtracts the mean of the last dimension, divides by the root of the variance plus
eps, and multiplies by a weight and adds a bias, operator by operator; also over the channels of an
image, as in ConvNeXt and Segment Anything.

Why it is slow on the NPU: eight to ten kernels, each of which reads and writes the whole activation
(ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, RealDiv, Mul, Add), and about twice as many in the
backward pass. ``F.layer_norm`` reads the activation once and writes it once. Over channels the image
is turned twice around it, which ConvNeXt's own code does for the same reason.

Safety: the same up to rounding: the kernel computes in float32 and rounds once. The variance is that
of all elements (``unbiased=False``); with torch's default for ``std`` and ``var``, or with eps
beside the root, it is another function. ``F.layer_norm`` wants activation and weight of one dtype
(condition ``same-dtype``), and a weight as long as the dimension (``one-dimensional-weight``).

References: torch.nn.functional.layer_norm; Layer Normalization (Ba, Kiros and Hinton, 2016).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import (
    PLAIN_EPS,
    SAME_DTYPE,
    inputs,
)
from npufix.rules.substitution import (
    Condition,
    Draw,
    Form,
    Rewritten,
    Substitution,
    either,
)
from npufix.rules.substitutions.written_out_layer_norm_forms import ONE_DIMENSIONAL, OTHER_WEIGHTS

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor


def variance(x: Tensor) -> Tensor:
    """Return the mean of the squared distances from the mean."""
    distance = x - x.mean(-1, keepdim=True)
    return either(
        distance.pow(2).mean(-1, keepdim=True),
        x.var(-1, keepdim=True, unbiased=False),
    )


def affine(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise, multiply by the weight, add the bias."""
    distance = x - x.mean(-1, keepdim=True)
    inverse = torch.rsqrt(variance(x) + eps)
    return either(weight * (distance * inverse), weight * distance * inverse) + bias


def plain(x: Tensor, eps: float) -> Tensor:
    """Normalise alone."""
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(variance(x) + eps)


def channels(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise the channels of each pixel."""
    distance = x - x.mean(1, keepdim=True)
    normed = distance * torch.rsqrt(distance.pow(2).mean(1, keepdim=True) + eps)
    return either(
        weight[:, None, None] * normed + bias[:, None, None],
        weight.view(1, -1, 1, 1) * normed + bias.view(1, -1, 1, 1),
        weight.reshape(1, -1, 1, 1) * normed + bias.reshape(1, -1, 1, 1),
    )


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise with one kernel."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def plain_layer_norm(x: Tensor, eps: float) -> Tensor:
    """Normalise with one kernel."""
    return F.layer_norm(x, x.shape[-1:], eps=eps)


def layer_norm_of_pixels(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Turn the channels to the end, normalise, and turn them back."""
    return F.layer_norm(x.permute(0, 2, 3, 1), weight.shape, weight, bias, eps).permute(0, 3, 1, 2)


def affine_inputs(draw: Draw) -> dict[str, Any]:
    """Return activations, weights and biases."""
    drawn = _without_half(inputs(draw))
    weight = drawn["weight"]
    return {**drawn, "bias": draw.floats(weight.shape[0], dtype=weight.dtype)}


def _without_half(drawn: dict[str, Any]) -> dict[str, Any]:
    """Return operands in float32 for float16, where written out the gradients overflow."""
    import torch

    is_half = drawn["x"].dtype == torch.float16
    return {
        n: v.float() if is_half and isinstance(v, torch.Tensor) else v for n, v in drawn.items()
    }


def plain_inputs(draw: Draw) -> dict[str, Any]:
    """Return activations."""
    drawn = _without_half(inputs(draw))
    return {"x": drawn["x"], "eps": drawn["eps"]}


def image_inputs(draw: Draw) -> dict[str, Any]:
    """Return images with a weight and a bias for each channel."""
    import torch

    channels = draw.choice([3, 8])
    dtype = draw.choice([torch.float32, torch.bfloat16])
    x = draw.floats(2, channels, draw.integer(1, 3), 4, dtype=dtype)
    return {
        "x": x * draw.choice([1.0, 1e-3]),
        "weight": draw.floats(channels, dtype=dtype),
        "bias": draw.floats(channels, dtype=dtype),
        "eps": draw.choice([1e-5, 1e-6]),
    }


IMAGES = Condition(
    "batch-of-images",
    "the activation has four dimensions: batch, channels, height, width",
    lambda site: None if (ndim := site.ndim("x")) is None else ndim == 4,  # noqa: PLR2004 - NCHW
)
_ALWAYS = (ONE_DIMENSIONAL, PLAIN_EPS, SAME_DTYPE)

RULE = Substitution(
    id="NPU166",
    name="written-out-layer-norm",
    summary="LayerNorm written out in eager operators",
    table="fusion",
    forms=(
        Form(affine, layer_norm, affine_inputs, _ALWAYS),
        Form(channels, layer_norm_of_pixels, image_inputs, (*_ALWAYS, IMAGES)),
        Form(plain, plain_layer_norm, plain_inputs, (PLAIN_EPS,)),
        *OTHER_WEIGHTS,
    ),
    replaces=(
        "Add",
        "Adds",
        "Div",
        "Mul",
        "Pow",
        "Pows",
        "RealDiv",
        "ReduceMean",
        "ReduceSum",
        "ReduceVar",
        "Rsqrt",
        "RsqrtGrad",
        "Sqrt",
        "SqrtGrad",
        "Square",
        "Sub",
    ),
    becomes=("LayerNorm", "LayerNormV3", "LayerNormV4", "LayerNormGrad", "LayerNormGradV3"),
    passes=(2, 3),
    requires="torch_npu>=2.1",
    valid=(
        # the deviation of a sample, and eps beside it (The Annotated Transformer)
        """
class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2
""",
        # the variance of a sample
        """
def f(x: torch.Tensor, weight, bias):
    mean = x.mean(-1, keepdim=True)
    var = x.var(-1, keepdim=True)
    return weight * ((x - mean) * torch.rsqrt(var + 1e-5)) + bias
""",
        # normalised over the batch
        """
def f(x: torch.Tensor):
    mean = x.mean(0, keepdim=True)
    var = x.var(0, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(var + 1e-5)
""",
        # the mean of the channels, and the variance of the rows
        """
def f(x: torch.Tensor):
    mean = x.mean(1, keepdim=True)
    var = torch.var(x, dim=-1, unbiased=False, keepdim=True)
    return (x - mean) / (var + 1e-5).sqrt()
""",
        # channels of which the variance is that of a sample
        """
class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.g = nn.Parameter(torch.ones(1, dim, 1, 1))

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        var = torch.var(x, dim=1, keepdim=True)
        return (x - mean) / (var + 1e-5).sqrt() * self.g
""",
        # the mean is needed as well
        """
def f(x: torch.Tensor):
    mean = x.mean(-1, keepdim=True)
    var = x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(var + 1e-5), mean, var
""",
    ),
    rewritten=(
        Rewritten(
            """
class BertLayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-12):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x):
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.variance_epsilon)
        return self.weight * x + self.bias
""",
            """
class BertLayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-12):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x):
        return F.layer_norm(
            x, self.weight.shape, self.weight, self.bias, self.variance_epsilon
        )
""",
        ),
        Rewritten(
            """
def norm(x: torch.Tensor, eps: float = 1e-5):
    mean = x.mean(dim=-1, keepdim=True)
    var = x.var(dim=-1, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(var + eps)
""",
            """
def norm(x: torch.Tensor, eps: float = 1e-5):
    return F.layer_norm(x, x.shape[-1:], eps=eps)
""",
        ),
        Rewritten(
            """
class ChanLayerNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.g = nn.Parameter(torch.ones(1, dim, 1, 1))

    def forward(self, x):
        var = torch.var(x, dim=1, unbiased=False, keepdim=True)
        mean = torch.mean(x, dim=1, keepdim=True)
        return (x - mean) * (var + self.eps).rsqrt() * self.g
""",
            """
class ChanLayerNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.g = nn.Parameter(torch.ones(1, dim, 1, 1))

    def forward(self, x):
        return F.layer_norm(
            x.transpose(1, -1), (x.shape[1],), self.g.flatten(), None, self.eps
        ).transpose(1, -1)
""",
        ),
        Rewritten(
            """
class LayerNorm2d(nn.Module):
    def __init__(self, num_channels, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.eps = eps

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        x = self.weight[:, None, None] * x + self.bias[:, None, None]
        return x
""",
            """
class LayerNorm2d(nn.Module):
    def __init__(self, num_channels, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.eps = eps

    def forward(self, x):
        x = F.layer_norm(
            x.permute(0, 2, 3, 1),
            self.weight.shape,
            self.weight,
            self.bias,
            self.eps,
        ).permute(0, 3, 1, 2)
        return x
""",
        ),
        Rewritten(
            """
class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        out = x - torch.mean(x, dim=1, keepdim=True)
        out = out / torch.sqrt(torch.square(out).mean(dim=1, keepdim=True) + self.eps)
        if self.elementwise_affine:
            out = out * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return out
""",
            """
class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        out = F.layer_norm(
            x.transpose(1, -1), (x.shape[1],), None, None, self.eps
        ).transpose(1, -1)
        if self.elementwise_affine:
            out = out * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return out
""",
        ),
        # a gain for each pixel
        Rewritten(
            """
class Norm(nn.Module):
    def __init__(self, height, width):
        super().__init__()
        self.g = nn.Parameter(torch.ones(height, width))

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        var = torch.var(x, dim=1, unbiased=False, keepdim=True)
        return (x - mean) / (var + 1e-5).sqrt() * self.g
""",
            """
class Norm(nn.Module):
    def __init__(self, height, width):
        super().__init__()
        self.g = nn.Parameter(torch.ones(height, width))

    def forward(self, x):
        return (
            F.layer_norm(
                x.transpose(1, -1), (x.shape[1],), None, None, 1e-5
            ).transpose(1, -1)
            * self.g
        )
""",
        ),
        # the gain first, and a power for the root
        Rewritten(
            """
class ChannelNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gamma = nn.Parameter(torch.Tensor(1, channels, 1))
        self.beta = nn.Parameter(torch.Tensor(1, channels, 1))

    def forward(self, y):
        mean = torch.mean(y, dim=1, keepdim=True)
        var = torch.var(y, dim=1, keepdim=True, unbiased=False)
        return self.gamma * (y - mean) / torch.pow(var + 1e-8, 0.5) + self.beta
""",
            """
class ChannelNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gamma = nn.Parameter(torch.Tensor(1, channels, 1))
        self.beta = nn.Parameter(torch.Tensor(1, channels, 1))

    def forward(self, y):
        return F.layer_norm(
            y.transpose(1, -1),
            (y.shape[1],),
            self.gamma.flatten(),
            self.beta.flatten(),
            1e-8,
        ).transpose(1, -1)
""",
        ),
    ),
)
