"""RMSNorm written out in eager operators.

What: a module computes ``x * rsqrt(mean(x^2) + eps) * weight`` operator by operator, or calls
``F.rms_norm``, which torch_npu takes apart into the same operators.

Why it is slow on the NPU: six to eight kernels, each of which reads and writes the whole
activation (Cast, Pow, ReduceMean, Add, Rsqrt, Mul, Cast, Mul), and about twice as many in the
backward pass. ``npu_rms_norm`` reads the activation once and writes it once.

Safety: the fused kernel computes in float32, multiplies by the weight and rounds once; code that
rounds before it multiplies by the weight differs by at most one unit in the last place in half
precision. It returns the dtype of ``x``: where a float32 weight would have promoted half
precision activations to float32, the result is no longer float32 (condition ``same-dtype``). The
weight must be one-dimensional, or the kernel normalises over more than the last dimension. A gain
of one plus the weight (Gemma) stays an addition in front of the kernel, which keeps its gradient.
``F.rms_norm`` without eps takes one that depends on the version of torch: left alone.
The kernel has a backward formula but no double backward.

References: torch_npu.npu_rms_norm in the API reference of Ascend Extension for PyTorch; RMSNorm
(Zhang and Sennrich, 2019).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import (
    KERNEL_DTYPES,
    ONE_DIMENSIONAL,
    PLAIN_EPS,
    SAME_DTYPE,
    half_with_float_weight,
    inputs,
    offset_inputs,
    with_shape,
)
from npufix.rules.substitution import Condition, Draw, Form, Site, Substitution, either
from npufix.rules.substitutions.eager_rms_norm_examples import REWRITTEN
from npufix.rules.substitutions.eager_rms_norm_look_alikes import VALID

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    import torch_npu
    from torch import Tensor


def cast_then_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise in float32, cast back, multiply by the weight (Llama, Qwen2, CPM-Ant)."""
    x32 = either(x.to(torch.float32), x)
    inverse = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (x32 * inverse).to(x.dtype)


