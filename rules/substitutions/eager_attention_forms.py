"""Attention over tensors of other layouts than (batch, heads, length, size).

One head or the heads folded into the batch (three dimensions), the size of a head before the length
(what a convolution returns), the length before the heads (``einsum``). Each is a view of the layout
that the fused operator takes: it gets transposed or unsqueezed operands, and its result is turned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.attention import (
    FOUR_DIMENSIONAL,
    NOT_FUSED_YET,
    NUMBER_SCALE,
    RANDOM_NUMBERS,
    SAME_DTYPE,
    SAME_HEADS,
    operands,
)
from npufix.rules.substitution import Condition, Draw, Form, Site, either

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

_DIMS = 3
_LARGEST_HEAD = 512


def weights_of(
    product: Tensor, q: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    """Return the share of each key, some of them dropped."""
    product = either(product, product.to(torch.float32))
    scores = either(product * scale, product / divisor, product)
    weights = either(
        scores.softmax(-1),
        scores.softmax(-1).to(q.dtype),
        scores.softmax(-1, torch.float32).to(q.dtype),
        scores.to(torch.float32).softmax(-1).to(q.dtype),
        scores.to(torch.float32).softmax(-1).to(scores.dtype),
    )
    return either(F.dropout(weights, p, training), weights)


def weights_of_batch(
    product: Tensor, q: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    """Return the share of each key in three dimensions."""
    product = either(product, product.to(torch.float32))
    scores = either(product * scale, product / divisor, product)
    weights = either(
        scores.softmax(-1),
        scores.softmax(-1).to(q.dtype),
        scores.softmax(2),
        scores.softmax(-1, torch.float32).to(q.dtype),
        scores.to(torch.float32).softmax(-1).to(q.dtype),
        scores.to(torch.float32).softmax(-1).to(scores.dtype),
    )
    return either(F.dropout(weights, p, training), weights)


def weights_along_two(
    product: Tensor, q: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    """Return the share of each key along what is the last dimension of three."""
    product = either(product, product.to(torch.float32))
    scores = either(product * scale, product / divisor, product)
    weights = either(
        scores.softmax(2),
        scores.softmax(2, torch.float32).to(q.dtype),
        scores.to(torch.float32).softmax(2).to(scores.dtype),
    )
    return either(F.dropout(weights, p, training), weights)


def turned(x: Tensor) -> Tensor:
    """Return a batch of matrices with rows and columns exchanged."""
    return either(x.transpose(1, 2), x.transpose(-2, -1), x.permute(0, 2, 1))


def folded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Attend with one head, or with the heads as part of the batch."""
    product = torch.bmm(q, turned(k))
    return torch.bmm(weights_of_batch(product, q, scale, divisor, p, training), v)


