"""What the rules about normalisation share: inputs to try, and conditions on their operands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition

if TYPE_CHECKING:
    from torch import Tensor, nn

    from npufix.rules.substitution import Draw, Site


# Limits of the fused dropout, addition and norm of MindSpeed.
_DIMS = 3
_MULTIPLE = 8
_LONGEST = 8192


def inputs(draw: Draw) -> dict[str, Any]:
    """Return activations with rows so small that a forgotten ``eps`` shows."""
    import torch

    hidden = draw.choice([8, 16, 24])
    shape = draw.choice([(3, hidden), (2, 5, hidden), (2, 1, 3, hidden)])
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    scale = draw.choice([1.0, 1e-3])
    return {
        "x": draw.floats(*shape, dtype=dtype) * scale,
        "weight": draw.floats(hidden, dtype=dtype),
        "eps": draw.choice([1e-5, 1e-6]),
    }


def offset_inputs(draw: Draw) -> dict[str, Any]:
    """Return ``inputs`` for a weight that one is added to: as small as such weights are."""
    drawn = inputs(draw)
    return {**drawn, "weight": drawn["weight"] * 0.25}


def half_with_float_weight(draw: Draw) -> dict[str, Any]:
    """Return ``inputs`` whose weight may be float32 while the activation is not."""
    drawn = inputs(draw)
    drawn["weight"] = draw.choice([drawn["weight"], drawn["weight"].float()])
    return drawn


def with_shape(draw: Draw) -> dict[str, Any]:
    """Return ``inputs`` with the length of the last dimension."""
    drawn = inputs(draw)
    return {**drawn, "shape": (drawn["x"].shape[-1],)}


def layer_norm(draw: Draw, x: Tensor) -> nn.LayerNorm:
    """Return a LayerNorm for ``x`` with weights that are not one and zero."""
    from torch import nn

    norm = nn.LayerNorm(x.shape[-1], eps=draw.choice([1e-5, 1e-3]))
    norm.weight.data = draw.floats(x.shape[-1], dtype=x.dtype)
    norm.bias.data = draw.floats(x.shape[-1], dtype=x.dtype)
    return norm


def rms_norm(draw: Draw, x: Tensor) -> nn.RMSNorm:
    """Return an RMSNorm for ``x`` with weights that are not one."""
    from torch import nn

    norm = nn.RMSNorm(x.shape[-1], eps=draw.choice([1e-5, 1e-3]))
    norm.weight.data = draw.floats(x.shape[-1], dtype=x.dtype)
    return norm


def dropped(draw: Draw) -> dict[str, Any]:
    """Return what is dropped and added: (B, S, H), a residual, and a Dropout in any mode."""
    import torch
    from torch import nn

    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    shape = (draw.integer(1, 3), draw.choice([1, 5]), draw.choice([8, 16]))
    dropout = nn.Dropout(draw.choice([0.0, 0.1, 0.5])).train(draw.choice([False, True]))
    return {
        "x": draw.floats(*shape, dtype=dtype),
        "residual": draw.floats(*shape, dtype=dtype),
        "drop": dropout,
    }


def is_given(site: Site, norm: str, parameter: str) -> bool | None:
    """Tell whether a flag of a norm among the submodules is set, as it is by default."""
    given = site.setting(norm, parameter)
    return None if given is None else {"": True, "True": True, "False": False}.get(given)


def is_vector_weight(site: Site, *activations: str) -> bool | None:
    """Tell whether the weight is one gain per element of the last dimension."""
    ndim = site.ndim("weight")
    if any(map(site.is_centred, activations)):  # a LayerNorm
        return False
    if (
        site.is_tensor("weight") is False
        or site.size("weight", 0) == 1
        or site.is_detached("weight")
        or site.is_projected("weight")
    ):
        return False
    return None if ndim is None else ndim == 1


def _same_shape(site: Site) -> bool | None:
    if any(site.is_tensor(name) is False for name in ("x", "residual")):
        return False
    if any("mbedding" in site.operator(name) for name in ("x", "residual")):
        return False  # positions are one row for the whole batch
    return False if site.same_ndim("x", "residual") is False else None


SAME_DTYPE = Condition(
    "same-dtype",
    "the activation and the weight have the same dtype",
    lambda site: site.same_dtype("x", "weight"),
)
KERNEL_DTYPES = Condition(
    "same-dtype",
    "the activation and the weight have the same dtype (on Atlas A2 and A3 a float32 weight is "
    "fine as well)",
    lambda site: site.dtype("weight") == "float32" or site.same_dtype("x", "weight"),
)
ONE_DIMENSIONAL = Condition(
    "one-dimensional-weight",
    "the weight has one dimension, as long as the last one of the activation",
    lambda site: is_vector_weight(site, "x"),
)
PLAIN_EPS = Condition(
    "number-eps",
    "eps is a Python number, not a tensor or a trained parameter",
    lambda site: site.is_plain("eps"),
)
INFERENCE = Condition(
    "inference",
    "no gradient is needed: the operator has none",
    lambda site: site.is_without_gradients(),
)
SAME_SHAPE = Condition(
    "same-shape",
    "both summands have the same shape: nothing is broadcast",
    _same_shape,
)


def unknown(site: Site) -> bool | None:
    """Tell nothing: neither a source nor a dump knows."""
    return None


RANDOM_NUMBERS = Condition(
    "other-random-numbers",
    "in training the fused operator may drop other elements than torch does from the same seed",
    unknown,
)
MINDSPEED = Condition(
    "mindspeed-installed",
    "MindSpeed is installed where this runs (https://gitcode.com/Ascend/MindSpeed)",
    unknown,
)


def _three_dimensional(site: Site) -> bool | None:
    ndim, length = site.ndim("x"), site.size("x", -1)
    if (ndim or _DIMS) != _DIMS or site.same_ndim("x", "residual") is False:
        return False
    if length is not None and (length % _MULTIPLE or length > _LONGEST):
        return False
    return True if ndim and length else None


BATCH_SEQUENCE_HIDDEN = Condition(
    "batch-sequence-hidden",
    "both summands have the same shape (B, S, H), with H a multiple of 8 and at most 8192",
    _three_dimensional,
)
ONE_DTYPE_OF_NORM = Condition(
    "same-dtype",
    "both summands and the weights of the norm have the same dtype (under autocast they have not)",
    lambda site: False if site.same_dtype("x", "residual") is False else None,
)
LAST_DIM_OF_NORM = Condition(
    "norm-over-last-dimension",
    "the norm is over the last dimension alone",
    lambda site: None if (dims := site.normalized_dims("norm")) is None else dims == 1,
)
NORM_HAS_WEIGHT = Condition(
    "norm-has-weight",
    "the norm has a weight (elementwise_affine)",
    lambda site: is_given(site, "norm", "elementwise_affine"),
)


def _has_eps(site: Site) -> bool | None:
    given = site.setting("norm", "eps")
    return None if given is None else given not in {"", "None"}


NORM_HAS_EPS = Condition("norm-has-eps", "the norm was given an eps: a number, not None", _has_eps)
