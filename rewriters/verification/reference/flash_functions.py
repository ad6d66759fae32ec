"""A stand-in for flash_attn and xformers: attention as its documentation defines it, on CPU.

Tensors are (batch, length, heads, size), or (rows of all sequences, heads, size) with the borders
of the sequences. Causal attention counts from the end of the keys; a query that sees no key gets
zeros; fewer heads of keys are shared by neighbouring heads of queries.
"""

from __future__ import annotations

import importlib.machinery
import types
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.kernels.common import wide

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

_DIMS = 4
_LIKE_NOTHING = {"window_size": (-1, -1), "softcap": 0.0, "deterministic": False}
"""What changes nothing of the result, if it is this."""


def _attend(
    tensors: Sequence[Tensor],
    dropout_p: float,
    scale: float | None,
    *,
    causal: bool,
) -> Tensor:
    q, k, v = tensors
    if not k.numel():
        raise NotImplementedError("attention to no keys has no stand-in")
    groups = q.shape[-2] // k.shape[-2]
    q, k, v = (t.transpose(-3, -2) for t in (q, k, v))
    k, v = (wide(t.repeat_interleave(groups, -3)) for t in (k, v))
    scores = wide(q) @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        rows, columns = scores.shape[-2:]
        hidden = torch.ones(rows, columns, dtype=torch.bool).triu(columns - rows + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
        shares = scores.softmax(-1).masked_fill(hidden.all(-1, keepdim=True), 0.0)
    else:
        shares = scores.softmax(-1)
    shares = F.dropout(shares.to(q.dtype), dropout_p) if dropout_p else shares.to(q.dtype)
    return (wide(shares) @ v).to(q.dtype).transpose(-3, -2)


def _check(options: dict[str, object]) -> None:
    for name, value in options.items():
        if value and value != _LIKE_NOTHING.get(name):
            raise NotImplementedError(f"{name}={value!r} of flash_attn has no stand-in")


def flash_attn_func(  # noqa: PLR0913, PLR0917 - the package's own
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 - same
    **options: object,
) -> Tensor:
    """Attend within each batch."""
    _check(options)
    return _attend((q, k, v), dropout_p, softmax_scale, causal=causal)


def flash_attn_varlen_func(  # noqa: PLR0913, PLR0917 - the package's own
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,  # noqa: ARG001 - for its kernels
    max_seqlen_k: int,  # noqa: ARG001 - same
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002 - same
    **options: object,
) -> Tensor:
    """Attend within each sequence, all of which lie behind each other."""
    _check(options)
    rows = [_between(t, s) for t, s in ((q, cu_seqlens_q), (k, cu_seqlens_k), (v, cu_seqlens_k))]
    parts = [
        _attend(part, dropout_p, softmax_scale, causal=causal) for part in zip(*rows, strict=True)
    ]
    return torch.cat(parts)


def _between(rows: Tensor, borders: Tensor) -> Sequence[Tensor]:
    if borders.dtype != torch.int32 or int(borders[0]) != 0 or int(borders[-1]) != len(rows):
        raise RuntimeError("the borders of sequences are int32, from 0 to the number of rows")
    lengths: list[int] = borders.diff().tolist()
    return torch.split(rows, lengths)


def _of_qkv(function: Callable[..., Tensor], x: Tensor, *rest: object, **more: object) -> Tensor:
    """Take queries, keys and values out of one tensor."""
    return function(*x.unbind(2), *rest, **more)


def _of_kv(
    function: Callable[..., Tensor], dim: int, q: Tensor, kv: Tensor, *rest: object, **more: object
) -> Tensor:
    """Take keys and values out of one tensor."""
    return function(q, *kv.unbind(dim), *rest, **more)


def memory_efficient_attention(  # noqa: PLR0913, PLR0917 - of xformers
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: object = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: object = None,  # noqa: ARG001 - chooses a kernel
) -> Tensor:
    """Attend within each batch, without a dimension for the heads if there are but three."""
    if attn_bias is not None:
        raise NotImplementedError("a bias of xformers has no stand-in")
    dims = range(query.dim(), _DIMS)
    whole = [x.unsqueeze(2) if dims else x for x in (query, key, value)]
    found = _attend(whole, p, scale, causal=False)
    return found.squeeze(2) if dims else found


def modules() -> dict[str, types.ModuleType]:
    """Return the modules that stand in for flash_attn, by dotted name."""
    found: dict[str, Callable[..., Tensor]] = {
        "flash_attn_func": flash_attn_func,
        "flash_attn_kvpacked_func": partial(_of_kv, flash_attn_func, 2),
        "flash_attn_qkvpacked_func": partial(_of_qkv, flash_attn_func),
    }
    for name in ("varlen", "unpadded"):
        found[f"flash_attn_{name}_func"] = flash_attn_varlen_func
        found[f"flash_attn_{name}_kvpacked_func"] = partial(_of_kv, flash_attn_varlen_func, 1)
    made = {}
    for name in ("flash_attn", "flash_attn.flash_attn_interface"):
        module = types.ModuleType(name, "A stand-in by npufix: torch on CPU.")
        module.__dict__.update(found)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        made[name] = module
    for name in ("xformers", "xformers.ops"):
        made[name] = types.ModuleType(name, "A stand-in by npufix: torch on CPU.")
        made[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    made["xformers.ops"].__dict__["memory_efficient_attention"] = memory_efficient_attention
    made["xformers"].__dict__["ops"] = made["xformers.ops"]
    made["flash_attn"].__path__ = made["xformers"].__path__ = []
    return made
