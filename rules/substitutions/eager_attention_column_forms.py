"""Attention whose keys are columns before the product: (batch, heads, size, length), or one for all.

``key.view(b, n, heads, size).permute(0, 2, 3, 1)`` of GPT and its descendants. The fused operator takes
rows, so the keys are turned, which is a view. Products of other operands look the same (a gate and a
mixture), so all of them must be known to have four dimensions. Where all heads share one key, as the
einsum says (``bhid,bjd->bhij``), it is shown to each of them, as a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.attention import (
    ATTENTION,
    FOUR_DIMENSIONAL,
    HIDDEN_LEAVES_A_KEY,
    LEAVES_A_KEY,
    MASK_IS_BOOLEAN,
    NOT_FUSED_YET,
    NUMBER_SCALE,
    RANDOM_NUMBERS,
    SAME_DTYPE,
    VERY_NEGATIVE,
    fill_value,
    operands,
    shown_keys,
)
from npufix.rules.substitution import Condition, Draw, Form, Site, either

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor


def scores_of(q: Tensor, k: Tensor, scale: float, divisor: float) -> Tensor:
    """Return how much each query wants each key."""
    product = q @ k
    return either(product * scale, product / divisor, product)


def weights_of(scores: Tensor, p: float, training: bool) -> Tensor:
    """Return the share of each key, some of them dropped."""
    weights = scores.softmax(-1)
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
    return weights_of(scores_of(q, k, scale, divisor), p, training) @ v


def fused(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    """Attend without a mask."""
    return F.scaled_dot_product_attention(
        q, k.transpose(-2, -1), v, dropout_p=p if training else 0.0, scale=scale / divisor
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
) -> Tensor:
    """Hide the keys that a bool mask names."""
    scores = scores_of(q, k, scale, divisor).masked_fill(hidden, value)
    return weights_of(scores, p, training) @ v


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
) -> Tensor:
    """Attend to the keys that a bool mask does not name."""
    return F.scaled_dot_product_attention(
        q,
        k.transpose(-2, -1),
        v,
        attn_mask=~hidden,
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
    scores = scores_of(q, k, scale, divisor)
    scores = either(scores + added, scores + added if mask is not None else scores)
    return weights_of(scores, p, training) @ v


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
        k.transpose(-2, -1),
        v,
        attn_mask=None if mask is None else added == 0,
        dropout_p=p if training else 0.0,
        scale=scale / divisor,
    )


def of_one_key(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Let all heads look at one key and take one value."""
    product = torch.einsum("bhid,bjd->bhij", q, k)
    scores = either(product * scale, product / divisor, product)
    return torch.einsum("bhij,bjd->bhid", weights_of(scores, p, training), v)


def fused_of_one_key(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    """Show each head the same key and value."""
    return F.scaled_dot_product_attention(
        q,
        k.unsqueeze(1).expand(-1, q.shape[1], -1, -1),
        v.unsqueeze(1).expand(-1, q.shape[1], -1, -1),
        dropout_p=p if training else 0.0,
        scale=scale / divisor,
    )


def one_key_inputs(draw: Draw) -> dict[str, Any]:
    """Return operands with the key and the value of one head."""
    given = operands(draw)
    return {**given, "k": given["k"][:, 0].clone(), "v": given["v"][:, 0].clone()}


def inputs(draw: Draw) -> dict[str, Any]:
    """Return operands with the keys as columns."""
    given = operands(draw)
    return {**given, "k": given["k"].transpose(-2, -1)}


def hidden_inputs(draw: Draw) -> dict[str, Any]:
    """Return such operands and a bool mask of the keys to hide."""
    given = operands(draw)
    hidden = ~shown_keys(draw, given)
    columns = given["k"].transpose(-2, -1)
    return {**given, "k": columns, "hidden": hidden, "value": fill_value(draw, given)}


def added_inputs(draw: Draw) -> dict[str, Any]:
    """Return such operands and what hides keys when it is added, or no mask."""
    given = hidden_inputs(draw)
    del given["value"]
    added = given.pop("hidden") * -60000
    return {**given, "added": added, "mask": draw.choice([added, None])}


def _known_to_be_heads(site: Site) -> bool:
    """Tell whether query and key have four dimensions for certain."""
    return FOUR_DIMENSIONAL.holds(site) is True and all(site.ndim(n) == 4 for n in "qk")  # noqa: PLR2004 - BNSD


_CONDITIONS = (
    NOT_FUSED_YET,
    Condition(FOUR_DIMENSIONAL.name, FOUR_DIMENSIONAL.text, _known_to_be_heads),
    *(c for c in ATTENTION if c not in {NOT_FUSED_YET, FOUR_DIMENSIONAL}),
)
COLUMNS = (
    Form(unmasked, fused, inputs, _CONDITIONS),
    Form(
        of_one_key,
        fused_of_one_key,
        one_key_inputs,
        (NOT_FUSED_YET, SAME_DTYPE, NUMBER_SCALE, RANDOM_NUMBERS),
    ),
    Form(
        named_hidden,
        fused_hidden,
        hidden_inputs,
        (*_CONDITIONS, VERY_NEGATIVE, HIDDEN_LEAVES_A_KEY),
    ),
    Form(
        added_to_scores,
        fused_zero,
        added_inputs,
        (*_CONDITIONS, MASK_IS_BOOLEAN, LEAVES_A_KEY),
    ),
)
