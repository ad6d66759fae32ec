"""Kernels that torch_npu launches outside of operators, computed from what they are given.

It does so above autograd, while it decides which operator attention becomes, and in formulas for
gradients that it calls by itself: no dispatch mode sees those.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.virtual_npu.wheel.entry_points import DeviceTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

_DTYPES = {
    0: torch.float32,
    1: torch.float16,
    2: torch.int8,
    3: torch.int32,
    4: torch.uint8,
    6: torch.int16,
    9: torch.int64,
    11: torch.float64,
    12: torch.bool,
    27: torch.bfloat16,
}
"""aclDataType."""


def compute_kernel(kernel: str, arguments: Sequence[object]) -> None:
    """Compute a kernel of ``entry_points.DIRECT``; the last argument is its result."""
    *given, result = (
        _host_view(value) if isinstance(value, DeviceTensor) else value for value in arguments
    )
    assert isinstance(result, torch.Tensor)  # noqa: S101 - by the signatures in ``DIRECT``
    with torch.no_grad():
        result.copy_(_KERNELS[kernel](*given))


def _host_view(described: DeviceTensor) -> Tensor:
    """Return a host tensor over the memory that a kernel is given."""
    dtype = _DTYPES[described.dtype]
    if 0 in described.shape:
        return torch.empty(described.shape, dtype=dtype)
    steps = zip(described.shape, described.strides, strict=True)
    last = described.offset + sum((size - 1) * step for size, step in steps)
    memory = (ctypes.c_char * ((last + 1) * dtype.itemsize)).from_address(described.data)
    whole = torch.frombuffer(memory, dtype=dtype)
    return whole.as_strided(described.shape, described.strides, described.offset)


def _embedding_backward(
    gradient: Tensor,
    indices: Tensor,
    rows: int,
    padding: int,
    by_frequency: bool,  # noqa: FBT001 - what the kernel is given
) -> Tensor:
    flat = indices.reshape(-1, 1).long()
    back: Tensor = torch.ops.aten.embedding_dense_backward(
        gradient.reshape(*flat.shape, -1).float(), flat, rows, padding, by_frequency
    )
    return back


_KERNELS: Mapping[str, Callable[..., Tensor]] = {
    "aclnnEmbeddingDenseBackward": _embedding_backward,
    "aclnnLogicalNot": torch.logical_not,
    "aclnnTriu": torch.triu,
}
