"""Attention under two masks, one after the other: of padding, and of what comes later.

Either may not be there, under a test of its own. The fused operator takes one mask, which is made of
both: a key is seen where both show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.attention import (
    ALSO_VERY_NEGATIVE,
    ATTENTION,
    LEAVES_A_KEY,
    MASK_IS_BOOLEAN,
    VERY_NEGATIVE,
    fill_value,
    operands,
    shown_keys,
)
from npufix.rules.substitution import Draw, Form, either

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor


def scores_of(q: Tensor, k: Tensor, scale: float, divisor: float) -> Tensor:
    """Return how much each query wants each key."""
    product = either(
        q @ either(k.transpose(-2, -1), k.transpose(2, 3)),
        torch.einsum("bhnd,bhmd->bhnm", q, k),
    )
    return either(product * scale, product / divisor, product)


def attended(scores: Tensor, q: Tensor, v: Tensor, p: float, training: bool) -> Tensor:
    """Return the values by the shares of their keys, some of which are dropped."""
    weights = either(
        scores.softmax(-1),
        scores.softmax(-1, torch.float32).to(q.dtype),
        scores.to(torch.float32).softmax(-1).to(q.dtype),
    )
    weights = either(F.dropout(weights, p, training), weights)
    return either(weights @ v, torch.einsum("bhnm,bhmd->bhnd", weights, v))


def hidden_twice(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor,
    also: Tensor,
    value: float,
    other: float,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
    mask: Tensor | bool | None = True,
    second: Tensor | bool | None = True,
    flag: bool = True,
) -> Tensor:
    """Hide the keys of padding, and those to come, by two bool masks."""
    scores = scores_of(q, k, scale, divisor)
    once = scores.masked_fill(hidden, value)
    once = either(once, once if mask is not None else scores)
    twice = once.masked_fill(also, other)
    twice = either(twice, twice if second is not None else once, twice if flag else once)
    return attended(twice, q, v, p, training)


def fused_twice(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor,
    also: Tensor,
    value: float,
    other: float,
    scale: float,
    divisor: float,
    p: float,
    training: bool,
    mask: Tensor | bool | None,
    second: Tensor | bool | None,
    flag: bool,
) -> Tensor:
    """Attend to the keys that neither mask names."""
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None  # type: ignore[arg-type]  # False alone is no mask
        if mask is None and (second is None or not flag)
        else ~(
            (False if mask is None else hidden)
            | (False if second is None else also if flag else False)
        ),
        dropout_p=p if training else 0.0,
        scale=scale / divisor,
    )


def shown_then_added(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shown: Tensor,
    value: float,
    added: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
    mask: Tensor | bool | None = True,
) -> Tensor:
    """Hide the keys to come by a bool mask, then others by what is added (GPT-2)."""
    scores = torch.where(shown, scores_of(q, k, scale, divisor), value)
    scores = either(scores + added, scores + added if mask is not None else scores)
    return attended(scores, q, v, p, training)


def fused_shown_and_zero(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shown: Tensor,
    value: float,
    added: Tensor,
    scale: float,
    divisor: float,
    p: float,
    training: bool,
    mask: Tensor | bool | None,
) -> Tensor:
    """Attend to the keys that the mask names and to which nothing is added."""
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=shown & (True if mask is None else added == 0),
        dropout_p=p if training else 0.0,
        scale=scale / divisor,
    )


def hidden_then_added(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor,
    value: float,
    added: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
    mask: Tensor | bool | None = True,
) -> Tensor:
    """Do the same by a mask that names what is hidden."""
    scores = scores_of(q, k, scale, divisor).masked_fill(hidden, value)
    scores = either(scores + added, scores + added if mask is not None else scores)
    return attended(scores, q, v, p, training)


def fused_not_hidden_and_zero(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor,
    value: float,
    added: Tensor,
    scale: float,
    divisor: float,
    p: float,
    training: bool,
    mask: Tensor | bool | None,
) -> Tensor:
    """Attend to the keys that the mask does not name and to which nothing is added."""
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=~hidden & (True if mask is None else added == 0),
        dropout_p=p if training else 0.0,
        scale=scale / divisor,
    )


def shown_then_added_inputs(draw: Draw) -> dict[str, Any]:
    """Return operands, a mask of the keys to see, or none, and what hides others when added."""
    given = operands(draw)
    shown, added = shown_keys(draw, given), ~shown_keys(draw, given) * -60000
    mask = draw.choice([added, None])
    value = fill_value(draw, given)
    return {**given, "shown": shown, "added": added, "mask": mask, "value": value}


def hidden_then_added_inputs(draw: Draw) -> dict[str, Any]:
    """Return the same with a mask of the keys to hide."""
    given = shown_then_added_inputs(draw)
    return {"hidden": ~given.pop("shown"), **given}


def twice_inputs(draw: Draw) -> dict[str, Any]:
    """Return operands and two masks of keys to hide, each of which may not be there."""
    given = operands(draw)
    hidden, also = (~shown_keys(draw, given) for _ in range(2))
    value, other = (fill_value(draw, given) for _ in range(2))
    asked: dict[str, Any] = draw.choice([{"flag": draw.choice([True, False])}, {"second": None}])
    return {
        **given,
        "hidden": hidden,
        "also": also,
        "mask": draw.choice([hidden, None]),
        "second": also,
        "flag": True,
        "value": value,
        "other": other,
        **asked,
    }


_ADDED = (*ATTENTION, VERY_NEGATIVE, MASK_IS_BOOLEAN, LEAVES_A_KEY)
TWO_MASKS = (
    Form(
        hidden_twice,
        fused_twice,
        twice_inputs,
        (*ATTENTION, VERY_NEGATIVE, ALSO_VERY_NEGATIVE, LEAVES_A_KEY),
    ),
    Form(shown_then_added, fused_shown_and_zero, shown_then_added_inputs, _ADDED),
    Form(hidden_then_added, fused_not_hidden_and_zero, hidden_then_added_inputs, _ADDED),
)
