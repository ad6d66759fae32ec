"""Attention of the layout TND: sequences of several lengths, one behind the other."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch

from npufix.rewriters.verification.kernels.attention_core import (
    Attended,
    AttentionSettings,
    Dropping,
    attend,
    with_copies,
)
from npufix.rewriters.verification.kernels.common import accept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_DIMS = 3
_MATRIX = 2


class Sequences(NamedTuple):
    """What attention returns for each sequence."""

    each: Sequence[Attended]

    def packed(self, softmax_layout: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return the result as (tokens, heads, width), and the statistics of all rows."""
        result = torch.cat([own.result[0].transpose(0, 1) for own in self.each]).contiguous()
        by_token = softmax_layout == "TND"
        highest, total = (
            torch.cat([(s[0].transpose(0, 1) if by_token else s[0]).flatten() for s in statistics])
            for statistics in zip(*[(own.highest, own.total) for own in self.each], strict=True)
        )
        shape = (*result.shape[:2], 1)
        return result, with_copies(highest.reshape(shape)), with_copies(total.reshape(shape))


def attend_sequences(  # noqa: PLR0913, PLR0917 - parts of the operator's schema
    operator: str,
    tensors: tuple[Tensor, Tensor, Tensor],
    heads: int,
    ends: tuple[Sequence[int], Sequence[int]],
    settings: AttentionSettings,
    dropping: Dropping,
) -> Sequences:
    """Attend within every sequence; ``ends`` says where those of queries and of keys end."""
    query, key, value = tensors
    _check(operator, tensors, heads, ends)
    spans = list(zip(pairwise([0, *ends[0]]), pairwise([0, *ends[1]]), strict=True))
    sizes = [heads * (q1 - q0) * (k1 - k0) for (q0, q1), (k0, k1) in spans]
    # All of it is drawn at once, as the device does.
    drawn = dropping.of((sum(sizes),))
    factors = [None] * len(spans) if drawn is None else torch.split(drawn, sizes)
    groups = heads // key.shape[1]
    each = []
    for ((q0, q1), (k0, k1)), factor in zip(spans, factors, strict=True):
        q = query[q0:q1].transpose(0, 1)[None]
        k, v = (t[k0:k1].transpose(0, 1).repeat_interleave(groups, 0)[None] for t in (key, value))
        own = settings
        if own.mode in {0, 1} and own.mask is not None:
            accept(operator, own.mask.dim() == _MATRIX, "TND wants an atten_mask of SS")
            own = own._replace(mask=own.mask[: q1 - q0, : k1 - k0])
        shaped = None if factor is None else factor.reshape(1, heads, q1 - q0, k1 - k0)
        each.append(
            attend(operator, (q, k, v), None, own, shaped) if k1 > k0 else _of_no_keys(q, v)
        )
    return Sequences(each)


def _of_no_keys(query: Tensor, value: Tensor) -> Attended:
    zeros = query.new_zeros(*query.shape[:-1], 1, dtype=torch.float32)
    return Attended(query.new_zeros(*query.shape[:-1], value.shape[-1]), zeros, zeros)


def _check(
    operator: str,
    tensors: tuple[Tensor, Tensor, Tensor],
    heads: int,
    ends: tuple[Sequence[int], Sequence[int]],
) -> None:
    query, key, value = tensors
    for tensor in tensors:
        accept(operator, tensor.dim() == _DIMS, f"TND does not fit {tensor.dim()}-D")
    accept(
        operator,
        query.shape[1] == heads,
        f"head_num is {heads}, the query has {query.shape[1]} heads",
    )
    known = key.shape[1]
    accept(operator, known > 0 and heads % known == 0, f"{heads} heads for {known} key heads")
    accept(
        operator,
        key.shape[:2] == value.shape[:2] and query.shape[-1] == key.shape[-1] >= value.shape[-1],
        f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} "
        "do not match",
    )
    for own, tensor in zip(ends, (query, key), strict=True):
        accept(
            operator,
            list(own) == sorted(own) and own[-1:] == [tensor.shape[0]],
            f"lengths that add up to {list(own)} do not end at {tensor.shape[0]}",
        )
    accept(operator, len(ends[0]) == len(ends[1]), "queries and keys differ in sequences")
