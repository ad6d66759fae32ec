"""Attention written out: scores, softmax and product as operators of their own.

What: ``softmax(q @ k.transpose(-2, -1) * scale) @ v``, with or without a mask that hides keys and a
dropout of the weights; without a mask also in other layouts: batched products of one head, pixels
as the last dimension, ``einsum``.

Why it is slow on the NPU: the scores of all queries and keys are written to memory and read again
by each operator (BatchMatMul, Mul, MaskedFill, Cast, SoftmaxV2, Cast, DropOutDoMask, BatchMatMul),
and once more in the backward pass, which also keeps them. FlashAttentionScore never writes them.
``F.scaled_dot_product_attention`` launches it on Atlas A2 and newer for query, key and value of
four dimensions (batch, heads, length, size up to 512) and a mask that is bool or None; anything
else computes the same in small operators.

Safety: the fused kernel computes scores and softmax in float32 and rounds once. The scale is always
passed: its default is not 1. A query whose keys are all hidden gets 0; written out it gets NaN for
a fill of -inf and the mean of all values for a finite one (condition ``no-fully-masked-row``).
What is added to the scores must be a mask, 0 or very negative, that takes no gradient: a position
bias must stay (condition ``mask-is-boolean``). Dropout in training draws other random numbers of the
same distribution (condition ``other-random-numbers``). Weights that are returned or stored keep the code as it is.

References: case FlashAttentionScore of the MindStudio guide; the lowering of
scaled_dot_product_attention in op-plugin since 6.0.0; torch.nn.functional.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.attention import (
    ATTENTION,
    HIDDEN_LEAVES_A_KEY,
    LEAVES_A_KEY,
    MASK_IS_BOOLEAN,
    SHOWN_LEAVES_A_KEY,
    VERY_NEGATIVE,
    fill_value,
    operands,
    shown_keys,
)
from npufix.rules.substitution import Draw, Form, Substitution, either
from npufix.rules.substitutions.eager_attention_column_forms import COLUMNS
from npufix.rules.substitutions.eager_attention_examples import LEFT_ALONE, REWRITTEN
from npufix.rules.substitutions.eager_attention_forms import LAYOUTS
from npufix.rules.substitutions.eager_attention_two_mask_forms import TWO_MASKS

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor


def scores_of(q: Tensor, k: Tensor, scale: float, divisor: float) -> Tensor:
    """Return how much each query wants each key."""
    product = q @ either(k.transpose(-2, -1), k.transpose(2, 3), k.permute(0, 1, 3, 2))
    product = either(product, product.to(torch.float32))
    return either(product * scale, product / divisor, product)


def scores_to_mask(q: Tensor, k: Tensor, scale: float, divisor: float) -> Tensor:
    """Return the same, of a product that may be an ``einsum`` as well."""
    product = torch.einsum("bhnd,bhmd->bhnm", q, k)
    return either(
        scores_of(q, k, scale, divisor), either(product * scale, product / divisor, product)
    )


def attended(weights: Tensor, v: Tensor) -> Tensor:
    """Return the values by their shares."""
    return either(weights @ v, torch.einsum("bhnm,bhmd->bhnd", weights, v))


def scaled(masked: Tensor, scale: float, divisor: float) -> Tensor:
    """Scale scores whose hidden ones are very negative already, and stay that."""
    return either(masked * scale, masked / divisor)


def weights_of(scores: Tensor, q: Tensor, p: float, training: bool) -> Tensor:
    """Return the share of each key, some of them dropped."""
    weights = either(
        scores.softmax(-1),
        scores.softmax(-1).to(q.dtype),
        scores.softmax(-1, torch.float32).to(q.dtype),
        scores.to(torch.float32).softmax(-1).to(q.dtype),
        scores.softmax(-1, torch.float32).to(scores.dtype),
        scores.to(torch.float32).softmax(-1).to(scores.dtype),
    )
    return either(F.dropout(weights, p, training), weights)


def unmasked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Let every query see every key."""
    return weights_of(scores_of(q, k, scale, divisor), q, p, training) @ v


def fused(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    """Attend without a mask."""
    return F.scaled_dot_product_attention(
        q, k, v, dropout_p=p if training else 0.0, scale=scale / divisor
    )


def zeros_hidden(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shown: Tensor,
    value: float,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
    mask: Tensor | bool | None = True,
) -> Tensor:
    """Hide the keys whose entry in the mask is 0 or False."""
    scores = scores_to_mask(q, k, scale, divisor)
    masked = scores.masked_fill(either(shown == 0, shown.logical_not()), value)
    late = (q @ k.transpose(-2, -1)).masked_fill(shown == 0, value)
    scores = either(masked, masked if mask is not None else scores, scaled(late, scale, divisor))
    return attended(weights_of(scores, q, p, training), v)


def fused_nonzero(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shown: Tensor,
    value: float,
    scale: float,
    divisor: float,
    p: float,
    training: bool,
    mask: Tensor | bool | None,
) -> Tensor:
    """Attend to the keys whose entry in the mask is not 0."""
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if mask is None else shown != 0,
        dropout_p=p if training else 0.0,
        scale=scale / divisor,
    )