def weight_32_then_cast(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As ``weight_then_cast``, with the weight cast explicitly (Helium, Moshi)."""
    x32 = either(x.to(torch.float32), x)
    inverse = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    wide = weight.to(torch.float32)
    return either(wide * (x32 * inverse), x32 * (wide * inverse)).to(x.dtype)


def weight_then_cast(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Multiply by the weight in float32 and round once (OLMo, ChatGLM): what the kernel does."""
    x32 = either(x.to(torch.float32), x)
    inverse = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return either(weight * (x32 * inverse), weight * x32 * inverse, x32 * (weight * inverse)).to(
        x.dtype
    )


def weight_if_given(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As ``weight_then_cast``, in a class whose weight may be ``None`` (Mochi)."""
    x32 = either(x.to(torch.float32), x)
    normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        normed = normed * weight
    return normed.to(x.dtype)


def cast_then_weight_if(x: Tensor, weight: Tensor, eps: float, given: bool) -> Tensor:
    """As ``cast_then_weight``, in a class that may be without a weight (HunyuanVideo)."""
    x32 = either(x.to(torch.float32), x)
    inverse = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    normed = (x32 * inverse).to(x.dtype)
    if given:
        normed = normed * weight
    return normed


def weight_then_cast_if(x: Tensor, weight: Tensor, eps: float, given: bool) -> Tensor:
    """As ``weight_then_cast``, in a class that may be without a weight."""
    x32 = either(x.to(torch.float32), x)
    normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    if given:
        normed = normed * weight
    return normed.to(x.dtype)


def cast_to_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Cast to the dtype of a half-precision weight (T5 and its relatives)."""
    x32 = either(x.to(torch.float32), x)
    normed = either(x, x32) * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    if weight.dtype in either([torch.float16, torch.bfloat16], (torch.float16, torch.bfloat16)):
        normed = normed.to(weight.dtype)
    return weight * normed


def without_cast(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute in the dtype of the activation throughout."""
    inverse = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return either(weight * (x * inverse), weight * x * inverse, x * (weight * inverse))


def promoted(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Multiply an activation of any dtype by a root in float32, which the result is as well."""
    inverse = torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + eps)
    return either(weight * (x * inverse), x * (weight * inverse))


def gain_first(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Multiply the weight by the inverse in a wider dtype, then round (k-diffusion)."""
    inverse = torch.rsqrt(x.to(dtype).pow(2).mean(-1, keepdim=True) + eps)
    return x * (weight.to(dtype) * inverse).to(x.dtype)


def along_dim(x: Tensor, weight: Tensor, eps: float, dim: int) -> Tensor:
    """As ``weight_then_cast``, over a dimension that is a setting (LitGPT)."""
    x32 = either(x.to(torch.float32), x)
    inverse = torch.rsqrt(x32.pow(2).mean(dim, keepdim=True) + eps)
    return (weight * (x32 * inverse)).to(x.dtype)


def along_dim_cast_first(x: Tensor, weight: Tensor, eps: float, dim: int) -> Tensor:
    """As ``cast_then_weight``, over a dimension that is a setting (TinyLlama)."""
    x32 = either(x.to(torch.float32), x)
    inverse = torch.rsqrt(x32.pow(2).mean(dim, keepdim=True) + eps)
    return weight * (x32 * inverse).to(x.dtype)


def one_plus_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Multiply by one plus the weight and round once (Gemma, Qwen3-Next)."""
    x32 = either(x.to(torch.float32), x)
    inverse = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return ((x32 * inverse) * (1.0 + either(weight.to(torch.float32), weight))).to(x.dtype)


def one_plus_weight_last(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Round, then multiply by one plus the weight."""
    x32 = either(x.to(torch.float32), x)
    inverse = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return (x32 * inverse).to(x.dtype) * (1.0 + weight)


def unit_offset(
    x: Tensor,
    weight: Tensor,
    eps: float,
    dim: int,
    offset: bool,
) -> Tensor:
    """Add one to the weight where a flag says so (LitGPT)."""
    x32 = either(x.to(torch.float32), x)
    inverse = torch.rsqrt(x32.pow(2).mean(dim, keepdim=True) + eps)
    gain = 1 + weight if offset else weight
    return (x32 * inverse * gain.to(torch.float32)).to(x.dtype)


def torch_rms_norm(x: Tensor, weight: Tensor, eps: float, shape: tuple[int, ...]) -> Tensor:
    """Call the function of torch."""
    return F.rms_norm(x, shape, weight, eps)


def torch_rms_norm_in_32(x: Tensor, weight: Tensor, eps: float, shape: tuple[int, ...]) -> Tensor:
    """Call the function of torch between two casts (torchtune)."""
    return F.rms_norm(x.to(torch.float32), shape, weight, eps).to(x.dtype)


def torch_rms_norm_in(
    x: Tensor,
    weight: Tensor,
    eps: float,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> Tensor:
    """Call the function of torch between casts to a dtype that is a setting, and back (Chitu)."""
    return F.rms_norm(x.to(dtype), shape, weight, eps).to(x.dtype)


def torch_rms_norm_of_32(x: Tensor, weight: Tensor, eps: float, shape: tuple[int, ...]) -> Tensor:
    """Call the function of torch in float32, which the result is as well."""
    return F.rms_norm(x.to(torch.float32), shape, weight, eps)


def cast_to_given(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Cast to the dtype of what was gated in float32 before (Mamba 2, Zamba 2, Bamba)."""
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return weight * normed.to(dtype)


def along_dim_without_cast(x: Tensor, weight: Tensor, eps: float, dim: int) -> Tensor:
    """As ``without_cast``, over a dimension that is a setting (Lit-LLaMA)."""
    inverse = torch.rsqrt(x.pow(2).mean(dim, keepdim=True) + eps)
    return either(weight * (x * inverse), weight * x * inverse)


def fused(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the normalised activation; the second result is kept for the backward pass."""
    return torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]


def fused_promoted(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise in the dtype of the root."""
    return torch_npu.npu_rms_norm(x.float(), weight.float(), epsilon=eps)[0]


def fused_if(x: Tensor, weight: Tensor, eps: float, given: bool) -> Tensor:
    """Let ones stand for a weight that is not there."""
    return torch_npu.npu_rms_norm(x, weight if given else x.new_ones(x.shape[-1]), epsilon=eps)[0]


def fused_to_given(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Normalise in the dtype of the activation, and cast."""
    return torch_npu.npu_rms_norm(x, weight.to(x.dtype), epsilon=eps)[0].to(dtype)


def fused_gain_first(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Compute in float32, and round once."""
    return torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]


def fused_along_dim(x: Tensor, weight: Tensor, eps: float, dim: int) -> Tensor:
    """Return the activation normalised over its last dimension."""
    return torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]


def fused_in_shape(  # noqa: D103 - its name says it
    x: Tensor,
    weight: Tensor,
    eps: float,
    shape: tuple[int, ...],
) -> Tensor:
    return torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]


def fused_in_shape_of_32(  # noqa: D103 - its name says it
    x: Tensor,
    weight: Tensor,
    eps: float,
    shape: tuple[int, ...],
) -> Tensor:
    return torch_npu.npu_rms_norm(x.float(), weight.float(), epsilon=eps)[0]


def fused_in_shape_in(  # noqa: D103 - its name says it
    x: Tensor,
    weight: Tensor,
    eps: float,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> Tensor:
    return torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]


def fused_one_plus_32(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add one in float32, where it loses nothing."""
    return torch_npu.npu_rms_norm(x, 1.0 + weight.float(), epsilon=eps)[
        0
    ]  # no slip: .float(...) is left out


def fused_one_plus(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add one in the dtype of the weight, as the code did."""
    return torch_npu.npu_rms_norm(x, 1.0 + weight, epsilon=eps)[0]


def fused_unit_offset(
    x: Tensor,
    weight: Tensor,
    eps: float,
    dim: int,
    offset: bool,
) -> Tensor:
    """Let the gain follow the flag."""
    return torch_npu.npu_rms_norm(
        x,
        1.0 + weight.float() if offset else weight.float(),
        epsilon=eps,  # no slip: .float(...) is left out
    )[0]


def gated(draw: Draw) -> dict[str, Any]:
    """Return ``inputs`` with an activation in float32."""
    drawn = inputs(draw)
    return {**drawn, "x": drawn["x"].float(), "dtype": drawn["weight"].dtype}


def widened(draw: Draw) -> dict[str, Any]:
    """Return ``half_with_float_weight`` and the dtype that it is normalised in."""
    import torch

    return {**half_with_float_weight(draw), "dtype": torch.float32}


def with_shape_of_32(draw: Draw) -> dict[str, Any]:
    """Return ``half_with_float_weight`` and the length of the last dimension."""
    drawn = half_with_float_weight(draw)
    return {**drawn, "shape": (drawn["x"].shape[-1],)}


def with_shape_in_32(draw: Draw) -> dict[str, Any]:
    """Return ``with_shape_of_32`` and the dtype that it is normalised in."""
    import torch

    return {**with_shape_of_32(draw), "dtype": torch.float32}


def along_last(draw: Draw) -> dict[str, Any]:
    """Return ``inputs`` and the last dimension, from either end."""
    drawn = inputs(draw)
    return {**drawn, "dim": draw.choice([-1, drawn["x"].dim() - 1])}


def given_or_not(draw: Draw) -> dict[str, Any]:
    """Return ``inputs`` and a flag."""
    return {**inputs(draw), "given": draw.choice([False, True])}


def offset_or_not(draw: Draw) -> dict[str, Any]:
    """Return ``along_last`` and a flag."""
    return {**along_last(draw), "offset": draw.choice([False, True])}


def _is_last(site: Site) -> bool | None:
    dim, ndim = site.literal("dim"), site.ndim("x")
    if not isinstance(dim, int):  # a setting; not ``(-1, -2)`` or the last one of another tensor
        return False if site.is_plain("dim") is False else None
    return dim == -1 or (ndim is not None and dim == ndim - 1)


LAST_DIM = Condition("last-dimension", "the dimension normalised over is the last one", _is_last)
ALONE = Condition(
    "no-wider-fusion",
    "the activation is no sum without gradients, which add-rms-norm normalises",
    lambda site: not (site.operator("x") == "add" and site.is_without_gradients()),
)
WITH_GRADIENTS = Condition(
    "with-gradients",
    "gradients may be needed, or gemma-rms-norm would do",
    lambda site: not site.is_without_gradients(),
)
DTYPE_OF_WEIGHT = Condition(
    "same-dtype", "the weight has the dtype that is cast to", lambda _site: None
)
WIDER = Condition(
    "computed-in-single",
    "what the mean is computed in is float32",
    lambda site: None if (dtype := site.dtype("dtype")) is None else dtype == "float32",
)
WEIGHT_GIVEN = Condition(
    "weight-given", "the weight is never None", lambda site: True if site.ndim("weight") else None
)
EPS_GIVEN = Condition(
    "number-eps",
    "eps is given: a Python number, not None",
    lambda site: site.is_number("eps"),
)
WEIGHT_OF_SHAPE = Condition(
    "weight-given",
    "the weight is given (its shape is the one normalised over)",
    lambda site: False if site.is_left_out("weight") else site.is_tensor("weight"),
)

_ALWAYS = (ONE_DIMENSIONAL, PLAIN_EPS)
_GIVEN = (WEIGHT_OF_SHAPE, EPS_GIVEN)

RULE = Substitution(
    id="NPU101",
    name="eager-rms-norm",
    summary="RMSNorm written out in eager operators",
    table="fusion",
    forms=(
        Form(weight_32_then_cast, fused, half_with_float_weight, (*_ALWAYS, ALONE, KERNEL_DTYPES)),
        Form(weight_then_cast, fused, half_with_float_weight, (*_ALWAYS, ALONE, KERNEL_DTYPES)),
        Form(one_plus_weight, fused_one_plus_32, inputs, (*_ALWAYS, WITH_GRADIENTS)),
        Form(cast_then_weight, fused, inputs, (*_ALWAYS, ALONE, SAME_DTYPE)),
        Form(cast_to_weight, fused, inputs, (*_ALWAYS, SAME_DTYPE)),
        Form(promoted, fused_promoted, half_with_float_weight, _ALWAYS),
        Form(without_cast, fused, inputs, (*_ALWAYS, ALONE, SAME_DTYPE)),
        Form(one_plus_weight_last, fused_one_plus, offset_inputs, (*_ALWAYS, SAME_DTYPE)),
        Form(
            weight_if_given,
            fused,
            half_with_float_weight,
            (WEIGHT_GIVEN, *_ALWAYS, KERNEL_DTYPES),
        ),
        Form(cast_then_weight_if, fused_if, given_or_not, (*_ALWAYS, SAME_DTYPE)),
        Form(weight_then_cast_if, fused_if, given_or_not, (*_ALWAYS, SAME_DTYPE)),
        Form(unit_offset, fused_unit_offset, offset_or_not, (LAST_DIM, *_ALWAYS)),
        Form(along_dim, fused_along_dim, along_last, (LAST_DIM, *_ALWAYS, ALONE, KERNEL_DTYPES)),
        Form(
            along_dim_cast_first,
            fused_along_dim,
            along_last,
            (LAST_DIM, *_ALWAYS, ALONE, SAME_DTYPE),
        ),
        Form(
            along_dim_without_cast,
            fused_along_dim,
            along_last,
            (LAST_DIM, *_ALWAYS, ALONE, SAME_DTYPE),
        ),
        Form(torch_rms_norm_in_32, fused_in_shape, with_shape, (*_GIVEN, KERNEL_DTYPES)),
        Form(
            torch_rms_norm_in,
            fused_in_shape_in,
            with_shape_in_32,
            (*_GIVEN, WIDER, KERNEL_DTYPES),
        ),
        Form(torch_rms_norm_of_32, fused_in_shape_of_32, with_shape_of_32, _GIVEN),
        Form(torch_rms_norm, fused_in_shape, with_shape, (*_GIVEN, SAME_DTYPE)),
        Form(gain_first, fused_gain_first, widened, (*_ALWAYS, ALONE, WIDER, KERNEL_DTYPES)),
        Form(cast_to_given, fused_to_given, gated, (*_ALWAYS, DTYPE_OF_WEIGHT)),
    ),
    replaces=(
        "Add",
        "Adds",
        "BroadcastTo",
        "Cast",
        "Div",
        "Mul",
        "Muls",
        "Pow",
        "Pows",
        "RealDiv",
        "ReduceMean",
        "ReduceSum",
        "Rsqrt",
        "RsqrtGrad",
        "Square",
    ),
    becomes=("RmsNorm", "RmsNormGrad"),
    passes=(2, 3),
    requires="torch_npu>=2.1",
    valid=VALID,
    rewritten=REWRITTEN,
)
