"""Keys and values repeated for grouped queries before ``F.scaled_dot_product_attention``.

What: ``k`` and ``v`` have fewer heads than ``q`` and are copied until they have as many.

Why it is slow on the NPU: the copies are as large as the queries are, and the backward pass adds
their gradients up again. FlashAttentionScore takes fewer heads of keys and values as they are.

Safety: ``enable_gqa`` means exactly this repetition, each head as often in a row. It exists from
torch 2.5 on.

References: torch.nn.functional.scaled_dot_product_attention; the lowering of it in op-plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.attention import operands, shown_keys
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution, either

if TYPE_CHECKING:
    import torch.nn.functional as F
    from torch import Tensor


def repeat_kv(x: Tensor, n: int) -> Tensor:
    """Repeat heads by a view, as the models of transformers do."""
    batch, heads, length, size = x.shape
    if n == 1:
        return x
    x = x[:, :, None, :, :].expand(batch, heads, n, length, size)
    return x.reshape(batch, heads * n, length, size)


def repeated(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    n: int,
    mask: Tensor | None,
    p: float,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Repeat the heads, then attend."""
    keys = either(k.repeat_interleave(n, 1), k.repeat_interleave(n, -3), repeat_kv(k, n))
    values = either(v.repeat_interleave(n, 1), v.repeat_interleave(n, -3), repeat_kv(v, n))
    return F.scaled_dot_product_attention(q, keys, values, mask, p, causal, scale=scale)


def repeat_rows(x: Tensor, n: int) -> Tensor:
    """Repeat heads that lie behind the length by a view, as LLaMA does."""
    batch, length, heads, size = x.shape
    if n == 1:
        return x
    x = x[:, :, :, None, :].expand(batch, length, heads, n, size)
    return x.reshape(batch, length, heads * n, size)


def repeated_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    n: int,
    mask: Tensor | None,
    p: float,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Repeat the heads, then turn them to the front and attend."""
    keys = either(
        k.repeat_interleave(n, 2),
        repeat_rows(k, n),
        k.unsqueeze(3).repeat(1, 1, 1, n, 1).flatten(2, 3),
    )
    values = either(
        v.repeat_interleave(n, 2),
        repeat_rows(v, n),
        v.unsqueeze(3).repeat(1, 1, 1, n, 1).flatten(2, 3),
    )
    turned = either(keys.transpose(1, 2), keys.permute(0, 2, 1, 3))
    shown = either(values.transpose(1, 2), values.permute(0, 2, 1, 3))
    return F.scaled_dot_product_attention(q, turned, shown, mask, p, causal, scale=scale)


def grouped(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    n: int,
    mask: Tensor | None,
    p: float,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Let the operator share each head of keys and values among some of the queries."""
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=p, is_causal=causal, scale=scale, enable_gqa=True
    )


def grouped_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    n: int,
    mask: Tensor | None,
    p: float,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Turn the few heads, and share each among some of the queries."""
    return F.scaled_dot_product_attention(
        q,
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        dropout_p=p,
        is_causal=causal,
        scale=scale,
        enable_gqa=True,
    )


def row_inputs(draw: Draw) -> dict[str, Any]:
    """Return them with the heads behind the length."""
    given = inputs(draw)
    return {**given, "k": given["k"].transpose(1, 2), "v": given["v"].transpose(1, 2)}


def inputs(draw: Draw) -> dict[str, Any]:
    """Return keys and values with a half or a third of the heads."""
    given = operands(draw)
    heads, length, size = given["q"].shape[1:]
    n, mask = draw.choice([1, 2, 3]), draw.choice([None, shown_keys(draw, given)])
    if mask is not None:
        mask = mask[:1, :1] if mask.dim() == 4 else mask  # noqa: PLR2004 - BNSD
    return {
        "q": draw.floats(2, heads * n, length, size, dtype=given["q"].dtype) * 0.5,
        "k": given["k"],
        "v": given["v"],
        "n": n,
        "mask": mask,
        "p": draw.choice([0.0, 0.25]),
        "causal": mask is None and draw.choice([False, True]),
        "scale": draw.choice([None, 0.3]),
    }


def _int_repeats(site: Site) -> bool | None:
    return False if site.is_tensor("n") else site.is_int("n")


def _four_dimensional(site: Site) -> bool | None:
    ranks = {site.ndim(name) for name in "qkv"} - {None}
    return ranks == {4} if ranks else None


_CONDITIONS = (
    Condition(
        "int-repeats",
        "the number of repeats is a Python int, not a tensor",
        _int_repeats,
    ),
    Condition(
        "four-dimensional",
        "query, key and value have four dimensions: batch, heads, length, size of a head",
        _four_dimensional,
    ),
)

RULE = Substitution(
    id="NPU161",
    name="sdpa-repeated-heads",
    summary="heads of keys and values repeated before scaled_dot_product_attention",
    table="fusion",
    forms=(
        Form(
            repeated,
            grouped,
            inputs,
            _CONDITIONS,
        ),
        Form(repeated_rows, grouped_rows, row_inputs, _CONDITIONS),
    ),
    replaces=(
        "BroadcastTo",
        "Expand",
        "RepeatInterleave",
        "RepeatInterleaveV2",
        "ReduceSum",
        "Tile",
    ),
    becomes=("FlashAttentionScore", "FlashAttentionScoreGrad"),
    passes=(0.5, 1),
    requires="torch>=2.5; CANN>=8.0; chip A2 A3",
    valid=(
        # tiled: another head for each query
        """
