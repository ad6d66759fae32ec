"""``npu_fusion_attention``: scores and softmax in float32, probabilities rounded before values.

True in ``atten_mask`` drops a score, ``pse`` is added before the scale is applied, the default
scale is one, and without a mask no ``sparse_mode`` masks anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.verification.kernels.attention_core import (
    AttentionSettings,
    Dropping,
    attend,
    with_copies,
)
from npufix.rewriters.verification.kernels.attention_sequences import attend_sequences
from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    accept,
    accept_chip,
    accept_dtypes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

NOT_DIFFERENTIABLE = (1, 2, 3)
RANDOM = True
_NAME = "npu_fusion_attention"
_MOST_HEADS = 256
_WIDEST = 768
_EVERYTHING = 2147483647
_LAYOUTS = {"BNSD": 4, "BSND": 4, "BSH": 3, "SBH": 3}


class _Heads(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _EVERYTHING,
    next_tockens: int = _EVERYTHING,
    inner_precise: int = 0,  # noqa: ARG001 - how the kernel sums
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,  # noqa: FBT001, FBT002, ARG001 - how dropout is scheduled
    sync: bool = False,  # noqa: FBT001, FBT002, ARG001 - how dropout is scheduled
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int = 0,  # noqa: ARG001 - for dropout_mask only
    offset: int = 0,  # noqa: ARG001 - for dropout_mask only
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """Return attention, softmax statistics, and what the backward pass needs for dropout."""
    if prefix is not None or sink is not None:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} with these options")
    if padding_mask is not None:
        raise RuntimeError(f"{_NAME}: padding_mask is not supported")
    settings = AttentionSettings(scale, atten_mask, sparse_mode, pre_tockens, next_tockens)
    result, *statistics = attend_in_layout(
        _NAME,
        (query, key, value),
        (head_num, input_layout, softmax_layout),
        pse,
        settings,
        Dropping(keep_prob, dropout_mask),
        (actual_seq_qlen, actual_seq_kvlen),
    )
    return result, *statistics, query.new_empty(0), 0, 0, 0  # type: ignore[return-value] # the numbers end the tuple


def attend_in_layout(  # noqa: PLR0913, PLR0917 - parts of the operators' schemas
    operator: str,
    tensors: tuple[Tensor, Tensor, Tensor],
    layout: tuple[int, str, str],
    pse: Tensor | None,
    settings: AttentionSettings,
    drop: Dropping,
    ends: tuple[Sequence[int] | None, Sequence[int] | None],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return attention and the statistics of its softmax.

    ``layout``: how many heads there are, how the tensors are laid out, and the statistics.
    """
    head_num, input_layout, softmax_layout = layout
    input_layout = input_layout.upper()
    accept_chip(operator, "A2", "A3", "A5")
    if not 0 < drop.keep_prob <= 1:
        raise RuntimeError(f"{operator}: keep_prob is {drop.keep_prob}, not in (0, 1]")
    accept_dtypes(operator, *tensors, pse)
    if input_layout == "TND":
        if pse is not None:
            raise NoReferenceKernelError(
                f"there is no reference kernel for {operator} of TND and pse"
            )
        accept(
            operator,
            ends[0] is not None and ends[1] is not None,
            "TND wants actual_seq_qlen and actual_seq_kvlen",
        )
        # Another version of the operator takes tensors.
        first, second = ([] if own is None else [int(end) for end in own] for own in ends)
        found = attend_sequences(operator, tensors, head_num, (first, second), settings, drop)
        return found.packed(softmax_layout)
    q, k, v = _heads(operator, *tensors, head_num, input_layout)
    if pse is not None:
        _check_pse(operator, pse, q, k)
    attended = attend(operator, (q, k, v), pse, settings, drop.of((*q.shape[:-1], k.shape[-2])))
    highest, total = (with_copies(s) for s in (attended.highest, attended.total))
    return _pack(attended.result, input_layout), highest, total


def _heads(  # noqa: PLR0913, PLR0917 - parts of the operators' schemas
    operator: str, query: Tensor, key: Tensor, value: Tensor, heads: int, layout: str
) -> _Heads:
    """Return all three as (batch, heads, length, width), as many heads in each."""
    if layout not in _LAYOUTS:
        raise RuntimeError(f"{operator}: input_layout {layout!r} is none of {', '.join(_LAYOUTS)}")
    for tensor in (query, key, value):
        accept(
            operator, tensor.dim() == _LAYOUTS[layout], f"{layout} does not fit {tensor.dim()}-D"
        )
    accept(operator, 0 < heads <= _MOST_HEADS, f"head_num is {heads}")
    if layout in {"BSH", "SBH"}:
        accept(operator, query.shape[-1] % heads == 0, f"{query.shape[-1]} is no {heads} heads")
        width = query.shape[-1] // heads
        accept(operator, key.shape[-1] % max(width, 1) == 0, "key and query differ in head width")
        fewer = key.shape[-1] // max(width, 1)
        counts = (heads, fewer, fewer)
        q, k, v = (
            _split(t if layout == "BSH" else t.transpose(0, 1), n)
            for t, n in zip((query, key, value), counts, strict=True)
        )
    else:
        q, k, v = (t if layout == "BNSD" else t.transpose(1, 2) for t in (query, key, value))
    accept(operator, q.shape[1] == heads, f"head_num is {heads}, the query has {q.shape[1]} heads")
    accept(
        operator,
        k.shape[:3] == v.shape[:3]
        and q.shape[0] == k.shape[0]
        and q.shape[-1] == k.shape[-1] >= v.shape[-1]
        and q.shape[-1] <= _WIDEST,
        f"query {tuple(q.shape)}, key {tuple(k.shape)} and value {tuple(v.shape)} do not match",
    )
    known = k.shape[1]
    accept(operator, known > 0 and heads % known == 0, f"{heads} heads for {k.shape[1]} key heads")
    groups = heads // k.shape[1]
    return _Heads(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))


def _split(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)


def _pack(result: Tensor, layout: str) -> Tensor:
    if layout == "BNSD":
        return result.contiguous()
    if layout == "BSND":
        return result.transpose(1, 2).contiguous()
    return (result.permute(0, 2, 1, 3) if layout == "BSH" else result.permute(2, 0, 1, 3)).flatten(
        -2
    )


def _check_pse(operator: str, pse: Tensor, q: Tensor, k: Tensor) -> None:
    shape = (*q.shape[:-1], k.shape[-2])
    accept(
        operator,
        pse.dim() == len(shape) and pse.shape[1:] == shape[1:] and pse.shape[0] in {1, shape[0]},
        f"pse {tuple(pse.shape)} does not go with scores {shape}",
    )
