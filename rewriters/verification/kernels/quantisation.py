"""Numbers of few bits: packed, scaled, rounded; and scales that are packed into integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from npufix.rewriters.verification.kernels.common import NoReferenceKernelError, accept

if TYPE_CHECKING:
    from torch import Tensor

PACKED = 8
"""How many int4 an int32 holds, the first in the lowest bits."""
_INT4_BITS = 4
_LOWEST_INT4, _HIGHEST_INT4 = -8, 7
_KEPT = 0xFFFFE000 - (1 << 32)
"""The upper 19 bits of a float32, as an int32."""
_MARK = 1 << 46
_OFFSET_BITS, _OFFSET_PLACE = 0x1FF, 37
_LOWEST_OFFSET, _HIGHEST_OFFSET = -256, 255
_QINT8, _QUINT8, _QINT32, _QUINT4X2 = 12, 13, 14, 16
_DTYPES = {
    1: torch.int8,
    3: torch.int32,
    5: torch.float16,
    6: torch.float32,
    15: torch.bfloat16,
    _QINT8: torch.int8,
    _QUINT8: torch.uint8,
    _QINT32: torch.int32,
}
"""c10::ScalarType, which the schemas call int, and what tensors of it are on the device."""


class Scale(NamedTuple):
    """What a product of integers is multiplied with, and what is added before it is rounded."""

    factor: Tensor
    offset: Tensor | None


def find_dtype(
    operator: str, number: int | torch.dtype | None, default: torch.dtype
) -> torch.dtype:
    """Return what a schema calls an int; int4 is what ``is_int4`` says."""
    if number is None:
        return default
    if isinstance(number, torch.dtype):
        return number
    if number not in _DTYPES:
        raise NoReferenceKernelError(
            f"there is no reference kernel for {operator} of type {number}"
        )
    return _DTYPES[number]


def is_int4(number: object) -> bool:
    """Say whether a schema's int asks for int4."""
    return number in {_QUINT4X2, torch.quint4x2}


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to the nearest, ties to even, and keep within the type."""
    if dtype.is_floating_point:
        return x.to(dtype)
    limits = torch.iinfo(dtype)
    return x.round().clamp(limits.min, limits.max).to(dtype)


def round_to_int4(operator: str, x: Tensor) -> Tensor:
    """Round to int4 and pack eight of them into each int32."""
    accept(operator, x.shape[-1] % PACKED == 0, f"{x.shape[-1]} columns are no multiple of 8")
    few = x.round().clamp(_LOWEST_INT4, _HIGHEST_INT4).to(torch.int64) & 0xF
    shifts = torch.arange(PACKED) * _INT4_BITS
    whole = (few.reshape(*x.shape[:-1], -1, PACKED) << shifts).sum(-1)
    return torch.where(whole > torch.iinfo(torch.int32).max, whole - (1 << 32), whole).int()


def unpack_int4(x: Tensor) -> Tensor:
    """Return the int4 that an int32 tensor holds, eight times as many columns, as int32.

    The transpose of a packed matrix is unpacked before it is transposed.
    """
    if not x.is_contiguous() and x.transpose(-1, -2).is_contiguous():
        return unpack_int4(x.transpose(-1, -2)).transpose(-1, -2)
    few = (x[..., None] >> (torch.arange(PACKED, dtype=torch.int32) * _INT4_BITS)) & 0xF
    return torch.where(few > _HIGHEST_INT4, few - 16, few).flatten(-2)


def integers(x: Tensor) -> Tensor:
    """Return int8, or int4 that are packed into int32, as numbers that products are exact in."""
    return (unpack_int4(x) if x.dtype == torch.int32 else x).double()


def pack_scale(scale: Tensor, offset: Tensor | None = None) -> Tensor:
    """Keep 19 bits of each scale, and 9 bits of each offset, in an int64."""
    low = (scale.contiguous().view(torch.int32) & _KEPT).long() & 0xFFFFFFFF
    packed = low | _MARK
    if offset is None:
        return packed
    own = offset.round().clamp(_LOWEST_OFFSET, _HIGHEST_OFFSET).long() & _OFFSET_BITS
    return packed | (own << _OFFSET_PLACE)


def read_scale(scale: Tensor, offset: Tensor | None = None) -> Scale:
    """Return what a scale says, packed or not."""
    if scale.dtype != torch.int64:
        return Scale(scale.float(), offset if offset is None else offset.float())
    low = scale & 0xFFFFFFFF
    signed = torch.where(low > torch.iinfo(torch.int32).max, low - (1 << 32), low).int()
    own = (scale >> _OFFSET_PLACE) & _OFFSET_BITS
    own = torch.where(own > _HIGHEST_OFFSET, own - (_OFFSET_BITS + 1), own)
    return Scale(signed.contiguous().view(torch.float32), own.float())