def attend(q, k, v, n: int):
    return F.scaled_dot_product_attention(q, k.repeat(1, n, 1, 1), v.repeat(1, n, 1, 1))
""",
        # over the length
        """
def attend(q, k, v, n: int):
    b, h, l, d = k.shape
    k = k[:, :, :, None, :].expand(b, h, l, n, d).reshape(b, h, l * n, d)
    v = v[:, :, :, None, :].expand(b, h, l, n, d).reshape(b, h, l * n, d)
    return F.scaled_dot_product_attention(q, k, v)
""",
        # the heads in another order
        """
def attend(q, k, v, n: int):
    b, h, l, d = k.shape
    k = k[:, None, :, :, :].expand(b, n, h, l, d).reshape(b, h * n, l, d)
    v = v[:, None, :, :, :].expand(b, n, h, l, d).reshape(b, h * n, l, d)
    return F.scaled_dot_product_attention(q, k, v)
""",
        # keys only
        """
def attend(q, k, v, n: int):
    b, h, l, d = k.shape
    k = k[:, :, None, :, :].expand(b, h, n, l, d).reshape(b, h * n, l, d)
    return F.scaled_dot_product_attention(q, k, v)
""",
        # behind the length, where each query gets another head
        """
def attend(q, k, v, n: int):
    k, v = k.repeat(1, 1, n, 1).transpose(1, 2), v.repeat(1, 1, n, 1).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v)
""",
        # as many as a tensor says
        """
def attend(q, k, v, n: torch.Tensor):
    k, v = torch.repeat_interleave(k, n, dim=1), torch.repeat_interleave(v, n, dim=1)
    return F.scaled_dot_product_attention(q, k, v)
""",
    ),
    rewritten=(
        Rewritten(
            """
def attend(q, k, v, n: int):
    b, h, l, d = q.shape
    k = k.repeat_interleave(n, dim=1)
    v = v.repeat_interleave(n, dim=1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
""",
            """
def attend(q, k, v, n: int):
    b, h, l, d = q.shape
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
""",
        ),
        # the heads behind the length
        Rewritten(
            """
def attend(q, k, v, shown, n: int):
    k = k.unsqueeze(3).repeat(1, 1, 1, n, 1).flatten(2, 3)
    v = v.unsqueeze(3).repeat(1, 1, 1, n, 1).flatten(2, 3)
    return F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), shown
    )
""",
            """
def attend(q, k, v, shown, n: int):
    return F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=shown,
        enable_gqa=True,
    )
""",
        ),
        Rewritten(
            """
def repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    batch, num_key_value_heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, num_key_value_heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, num_key_value_heads * n_rep, slen, head_dim)


def attend(query, key, value, groups: int, mask, scaling: float):
    key_states = repeat_kv(key, groups)
    value_states = repeat_kv(value, groups)
    return F.scaled_dot_product_attention(query, key_states, value_states, attn_mask=mask, scale=scaling)
""",
            """
def repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    batch, num_key_value_heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, num_key_value_heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, num_key_value_heads * n_rep, slen, head_dim)


def attend(query, key, value, groups: int, mask, scaling: float):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=True)
""",
        ),
    ),
)
