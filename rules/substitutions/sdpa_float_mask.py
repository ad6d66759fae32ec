"""A float mask for ``F.scaled_dot_product_attention`` that is made of a bool one.

What: the mask is 0 where a key is seen and -inf, the smallest number of the dtype or the like where
it is hidden, and it is visibly computed from the mask that says so.

Why it is slow on the NPU: only without a mask or with a bool one does the call launch
FlashAttentionScore. A float mask sends it to the composite of MatMul, Add, Softmax and MatMul, which
writes the scores of all queries and keys to memory; making the mask takes kernels as well.

Safety: a query whose keys are all hidden gets 0 by a bool mask; by a float mask of finite numbers it
gets the mean of all values (condition ``no-fully-masked-row``). A float mask that nothing shows the
origin of, or that holds a bias, stays.

References: the lowering of scaled_dot_product_attention in op-plugin since 6.0.0; torch.nn.functional.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.attention import (
    HIDDEN_LEAVES_A_KEY,
    SHOWN_LEAVES_A_KEY,
    VERY_NEGATIVE,
    fill_value,
    operands,
    shown_keys,
)
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution, either

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor


def zeros_of(
    shape: tuple[int, ...], dtype: torch.dtype | None, device: torch.device | None
) -> Tensor:
    """Return the mask before anything is hidden."""
    return either(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype))


def filled_where_hidden(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor,
    value: float,
    shape: tuple[int, ...] = (),
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Fill zeros where a key is hidden, or choose between the two numbers."""
    chosen = torch.where(hidden, value, 0.0)
    mask = either(
        zeros_of(shape, dtype, device).masked_fill(hidden, value),
        torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, value),
        chosen.to(q.dtype),
        chosen,
    )
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p, scale=scale)


def not_hidden(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor,
    value: float,
    shape: tuple[int, ...],
    dtype: torch.dtype | None,
    device: torch.device | None,
    p: float,
    scale: float | None,
) -> Tensor:
    """Give the bool mask, inverted."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden, dropout_p=p, scale=scale)


def filled_where_not_shown(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shown: Tensor,
    value: float,
    shape: tuple[int, ...] = (),
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Fill zeros where a key is not shown, or choose between the two numbers."""
    chosen = torch.where(shown, 0.0, value)
    mask = either(
        zeros_of(shape, dtype, device).masked_fill(~shown, value),
        torch.zeros_like(shown, dtype=dtype).masked_fill(~shown, value),
        chosen.to(q.dtype),
        chosen,
    )
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p, scale=scale)


def shown(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shown: Tensor,
    value: float,
    shape: tuple[int, ...],
    dtype: torch.dtype | None,
    device: torch.device | None,
    p: float,
    scale: float | None,
) -> Tensor:
    """Give the bool mask."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=shown, dropout_p=p, scale=scale)


def subtracted_from_one(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shown: Tensor,
    value: float,
    p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Multiply what is missing to 1 by a number: ``(1 - mask) * finfo.min``."""
    mask = (either(1.0, 1) - either(shown.to(q.dtype), shown)) * value
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=either(mask, mask.to(q.dtype)), dropout_p=p, scale=scale
    )


