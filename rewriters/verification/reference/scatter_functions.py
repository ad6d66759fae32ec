"""A stand-in for torch_scatter, and what mx_driving has in its place: sums over groups of rows.

Written after the documentation of both: ``index`` says of each element along ``dim`` which group it
belongs to, ``indptr`` where each group of ``segment_csr`` begins and the last one ends.
"""

from __future__ import annotations

import importlib.machinery
import types
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.kernels.common import accept, accept_dtypes, note_kernel

if TYPE_CHECKING:
    from torch import Tensor

_REDUCTIONS = {"sum": "sum", "add": "sum", "mean": "mean", "max": "amax", "min": "amin"}


def _along(index: Tensor, src: Tensor, dim: int) -> Tensor:
    """Return an index of the shape of ``src``."""
    dim %= src.dim()
    for _ in range(dim if index.dim() == 1 else 0):
        index = index.unsqueeze(0)
    while index.dim() < src.dim():
        index = index.unsqueeze(-1)
    return index.expand_as(src)


def _reduce(  # noqa: PLR0913, PLR0917 - what the functions of the package take
    src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, how: str
) -> Tensor:
    if out is not None:
        raise NotImplementedError("out= has no stand-in")
    whole = _along(index, src, dim).long()
    count = dim_size if dim_size is not None else int(index.max()) + 1 if index.numel() else 0
    sizes = list(src.shape)
    sizes[dim] = count
    made = src.new_zeros(sizes)
    return made.scatter_reduce(dim, whole, src, _REDUCTIONS[how], include_self=False)


def scatter(  # noqa: PLR0913, PLR0917 - the package's own
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Reduce the elements of each group; a group without any is zero."""
    return _reduce(src, index, dim, out, dim_size, reduce)


def _name(how: str) -> object:
    def one(
        src: Tensor,
        index: Tensor,
        dim: int = -1,
        out: Tensor | None = None,
        dim_size: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        found = _reduce(src, index, dim, out, dim_size, how)
        return (found, _places(src, index, dim, found)) if how in {"max", "min"} else found

    return one


def _places(src: Tensor, index: Tensor, dim: int, found: Tensor) -> Tensor:
    """Return which element of a group is the largest; the number of elements if there is none."""
    whole = _along(index, src, dim).long()
    none = src.shape[dim]
    shape = [1] * src.dim()
    shape[dim] = none
    own = torch.arange(none).view(shape).expand_as(src)
    mine = torch.where(src == found.gather(dim, whole), own, none)
    made = torch.full_like(found, none, dtype=torch.int64)
    return made.scatter_reduce(dim, whole, mine, "amin", include_self=True)


def segment_csr(
    src: Tensor, indptr: Tensor, out: Tensor | None = None, reduce: str = "sum"
) -> Tensor:
    """Reduce the elements between one border and the next."""
    if indptr.dim() != 1:
        raise NotImplementedError("borders of several dimensions have no stand-in")
    lengths = indptr.diff()
    kept = src[int(indptr[0]) : int(indptr[-1])]
    index = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return _reduce(kept, index, 0, out, len(lengths), reduce)


def _driving(how: str) -> object:
    """Return what mx_driving has: groups along the first dimension."""
    name = f"scatter_{how}"

    def one(src: Tensor, indices: Tensor, *rest: object, **more: object) -> object:
        note_kernel(name)
        accept_dtypes(name, src)
        accept(name, src.dtype == torch.float32, f"{src.dtype} is not float32")
        accept(name, indices.dtype == torch.int32, f"indices of {indices.dtype} are not int32")
        accept(name, not rest and not more, "further arguments have no reference")
        accept(name, not indices.numel() or int(indices.min()) >= 0, "a group is negative")
        found = _reduce(src, indices, 0, None, None, how)
        return (found, _places(src, indices, 0, found)) if how == "max" else found

    return one


DRIVING = {f"scatter_{how}": _driving(how) for how in ("add", "mean", "max")}
"""By the names of mx_driving."""


def modules() -> dict[str, types.ModuleType]:
    """Return the module that stands in for torch_scatter."""
    module = types.ModuleType("torch_scatter", "A stand-in by npufix: torch on CPU.")
    named = {f"scatter_{how}": _name(how) for how in _REDUCTIONS}
    module.__dict__.update(named, scatter=scatter, segment_csr=segment_csr)
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    return {module.__name__: module}