def fused_folded(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    """Attend with one head for each batch."""
    return F.scaled_dot_product_attention(
        q.unsqueeze(1),
        k.unsqueeze(1),
        v.unsqueeze(1),
        dropout_p=p if training else 0.0,
        scale=scale / divisor,
    ).squeeze(1)


def keys_by_channel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Attend to keys that a convolution returned: (batch, channels, pixels)."""
    product = torch.bmm(q, k)
    return torch.bmm(weights_of_batch(product, q, scale, divisor, p, training), v)


def fused_keys_by_channel(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    """Attend to the keys as rows."""
    return F.scaled_dot_product_attention(
        q.unsqueeze(1),
        k.transpose(1, 2).unsqueeze(1),
        v.unsqueeze(1),
        dropout_p=p if training else 0.0,
        scale=scale / divisor,
    ).squeeze(1)


def folded_matmul(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Attend with one head by products that would take other numbers of dimensions as well."""
    product = q @ turned(k)
    return weights_along_two(product, q, scale, divisor, p, training) @ v


def keys_by_channel_matmul(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Attend to keys that are columns by such products."""
    return weights_along_two(q @ k, q, scale, divisor, p, training) @ v


def by_channel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Attend to keys and values that convolutions returned, and return pixels last as well."""
    product = torch.bmm(q, k)
    shares = turned(weights_of_batch(product, q, scale, divisor, p, training))
    return torch.bmm(v, either(shares, shares.contiguous()))


def fused_by_channel(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    """Attend to keys and values as rows, and turn the result."""
    return (
        F.scaled_dot_product_attention(
            q.unsqueeze(1),
            k.transpose(1, 2).unsqueeze(1),
            v.transpose(1, 2).unsqueeze(1),
            dropout_p=p if training else 0.0,
            scale=scale / divisor,
        )
        .squeeze(1)
        .transpose(1, 2)
    )


def channel_letters(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Attend where everything is (batch, channels, pixels), by ``einsum``."""
    product = torch.einsum("bct,bcs->bts", q, k)
    shares = weights_of_batch(product, q, scale, divisor, p, training)
    return torch.einsum("bts,bcs->bct", shares, v)


def fused_channel_letters(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    """Attend to rows, and turn the result."""
    return (
        F.scaled_dot_product_attention(
            q.transpose(1, 2).unsqueeze(1),
            k.transpose(1, 2).unsqueeze(1),
            v.transpose(1, 2).unsqueeze(1),
            dropout_p=p if training else 0.0,
            scale=scale / divisor,
        )
        .squeeze(1)
        .transpose(1, 2)
    )


def heads_by_channel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Attend where the pixels are the last dimension of all (YOLO)."""
    product = q.transpose(-2, -1) @ k
    shares = weights_of(product, q, scale, divisor, p, training)
    return v @ shares.transpose(-2, -1)


def fused_heads_by_channel(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    """Attend to rows, and turn the result."""
    return F.scaled_dot_product_attention(
        q.transpose(-2, -1),
        k.transpose(-2, -1),
        v.transpose(-2, -1),
        dropout_p=p if training else 0.0,
        scale=scale / divisor,
    ).transpose(-2, -1)


def length_first(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Attend where the heads come after the length."""
    product = torch.einsum("bnhd,bmhd->bhnm", q, k)
    shares = weights_of(product, q, scale, divisor, p, training)
    return torch.einsum("bhnm,bmhd->bnhd", shares, v)


def fused_length_first(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    """Attend with the heads in front, and turn the result."""
    return F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        dropout_p=p if training else 0.0,
        scale=scale / divisor,
    ).transpose(1, 2)


def heads_first(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Write both products with ``einsum``."""
    product = torch.einsum("bhnd,bhmd->bhnm", q, k)
    shares = weights_of(product, q, scale, divisor, p, training)
    return torch.einsum("bhnm,bhmd->bhnd", shares, v)


def fused_heads_first(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    """Attend in the layout that the operator takes."""
    return F.scaled_dot_product_attention(
        q, k, v, dropout_p=p if training else 0.0, scale=scale / divisor
    )


def heads_of_columns(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float = 1.0,
    divisor: float = 1.0,
    p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Attend where the pixels are the last dimension, and return them as rows (diffusion)."""
    product = torch.einsum("bhdn,bhdm->bhnm", q, k)
    shares = weights_of(product, q, scale, divisor, p, training)
    return torch.einsum("bhnm,bhdm->bhnd", shares, v)


def fused_heads_of_columns(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    """Attend to rows."""
    return F.scaled_dot_product_attention(
        q.transpose(-2, -1),
        k.transpose(-2, -1),
        v.transpose(-2, -1),
        dropout_p=p if training else 0.0,
        scale=scale / divisor,
    )


def folded_inputs(draw: Draw) -> dict[str, Any]:
    """Return one head for each batch."""
    given = operands(draw)
    return {**given, **{name: given[name][:, 0] for name in "qkv"}}


def _turned(draw: Draw, names: str) -> dict[str, Any]:
    given = folded_inputs(draw)
    return {**given, **{name: given[name].transpose(-2, -1) for name in names}}


def key_channel_inputs(draw: Draw) -> dict[str, Any]:
    """Return one head whose keys are columns."""
    return _turned(draw, "k")


def channel_inputs(draw: Draw) -> dict[str, Any]:
    """Return one head whose keys and values are columns."""
    return _turned(draw, "kv")


def all_channel_inputs(draw: Draw) -> dict[str, Any]:
    """Return one head all of which is columns."""
    return _turned(draw, "qkv")


def head_channel_inputs(draw: Draw) -> dict[str, Any]:
    """Return heads of columns."""
    given = operands(draw)
    return {**given, **{name: given[name].transpose(-2, -1) for name in "qkv"}}


def length_first_inputs(draw: Draw) -> dict[str, Any]:
    """Return (batch, length, heads, size)."""
    given = operands(draw)
    return {**given, **{name: given[name].transpose(1, 2) for name in "qkv"}}


def _may_be_fused(site: Site) -> bool | None:
    if any(site.ndim(name) not in {None, _DIMS} for name in "qkv"):
        return False
    size = site.size("q", -1)
    return False if size is not None and size > _LARGEST_HEAD else None


ONE_HEAD = Condition(
    "one-head-per-batch",
    "a fused kernel pays for tensors of three dimensions: one head of at most 512 elements for "
    "each batch",
    _may_be_fused,
)
# A batched product takes three dimensions and broadcasts nothing. The letters of ``einsum`` say how
# many dimensions there are, but lengths of one are broadcast.
_ALWAYS = (NOT_FUSED_YET, SAME_DTYPE, NUMBER_SCALE, RANDOM_NUMBERS)
_ONE_HEAD = (*_ALWAYS, ONE_HEAD)
_LETTERS = (*_ALWAYS, SAME_HEADS)
_HEADS_SECOND = (
    *_ALWAYS,
    Condition(
        SAME_HEADS.name,
        SAME_HEADS.text,
        lambda site: site.same_heads("q", "k", "v", heads=2),
        meaning="same-heads-third",
    ),
)
_ANY_RANK = (*_LETTERS, FOUR_DIMENSIONAL)

LAYOUTS = (
    Form(folded, fused_folded, folded_inputs, _ONE_HEAD),
    Form(keys_by_channel, fused_keys_by_channel, key_channel_inputs, _ONE_HEAD),
    Form(by_channel, fused_by_channel, channel_inputs, _ONE_HEAD),
    Form(folded_matmul, fused_folded, folded_inputs, _ONE_HEAD),
    Form(keys_by_channel_matmul, fused_keys_by_channel, key_channel_inputs, _ONE_HEAD),
    Form(channel_letters, fused_channel_letters, all_channel_inputs, _ONE_HEAD),
    Form(heads_by_channel, fused_heads_by_channel, head_channel_inputs, _ANY_RANK),
    Form(length_first, fused_length_first, length_first_inputs, _HEADS_SECOND),
    Form(heads_first, fused_heads_first, operands, _LETTERS),
    Form(heads_of_columns, fused_heads_of_columns, head_channel_inputs, _LETTERS),
)
