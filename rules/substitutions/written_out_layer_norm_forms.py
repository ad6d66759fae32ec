"""LayerNorm written out without a bias, or over channels whose gain is shaped for the image.

``self.g = nn.Parameter(torch.ones(1, channels, 1, 1))`` of vision transformers, ``torch.ones(1, channels, 1)``
of speech models. The activation is turned, which is a view, so that its channels come last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import PLAIN_EPS, SAME_DTYPE, inputs, is_vector_weight
from npufix.rules.substitution import Condition, Draw, Form, Site, either

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

_LEAST_DIMS = 3


def gain(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension and multiply by the weight."""
    distance = x - x.mean(-1, keepdim=True)
    square = either(distance.pow(2).mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False))
    inverse = torch.rsqrt(square + eps)
    return either(weight * (distance * inverse), weight * distance * inverse)


def layer_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise with one kernel."""
    return F.layer_norm(x, weight.shape, weight, None, eps)


def normed_channels(x: Tensor, eps: float) -> Tensor:
    """Normalise the channels of each position."""
    distance = x - x.mean(1, keepdim=True)
    square = either(distance.pow(2).mean(1, keepdim=True), x.var(1, keepdim=True, unbiased=False))
    return distance * torch.rsqrt(square + eps)


def gain_of_channels(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the channels and multiply by the weight, before or after the division."""
    distance = x - x.mean(1, keepdim=True)
    square = either(distance.pow(2).mean(1, keepdim=True), x.var(1, keepdim=True, unbiased=False))
    inverse = torch.rsqrt(square + eps)
    return either(weight * (distance * inverse), weight * distance * inverse)


def layer_norm_of_channels(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Turn the channels to the end, normalise with one kernel, and turn them back."""
    return F.layer_norm(x.transpose(1, -1), (x.shape[1],), weight.flatten(), None, eps).transpose(
        1, -1
    )


def affine_channels(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise the channels, multiply by the weight, add the bias."""
    return gain_of_channels(x, weight, eps) + bias


def affine_layer_norm_of_channels(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Turn the channels to the end, normalise with one kernel, and turn them back."""
    return F.layer_norm(
        x.transpose(1, -1), (x.shape[1],), weight.flatten(), bias.flatten(), eps
    ).transpose(1, -1)


def plain_layer_norm_of_channels(x: Tensor, eps: float) -> Tensor:
    """Turn the channels to the end, normalise with one kernel, and turn them back."""
    return F.layer_norm(x.transpose(1, -1), (x.shape[1],), None, None, eps).transpose(1, -1)


def gain_inputs(draw: Draw) -> dict[str, Any]:
    """Return activations and weights; in float16 the gradients of what is written out overflow."""
    import torch

    drawn = inputs(draw)
    half = drawn["x"].dtype == torch.float16
    return {n: v.float() if half and n != "eps" else v for n, v in drawn.items()}


def channel_inputs(draw: Draw) -> dict[str, Any]:
    """Return activations of three or four dimensions and a gain for each channel."""
    import torch

    sizes = draw.choice([(3,), (2, 3)])
    channels, dtype = draw.choice([4, 8]), draw.choice([torch.float32, torch.bfloat16])
    x = draw.floats(2, channels, *sizes, dtype=dtype) * draw.choice([1.0, 1e-3])
    ones = [1] * len(sizes)
    return {
        "x": x,
        "weight": draw.floats(1, channels, *ones, dtype=dtype),
        "eps": draw.choice([1e-5, 1e-3]),
    }


def plain_channel_inputs(draw: Draw) -> dict[str, Any]:
    """Return the same without a gain."""
    return {name: value for name, value in channel_inputs(draw).items() if name != "weight"}


def affine_channel_inputs(draw: Draw) -> dict[str, Any]:
    """Return the same with a bias."""
    drawn = channel_inputs(draw)
    weight = drawn["weight"]
    return {**drawn, "bias": draw.floats(*weight.shape, dtype=weight.dtype)}


def _is_per_channel(site: Site, name: str) -> bool | None:
    ndim = site.ndim(name)
    if site.is_tensor(name) is False or (ndim is not None and ndim < _LEAST_DIMS):
        return False
    sizes = [site.size(name, 0), *(site.size(name, dim) for dim in range(2, ndim or 0))]
    if any(size not in {1, None} for size in sizes):
        return False
    return True if ndim and None not in sizes and site.ndim("x") in {None, ndim} else None


ONE_DIMENSIONAL = Condition(
    "one-dimensional-weight",
    "the weight has one dimension, as long as the one that is normalised",
    is_vector_weight,
    "vector-weight",
)
PER_CHANNEL = Condition(
    "one-gain-per-channel",
    "the weight holds one gain for each channel: (1, channels, 1, ...)",
    lambda site: _is_per_channel(site, "weight"),
)
BIAS_PER_CHANNEL = Condition(
    "one-bias-per-channel",
    "the bias holds one number for each channel: (1, channels, 1, ...)",
    lambda site: _is_per_channel(site, "bias"),
)
OTHER_WEIGHTS = (
    Form(gain, layer_norm, gain_inputs, (ONE_DIMENSIONAL, PLAIN_EPS, SAME_DTYPE)),
    Form(
        affine_channels,
        affine_layer_norm_of_channels,
        affine_channel_inputs,
        (PER_CHANNEL, BIAS_PER_CHANNEL, PLAIN_EPS, SAME_DTYPE),
    ),
    Form(
        gain_of_channels,
        layer_norm_of_channels,
        channel_inputs,
        (PER_CHANNEL, PLAIN_EPS, SAME_DTYPE),
    ),
    Form(normed_channels, plain_layer_norm_of_channels, plain_channel_inputs, (PLAIN_EPS,)),
)
