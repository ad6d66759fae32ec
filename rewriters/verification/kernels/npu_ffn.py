"""``npu_ffn``: two linear layers and an activation, in float32, rounded once; inference only."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.kernels.common import (
    HALF,
    NoReferenceKernelError,
    accept,
    accept_chip,
    accept_dims,
    accept_dtypes,
    wide,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_ffn"
_LARGEST = 65_536
_PLAIN: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "fastgelu": lambda x: x * torch.sigmoid(1.702 * x),
}
_GATED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "geglu": F.gelu,
    "swiglu": F.silu,
    "reglu": F.relu,
}


def forward(  # noqa: PLR0913, PLR0917 - the operator's schema
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    activation: str,
    expert_tokens: Sequence[int] | None = None,
    expert_tokens_index: Sequence[int] | None = None,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    deq_scale1: Tensor | None = None,
    deq_scale2: Tensor | None = None,
    antiquant_scale1: Tensor | None = None,
    antiquant_scale2: Tensor | None = None,
    antiquant_offset1: Tensor | None = None,
    antiquant_offset2: Tensor | None = None,
    *_precision: object,
    **_more_precision: object,
) -> Tensor:
    """Return the output of the layers; with experts, of that of each row."""
    quantised = (scale, offset, deq_scale1, deq_scale2)
    antiquantised = (antiquant_scale1, antiquant_scale2, antiquant_offset1, antiquant_offset2)
    if any(option is not None for option in (*quantised, *antiquantised)):
        raise NoReferenceKernelError(f"there is no reference kernel for quantised {_NAME}")
    accept_chip(_NAME, "A2", "A3", "A5")
    accept_dtypes(_NAME, x, weight1, weight2)
    accept_dims(_NAME, x, 2, 8)
    ends = _ends(expert_tokens, expert_tokens_index)
    _check(x, weight1, weight2, activation, experts=ends is not None)
    rows = wide(x).reshape(-1, x.shape[-1])
    if ends is None:
        result = _layers(rows, weight1, weight2, bias1, bias2, activation)
    else:
        accept(
            _NAME,
            len(ends) == weight1.shape[0] and ends[-1:] == [rows.shape[0]],
            f"experts with rows up to {ends} do not take {rows.shape[0]} rows",
        )
        parts = []
        for expert, (start, end) in enumerate(pairwise([0, *ends])):
            first, second = (None if b is None else b[expert] for b in (bias1, bias2))
            weights = (weight1[expert], weight2[expert])
            parts.append(_layers(rows[start:end], *weights, first, second, activation))
        result = torch.cat(parts)
    return result.reshape(*x.shape[:-1], weight2.shape[-1]).to(x.dtype)


def _ends(tokens: Sequence[int] | None, index: Sequence[int] | None) -> list[int] | None:
    """Return the row at which each expert ends."""
    if tokens is not None and index is not None:
        raise RuntimeError(f"{_NAME}: expert_tokens and expert_tokens_index exclude each other")
    if tokens is None:
        return None if index is None else list(index)
    return torch.tensor(list(tokens)).cumsum(0).tolist()


def _check(x: Tensor, weight1: Tensor, weight2: Tensor, activation: str, *, experts: bool) -> None:
    if activation not in {*_PLAIN, *_GATED}:
        known = ", ".join([*_PLAIN, *_GATED])
        raise RuntimeError(f"{_NAME}: activation {activation!r} is none of {known}")
    if x.dtype not in {*HALF, torch.float64}:
        raise RuntimeError(f"{_NAME}: no kernel for {x.dtype}, only for float16 and bfloat16")
    if activation in _GATED and (experts or x.dtype == torch.bfloat16):
        raise RuntimeError(f"{_NAME}: {activation} wants float16 and no experts")
    dims = 3 if experts else 2
    accept(_NAME, weight1.dim() == weight2.dim() == dims, f"the weights must be {dims}-D")
    (k1, n1), (k2, n2) = weight1.shape[-2:], weight2.shape[-2:]
    accept(_NAME, x.shape[-1] == k1 == n2, f"K1 is {k1}, N2 {n2}, the width of x {x.shape[-1]}")
    times = 2 if activation in _GATED else 1
    accept(
        _NAME, n1 == times * k2, f"N1 is {n1} and K2 {k2}, {activation} wants {times} times as many"
    )
    accept(_NAME, max(k1, k2) < _LARGEST, f"K1 is {k1} and K2 {k2}, not below {_LARGEST}")


def _layers(  # noqa: PLR0913, PLR0917 - what the layers consist of
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    bias1: Tensor | None,
    bias2: Tensor | None,
    activation: str,
) -> Tensor:
    inner = x @ wide(weight1)
    if bias1 is not None:
        inner = inner + wide(bias1)
    if activation in _GATED:
        gate, up = inner.chunk(2, -1)
        inner = _GATED[activation](gate) * up
    else:
        inner = _PLAIN[activation](inner)
    result = inner @ wide(weight2)
    return result if bias2 is None else result + wide(bias2)