def not_zero(
    q: Tensor, k: Tensor, v: Tensor, shown: Tensor, value: float, p: float, scale: float | None
) -> Tensor:
    """Give a bool mask of the keys whose entry is not 0."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=shown != 0, dropout_p=p, scale=scale)


def _given(draw: Draw) -> dict[str, Any]:
    given = operands(draw)
    del given["divisor"], given["training"]
    return {**given, "scale": draw.choice([None, 0.3]), "value": fill_value(draw, given)}


def hidden_inputs(draw: Draw) -> dict[str, Any]:
    """Return operands, a bool mask of the keys to hide and the shape and dtype of the float one."""
    given = _given(draw)
    hidden = ~shown_keys(draw, given)
    where = {"dtype": given["q"].dtype, "device": given["q"].device}
    return {**given, "hidden": hidden, "shape": tuple(hidden.shape), **where}


def shown_inputs(draw: Draw) -> dict[str, Any]:
    """Return operands, a bool mask of the keys to see and the shape and dtype of the float one."""
    given = hidden_inputs(draw)
    return {"shown": ~given.pop("hidden"), **given}


def zero_one_inputs(draw: Draw) -> dict[str, Any]:
    """Return operands and a mask of zeros and ones."""
    import torch

    given = _given(draw)
    limit = torch.finfo(given["q"].dtype).min
    return {**given, "value": draw.choice([limit, -3e4]), "shown": shown_keys(draw, given).long()}


ZERO_ONE = Condition(
    "zero-one-mask", "the mask holds nothing but 0 and 1", lambda site: site.is_zero_or_one("shown")
)

FINITE = Condition(
    "finite-fill",
    "the number for hidden keys is finite: zero times infinity is no number",
    lambda site: None if (value := site.number("value")) is None else math.isfinite(value),
)

RULE = Substitution(
    id="NPU160",
    name="sdpa-float-mask",
    summary="scaled_dot_product_attention with a float mask that is made of a bool one",
    table="fusion",
    forms=(
        Form(filled_where_not_shown, shown, shown_inputs, (VERY_NEGATIVE, SHOWN_LEAVES_A_KEY)),
        Form(filled_where_hidden, not_hidden, hidden_inputs, (VERY_NEGATIVE, HIDDEN_LEAVES_A_KEY)),
        Form(
            subtracted_from_one,
            not_zero,
            zero_one_inputs,
            (VERY_NEGATIVE, FINITE, ZERO_ONE, SHOWN_LEAVES_A_KEY),
        ),
    ),
    replaces=(
        "Add",
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "MaskedFill",
        "Mul",
        "Muls",
        "SelectV2",
        "SoftmaxGrad",
        "SoftmaxV2",
        "Sub",
        "ZerosLike",
    ),
    becomes=("FlashAttentionScore", "FlashAttentionScoreGrad"),
    passes=(0.5, 1),
    requires="torch_npu>=2.1; CANN>=8.0; chip A2 A3",
    valid=(
        # a bias of the position is no mask
        """
def attend(q, k, v, bias):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
""",
        # hidden keys keep a score that counts: Swin
        """
def attend(q, k, v, hidden):
    mask = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill(hidden, -100.0)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
""",
        # not zeros
        """
def attend(q, k, v, bias, hidden):
    mask = bias.masked_fill(hidden, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
""",
        # the other arm is no 0
        """
def attend(q, k, v, shown):
    mask = torch.where(shown, 1.0, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
""",
        # the mask is a result as well
        """
def attend(q, k, v, shown):
    mask = torch.where(shown, 0.0, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask), mask
""",
        # a bool mask
        """
def attend(q, k, v, shown):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=shown)
""",
    ),
    rewritten=(
        # of the shape of the mask
        Rewritten(
            """
def attention(q, k, v, seen: torch.Tensor):
    seen = seen.to(torch.bool)
    bias = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
""",
            """
def attention(q, k, v, seen: torch.Tensor):
    seen = seen.to(torch.bool)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
""",
        ),
        Rewritten(
            """
def attend(q, k, v, dropout: float):
    n = q.size(-2)
    shown = torch.tril(torch.ones(n, n, dtype=torch.bool, device=q.device))
    mask = torch.where(shown, 0.0, float("-inf")).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
""",
            """
def attend(q, k, v, dropout: float):
    n = q.size(-2)
    shown = torch.tril(torch.ones(n, n, dtype=torch.bool, device=q.device))
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=shown, dropout_p=dropout
    )
""",
        ),
        Rewritten(
            """
def attend(q, k, v, hidden):
    mask = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device).masked_fill(hidden, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
""",
            """
def attend(q, k, v, hidden):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden)
""",
        ),
        Rewritten(
            """
def attend(q, k, v, mask, scale: float):
    bias = (1.0 - mask.to(q.dtype)) * torch.finfo(q.dtype).min
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
""",
            """
def attend(q, k, v, mask, scale: float):
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask != 0, scale=scale
    )
""",
        ),
    ),
)
