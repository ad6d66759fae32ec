"""``npu_fusion_attention_v2``: a choice of where ``pse`` is added, and heads for RoPE apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.attention_core import AttentionSettings, Dropping
from npufix.rewriters.verification.kernels.common import NoReferenceKernelError, accept
from npufix.rewriters.verification.kernels.npu_fusion_attention import attend_in_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

NOT_DIFFERENTIABLE = (1, 2, 3)
RANDOM = True
_NAME = "npu_fusion_attention_v2"
_EVERYTHING = 2147483647
_SCALE_FIRST, _SCALE_LAST = 0, 1


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = _EVERYTHING,
    next_tokens: int = _EVERYTHING,
    inner_precise: int = 0,  # noqa: ARG001 - how the kernel sums
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,  # noqa: FBT001, FBT002, ARG001 - how dropout is scheduled
    sync: bool = False,  # noqa: FBT001, FBT002, ARG001 - how dropout is scheduled
    pse_type: int = _SCALE_LAST,
    q_start_idx: Sequence[int] | None = None,
    kv_start_idx: Sequence[int] | None = None,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int = 0,  # noqa: ARG001 - for dropout_mask only
    offset: int = 0,  # noqa: ARG001 - for dropout_mask only
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """Return attention, softmax statistics, and what the backward pass needs for dropout."""
    others = (prefix, sink, q_start_idx, kv_start_idx)
    if any(option is not None for option in others) or pse_type not in {_SCALE_FIRST, _SCALE_LAST}:
        raise NoReferenceKernelError(f"there is no reference kernel for {_NAME} with these options")
    if padding_mask is not None:
        raise RuntimeError(f"{_NAME}: padding_mask is not supported")
    if query_rope is not None or key_rope is not None:
        accept(
            _NAME, query_rope is not None and key_rope is not None, "one of the ropes is missing"
        )
        accept(_NAME, input_layout.upper() == "TND", f"{input_layout} has no ropes, only TND")
        assert query_rope is not None  # noqa: S101 - accepted above
        assert key_rope is not None  # noqa: S101 - as above
        # The sum of two products is the product of what is put side by side.
        query, key = torch.cat((query, query_rope), -1), torch.cat((key, key_rope), -1)
    settings = AttentionSettings(
        scale, atten_mask, sparse_mode, pre_tokens, next_tokens, pse_type == _SCALE_FIRST
    )
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