def others_hidden(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shown: Tensor,
    value: float,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
    mask: Tensor | bool | None = True,
) -> Tensor:
    """Hide the keys that a bool mask does not name."""
    scores = scores_to_mask(q, k, scale, divisor)
    masked = either(scores.masked_fill(~shown, value), torch.where(shown, scores, value))
    late = (q @ k.transpose(-2, -1)).masked_fill(~shown, value)
    scores = either(masked, masked if mask is not None else scores, scaled(late, scale, divisor))
    return attended(weights_of(scores, q, p, training), v)


def fused_shown(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shown: Tensor,
    value: float,
    scale: float,
    divisor: float,
    p: float,
    training: bool,
    mask: Tensor | bool | None,
) -> Tensor:
    """Attend to the keys that a bool mask names."""
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if mask is None else shown,
        dropout_p=p if training else 0.0,
        scale=scale / divisor,
    )


def named_hidden(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor,
    value: float,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
    mask: Tensor | bool | None = True,
) -> Tensor:
    """Hide the keys that a bool mask names."""
    scores = scores_to_mask(q, k, scale, divisor)
    masked = either(scores.masked_fill(hidden, value), torch.where(hidden, value, scores))
    late = (q @ either(k.transpose(-2, -1), k.transpose(2, 3))).masked_fill(hidden, value)
    scores = either(masked, masked if mask is not None else scores, scaled(late, scale, divisor))
    return attended(weights_of(scores, q, p, training), v)


def fused_hidden(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor,
    value: float,
    scale: float,
    divisor: float,
    p: float,
    training: bool,
    mask: Tensor | bool | None,
) -> Tensor:
    """Attend to the keys that a bool mask does not name."""
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if mask is None else ~hidden,
        dropout_p=p if training else 0.0,
        scale=scale / divisor,
    )


def added_to_scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    added: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
    mask: Tensor | bool | None = True,
) -> Tensor:
    """Add 0 to the scores of the keys to see and something very negative to the others."""
    scores = scores_to_mask(q, k, scale, divisor)
    scores = either(scores + added, scores + added if mask is not None else scores)
    return attended(weights_of(scores, q, p, training), v)


def fused_zero(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    added: Tensor,
    scale: float,
    divisor: float,
    p: float,
    training: bool,
    mask: Tensor | bool | None,
) -> Tensor:
    """Attend to the keys to which nothing is added."""
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if mask is None else added == 0,
        dropout_p=p if training else 0.0,
        scale=scale / divisor,
    )


def shown_inputs(draw: Draw) -> dict[str, Any]:
    """Return operands and a bool mask of the keys to see, or none."""
    given = operands(draw)
    shown = shown_keys(draw, given)
    mask = draw.choice([shown, None])
    return {**given, "shown": shown, "mask": mask, "value": fill_value(draw, given)}


def number_inputs(draw: Draw) -> dict[str, Any]:
    """Return operands and a mask of numbers."""
    import torch

    given = shown_inputs(draw)
    dtype = draw.choice([torch.bool, torch.int64, torch.uint8])
    return {**given, "shown": given["shown"].to(dtype)}


def hidden_inputs(draw: Draw) -> dict[str, Any]:
    """Return operands and a bool mask of the keys to hide, or none."""
    given = shown_inputs(draw)
    return {"hidden": ~given.pop("shown"), **given}


def added_inputs(draw: Draw) -> dict[str, Any]:
    """Return operands and what hides keys when it is added; integers take no gradient."""
    given = hidden_inputs(draw)
    del given["value"]
    return {"added": given.pop("hidden") * -60000, **given}


RULE = Substitution(
    id="NPU104",
    name="eager-attention",
    summary="attention written out in eager operators",
    table="fusion",
    forms=(
        Form(unmasked, fused, operands, ATTENTION),
        Form(
            zeros_hidden,
            fused_nonzero,
            number_inputs,
            (*ATTENTION, VERY_NEGATIVE, SHOWN_LEAVES_A_KEY),
        ),
        Form(
            others_hidden,
            fused_shown,
            shown_inputs,
            (*ATTENTION, VERY_NEGATIVE, SHOWN_LEAVES_A_KEY),
        ),
        Form(
            named_hidden,
            fused_hidden,
            hidden_inputs,
            (*ATTENTION, VERY_NEGATIVE, HIDDEN_LEAVES_A_KEY),
        ),
        Form(
            added_to_scores,
            fused_zero,
            added_inputs,
            (*ATTENTION, MASK_IS_BOOLEAN, LEAVES_A_KEY),
        ),
        *TWO_MASKS,
        *LAYOUTS,
        *COLUMNS,
    ),
    replaces=(
        "Add",
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "Cast",
        "DropOutDoMask",
        "DropOutDoMaskV3",
        "MaskedFill",
        "Mul",
        "Muls",
        "RealDiv",
        "SelectV2",
        "SoftmaxGrad",
        "SoftmaxV2",
        "Transpose",
    ),
    becomes=("FlashAttentionScore", "FlashAttentionScoreGrad"),
    passes=(0.5, 1),
    requires="torch_npu>=2.1; chip A2 A3",
    valid=LEFT_ALONE,
    rewritten=REWRITTEN,
)
