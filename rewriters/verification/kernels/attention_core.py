"""Attention of one layout: scores and softmax in float32, probabilities rounded before values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    accept,
    wide,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_COMPRESSED = 2048
_LEFT_UP, _RIGHT_DOWN, _BAND = 2, 3, 4
_COPIES = 8
"""How often the statistics are repeated along their last dimension."""
_BITS = 8


class AttentionSettings(NamedTuple):
    """How scores are scaled, and which of them are dropped."""

    scale: float
    mask: Tensor | None
    mode: int
    before: int
    after: int
    scale_first: bool = False
    """Whether ``pse`` is added to scaled scores."""


class Attended(NamedTuple):
    """The result, and the largest score and the sum of every row."""

    result: Tensor
    highest: Tensor
    total: Tensor


@dataclass(frozen=True, slots=True)
class Dropping:
    """Dropout of probabilities: drawn here, or given as bits."""

    keep_prob: float
    bits: Tensor | None = None

    def of(self, shape: Sequence[int]) -> Tensor | None:
        """Return what probabilities are multiplied with, None for one."""
        if self.keep_prob >= 1:
            return None
        count = torch.Size(shape).numel()
        if self.bits is None:
            # As ``F.dropout`` draws, so that with one seed the eager code drops the same.
            return F.dropout(torch.ones(count), 1 - self.keep_prob).reshape(shape)
        each = torch.arange(_BITS, dtype=torch.uint8)
        kept = ((self.bits.reshape(-1, 1) >> each) & 1).flatten()[:count]
        return kept.reshape(shape) / self.keep_prob


def attend(
    operator: str,
    heads: tuple[Tensor, Tensor, Tensor],
    pse: Tensor | None,
    settings: AttentionSettings,
    factor: Tensor | None,
) -> Attended:
    """Attend from queries to keys, all of shape (batch, heads, length, width)."""
    query, key, value = heads
    scores = wide(query) @ wide(key).transpose(-1, -2)
    if settings.scale_first:
        scores = scores * settings.scale
    if pse is not None:
        scores = scores + wide(pse)
    if not settings.scale_first:
        scores = scores * settings.scale
    if settings.mask is not None:
        scores = scores.masked_fill(_drop(operator, settings, scores), float("-inf"))
    # A row in which everything is dropped has the sum zero, and the result zero.
    lowest = torch.finfo(torch.float32).min
    highest = scores.detach().amax(-1, keepdim=True).clamp(min=lowest)
    weights = torch.exp(scores - highest)
    total = weights.sum(-1, keepdim=True)
    probabilities = (weights / total.masked_fill(total == 0, 1.0)).to(query.dtype)
    if factor is not None:
        probabilities = probabilities * factor.to(query.dtype)
    result = (wide(probabilities) @ wide(value)).to(query.dtype)
    return Attended(result, highest, total)


def with_copies(statistic: Tensor) -> Tensor:
    """Return a statistic as the operator does, repeated along its last dimension."""
    return statistic.expand(*statistic.shape[:-1], _COPIES).contiguous()


def _drop(operator: str, settings: AttentionSettings, scores: Tensor) -> Tensor:
    """Return a bool tensor that broadcasts to ``scores``, True where nothing is attended."""
    mask, mode = settings.mask, settings.mode
    assert mask is not None  # noqa: S101 - without a mask no mode masks anything
    if mask.dtype not in {torch.bool, torch.uint8}:
        raise RuntimeError(f"{operator}: atten_mask is {mask.dtype}, not bool or uint8")
    queries, keys = scores.shape[-2:]
    distance = torch.arange(keys) - torch.arange(queries)[:, None]
    if mode in {_LEFT_UP, _RIGHT_DOWN, _BAND}:
        _check_compressed(operator, mask, mode)
        if mode != _LEFT_UP:
            distance = distance - (keys - queries)
        if mode == _BAND:
            return (distance > settings.after) | (-distance > settings.before)
        return distance > 0
    if mode not in {0, 1}:
        raise NoReferenceKernelError(f"there is no reference kernel for sparse_mode {mode}")
    batch, heads = scores.shape[:2]
    shapes = [(batch, heads), (batch, 1), (1, 1), ()]
    accept(
        operator,
        any(mask.shape == (*lead, queries, keys) for lead in shapes),
        f"atten_mask {tuple(mask.shape)} is not BNSS, B1SS, 11SS or SS of {tuple(scores.shape)}",
    )
    dropped = mask.bool()
    if mode == 0:
        dropped = dropped | (distance > settings.after) | (-distance > settings.before)
    return dropped


@lru_cache
def _make_triangle() -> Tensor:
    return torch.ones(_COMPRESSED, _COMPRESSED, dtype=torch.bool).triu(1)


def _check_compressed(operator: str, mask: Tensor, mode: int) -> None:
    triangle = _make_triangle().to(mask.device)
    accept(
        operator,
        mask.shape[-2:] == triangle.shape
        and all(torch.equal(each, triangle) for each in mask.bool().reshape(-1, *triangle.shape)),
        f"sparse_mode {mode} wants the upper triangle of {_COMPRESSED} x {_COMPRESSED}",
    )
