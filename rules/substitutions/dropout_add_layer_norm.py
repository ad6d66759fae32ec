"""Dropout, a residual addition and LayerNorm, one after the other.

What: ``norm(dropout(x) + residual)`` of a post-norm Transformer layer (BERT, BART, the AddNorm of
textbooks), with submodules or with the functions of torch.

Why it is slow on the NPU: three small operators in a row, each of which the host has to launch
before the next; on short sequences the device waits for the host.
``npu_dropout_add_layer_norm`` of MindSpeed is one call.

Safety: MindSpeed computes in float32 and rounds once. It draws its own random numbers: in evaluation
and with ``p = 0`` nothing changes, in training other elements are dropped, equally likely (condition
``other-random-numbers``). ``p`` must be passed as zero in evaluation, which the change does. It takes
(B, S, H) of one dtype with H a multiple of 8 up to 8192 (``batch-sequence-hidden``, ``same-dtype``)
and normalises the last dimension (``norm-over-last-dimension``). MindSpeed scales before it drops, so
that of the scalings only ``dropout(x * scale)`` is the same. Hooks on the two submodules no longer
run. Where the sum itself goes on (``prenorm=True`` would return it), the code is left alone.

References: "DropoutAddLayerNorm" of the MindStudio guide; npu_dropout_add_layer_norm.md of
MindSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import (
    BATCH_SEQUENCE_HIDDEN,
    LAST_DIM_OF_NORM,
    MINDSPEED,
    NORM_HAS_WEIGHT,
    ONE_DTYPE_OF_NORM,
    RANDOM_NUMBERS,
    dropped,
    layer_norm,
)
from npufix.rules.substitution import Condition, Draw, Form, Site, Substitution
from npufix.rules.substitutions.dropout_add_layer_norm_examples import REWRITTEN, VALID

if TYPE_CHECKING:
    import mindspeed  # type: ignore[import-not-found]  # the verifier supplies it
    import torch.nn.functional as F
    from torch import Tensor, nn


def of_submodules(x: Tensor, residual: Tensor, drop: nn.Dropout, norm: nn.LayerNorm) -> Tensor:
    """Call two submodules (BERT)."""
    return norm(drop(x) + residual)


def of_function_and_submodule(  # noqa: D103 - its name says it
    x: Tensor,
    residual: Tensor,
    p: float,
    training: bool,
    norm: nn.LayerNorm,
) -> Tensor:
    return norm(F.dropout(x, p, training) + residual)


def of_functions(
    x: Tensor,
    residual: Tensor,
    p: float,
    training: bool,
    shape: tuple[int, ...],
    weight: Tensor,
    bias: Tensor,
    eps: float,
) -> Tensor:
    """Call two functions of torch."""
    return F.layer_norm(F.dropout(x, p, training) + residual, shape, weight, bias, eps)


def with_column_scale(
    x: Tensor, residual: Tensor, scale: Tensor, drop: nn.Dropout, norm: nn.LayerNorm
) -> Tensor:
    """Scale each column before (LayerScale)."""
    return norm(drop(x * scale) + residual)


def with_row_scale(
    x: Tensor, residual: Tensor, scale: Tensor, drop: nn.Dropout, norm: nn.LayerNorm
) -> Tensor:
    """Scale each row before (stochastic depth)."""
    return norm(drop(x * scale.unsqueeze(-1)) + residual)


def fused_submodules(x: Tensor, residual: Tensor, drop: nn.Dropout, norm: nn.LayerNorm) -> Tensor:
    """Take the settings of the submodules at the time of the call."""
    return mindspeed.ops.dropout_add_layer_norm.npu_dropout_add_layer_norm(
        x, residual, norm.weight, norm.bias, drop.p if drop.training else 0.0, norm.eps
    )


def fused_function_and_submodule(  # noqa: D103 - its name says it
    x: Tensor,
    residual: Tensor,
    p: float,
    training: bool,
    norm: nn.LayerNorm,
) -> Tensor:
    return mindspeed.ops.dropout_add_layer_norm.npu_dropout_add_layer_norm(
        x, residual, norm.weight, norm.bias, p if training else 0.0, norm.eps
    )


def fused_functions(  # noqa: D103 - its name says it
    x: Tensor,
    residual: Tensor,
    p: float,
    training: bool,
    shape: tuple[int, ...],
    weight: Tensor,
    bias: Tensor,
    eps: float,
) -> Tensor:
    return mindspeed.ops.dropout_add_layer_norm.npu_dropout_add_layer_norm(
        x, residual, weight, bias, p if training else 0.0, eps
    )


def fused_column_scale(  # noqa: D103 - its name says it
    x: Tensor, residual: Tensor, scale: Tensor, drop: nn.Dropout, norm: nn.LayerNorm
) -> Tensor:
    return mindspeed.ops.dropout_add_layer_norm.npu_dropout_add_layer_norm(
        x,
        residual,
        norm.weight,
        norm.bias,
        drop.p if drop.training else 0.0,
        norm.eps,
        layerscale=scale,
    )


def fused_row_scale(  # noqa: D103 - its name says it
    x: Tensor, residual: Tensor, scale: Tensor, drop: nn.Dropout, norm: nn.LayerNorm
) -> Tensor:
    return mindspeed.ops.dropout_add_layer_norm.npu_dropout_add_layer_norm(
        x,
        residual,
        norm.weight,
        norm.bias,
        drop.p if drop.training else 0.0,
        norm.eps,
        rowscale=scale,
    )


def submodule_inputs(draw: Draw) -> dict[str, Any]:
    """Return what two submodules are called with."""
    drawn = dropped(draw)
    return {**drawn, "norm": layer_norm(draw, drawn["x"])}


def mixed_inputs(draw: Draw) -> dict[str, Any]:
    """Return ``submodule_inputs`` with the arguments of a function in place of the Dropout."""
    drawn = submodule_inputs(draw)
    drop = drawn.pop("drop")
    return {**drawn, "p": drop.p, "training": drop.training}


def function_inputs(draw: Draw) -> dict[str, Any]:
    """Return ``mixed_inputs`` with the arguments of a function in place of the LayerNorm."""
    drawn = mixed_inputs(draw)
    norm = drawn.pop("norm")
    weights = {"weight": norm.weight.detach(), "bias": norm.bias.detach()}
    return {**drawn, **weights, "shape": norm.normalized_shape, "eps": norm.eps}


def column_inputs(draw: Draw) -> dict[str, Any]:
    """Return ``submodule_inputs`` and a factor for each column."""
    drawn = submodule_inputs(draw)
    return {**drawn, "scale": draw.floats(drawn["x"].shape[-1], dtype=drawn["x"].dtype)}


def row_inputs(draw: Draw) -> dict[str, Any]:
    """Return ``submodule_inputs`` and a factor for each row."""
    import torch

    drawn = submodule_inputs(draw)
    x = drawn["x"]
    # A row that is all ``x`` would be normalised to the same whatever its factor is.
    ramp = torch.linspace(-1, 1, x.shape[-1]).to(x.dtype)
    scale = draw.floats(*x.shape[:-1], dtype=x.dtype)
    return {**drawn, "residual": drawn["residual"] + ramp, "scale": scale}


def _scale_of(dims: int) -> Condition:
    def holds(site: Site) -> bool | None:
        ndim = site.ndim("scale")
        if site.is_tensor("scale") is False:
            return False
        return None if ndim is None else ndim == dims

    what = "each column, shaped (H,)" if dims == 1 else "each row, shaped (B, S)"
    return Condition(
        f"scale-of-{'columns' if dims == 1 else 'rows'}", f"one factor for {what}", holds
    )


WEIGHT_GIVEN = Condition(
    "norm-has-weight",
    "the norm has a weight, of one dimension",
    lambda site: False if site.is_tensor("weight") is False else site.ndim("weight") == 1 or None,
)
_ALWAYS = (MINDSPEED, RANDOM_NUMBERS, BATCH_SEQUENCE_HIDDEN, ONE_DTYPE_OF_NORM)
_SUBMODULES = (*_ALWAYS, LAST_DIM_OF_NORM, NORM_HAS_WEIGHT)

RULE = Substitution(
    id="NPU106",
    name="dropout-add-layer-norm",
    summary="dropout, residual addition and LayerNorm one after the other",
    table="fusion",
    forms=(
        Form(with_column_scale, fused_column_scale, column_inputs, (*_SUBMODULES, _scale_of(1))),
        Form(with_row_scale, fused_row_scale, row_inputs, (*_SUBMODULES, _scale_of(2))),
        Form(of_submodules, fused_submodules, submodule_inputs, _SUBMODULES),
        Form(of_function_and_submodule, fused_function_and_submodule, mixed_inputs, _SUBMODULES),
        Form(of_functions, fused_functions, function_inputs, (*_ALWAYS, WEIGHT_GIVEN)),
    ),
    replaces=(
        "Add",
        "DropOutDoMask",
        "DropOutDoMaskV3",
        "DropOutGenMask",
        "DSAGenBitMask",
        "LayerNorm",
        "LayerNormV3",
        "LayerNormV4",
        "Mul",
    ),
    becomes=("Add", "LayerNorm", "LayerNormV3", "LayerNormV4", "Mul"),
    passes=(4, 5),
    requires="torch_npu>=2.1",
    needs_whole=True,
    valid=VALID,
    rewritten=REWRITTEN,
)
