"""What the reference kernels share: the errors, the precision inside, the checks, who ran."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HALF = (torch.float16, torch.bfloat16)
# No operator takes float64 on the device; here it is for checking derivatives numerically.
FLOATING = (torch.float32, *HALF, torch.float64)


_WITHOUT_BFLOAT16 = frozenset({"910A", "310P"})
"""Chips whose kernels take float16 and float32 only."""


_collections: list[set[str]] = []
"""Of the blocks that collect the names of kernels, the innermost last."""


class _Chip:
    """The chip whose limits hold: one for the life of the process, set before any code runs."""

    name = "A2"


@contextmanager
def collect_kernels() -> Iterator[set[str]]:
    """Collect the names of the kernels that run in the block: a verdict claims no others."""
    names: set[str] = set()
    _collections.append(names)
    try:
        yield names
    finally:
        _collections.pop()


def note_kernel(name: str) -> None:
    """Say that a stand-in for an operator, function or optimiser runs."""
    for names in _collections:
        names.add(name)


class NoReferenceKernelError(Exception):
    """The code calls something that torch_npu has and this package cannot compute."""


class ShapeRefusedError(RuntimeError):
    """An operator does not take these shapes."""


def wide(x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` in the precision that the kernels compute in."""
    return x if x.dtype == torch.float64 else x.float()


def accept(operator: str, ok: bool, what: str) -> None:  # noqa: FBT001 - reads like an assertion
    """Refuse a shape unless ``ok``."""
    if not ok:
        raise ShapeRefusedError(f"{operator}: {what}")


def set_chip(name: str) -> None:
    """Have the limits of this chip hold from now on; those of the A2 if it has no name here."""
    _Chip.name = name or "A2"


def chip() -> str:
    """Return the chip whose limits hold."""
    return _Chip.name


def accept_chip(operator: str, *supported: str) -> None:
    """Refuse chips that have no such kernel."""
    if chip() not in supported:
        raise RuntimeError(f"{operator}: no kernel on {chip()}, only on {', '.join(supported)}")


def accept_floating(operator: str, *tensors: torch.Tensor | None) -> None:
    """Refuse tensors of a dtype that no kernel of the chip takes."""
    dtypes = [tensor.dtype for tensor in tensors if tensor is not None]
    if any(dtype not in FLOATING for dtype in dtypes):
        raise RuntimeError(f"{operator}: no kernel for {_name(dtypes)}")
    if chip() in _WITHOUT_BFLOAT16 and torch.bfloat16 in dtypes:
        raise RuntimeError(f"{operator}: no kernel for bfloat16 on {chip()}")


def accept_dtypes(operator: str, *tensors: torch.Tensor | None) -> None:
    """Refuse tensors that are not floating or not all of one dtype."""
    accept_floating(operator, *tensors)
    dtypes = [tensor.dtype for tensor in tensors if tensor is not None]
    if any(dtype != dtypes[0] for dtype in dtypes):
        raise RuntimeError(f"{operator}: no kernel for {_name(dtypes)}")


def _name(dtypes: Sequence[torch.dtype]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def accept_elements(operator: str, *tensors: torch.Tensor) -> None:
    """Refuse empty tensors."""
    for tensor in tensors:
        accept(operator, tensor.numel() > 0, f"{tuple(tensor.shape)} has no elements")


def accept_dims(operator: str, x: torch.Tensor, low: int, high: int) -> None:
    """Refuse a number of dimensions outside [low, high]."""
    accept(
        operator,
        low <= x.dim() <= high,
        f"input has {x.dim()} dimensions, {low} to {high} are supported",
    )


def accept_tail(operator: str, x: torch.Tensor, gamma: torch.Tensor, name: str = "gamma") -> None:
    """Refuse a weight whose shape is not that of the last dimensions of ``x``."""
    accept(
        operator,
        1 <= gamma.dim() <= x.dim() and x.shape[x.dim() - gamma.dim() :] == gamma.shape,
        f"{name} {tuple(gamma.shape)} is not the tail of input {tuple(x.shape)}",
    )


def accept_even(operator: str, x: torch.Tensor, dim: int = -1) -> None:
    """Refuse a dimension that cannot be halved."""
    accept(operator, x.dim() > 0, "input has no dimension to halve")
    accept(
        operator,
        x.shape[dim] % 2 == 0,
        f"dimension {dim} of input {tuple(x.shape)} is not even",
    )


def tail(gamma: torch.Tensor) -> list[int]:
    """Return the dimensions of the input that a weight of this shape normalises over."""
    return list(range(-gamma.dim(), 0))
