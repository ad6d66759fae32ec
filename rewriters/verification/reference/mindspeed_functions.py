"""A stand-in for MindSpeed: its fused dropout, addition and normalisation, in torch on CPU."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.kernels.common import (
    NoReferenceKernelError,
    accept,
    accept_dtypes,
    note_kernel,
    wide,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_DIMS = 3


def _fuse(name: str, *, centred: bool) -> Callable[..., Any]:
    """Return the function of a norm: that of a LayerNorm takes the mean off first."""

    def fused(  # noqa: PLR0913, PLR0917 - MindSpeed's signature
        x0: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        dropout_p: float,
        epsilon: float,
        rowscale: Tensor | None = None,
        layerscale: Tensor | None = None,
        prenorm: bool = False,  # noqa: FBT001, FBT002 - MindSpeed's signature
        residual_in_fp32: bool = False,  # noqa: FBT001, FBT002 - MindSpeed's signature
        return_dropout_mask: bool = False,  # noqa: FBT001, FBT002 - MindSpeed's signature
    ) -> Any:  # noqa: ANN401 - a tensor or several
        """Return the norm of the dropped input plus the residual; then what was asked for."""
        scales = (rowscale, layerscale)
        total, mask = _add(name, x0, residual, weight, bias, dropout_p, *scales)
        shifted = total - total.mean(-1, keepdim=True) if centred else total
        normalised = _scale(shifted, weight, bias, epsilon).to(x0.dtype)
        _refuse_float32(name, residual, prenorm=prenorm, wanted=residual_in_fp32)
        return _results(normalised, total.to(x0.dtype), mask, prenorm, return_dropout_mask)

    fused.__name__ = name
    return fused


def _add(  # noqa: PLR0913, PLR0917 - what both functions take
    name: str,
    x0: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    rowscale: Tensor | None,
    layerscale: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the sum in wide precision, and which elements were kept."""
    note_kernel(name)
    accept_dtypes(name, x0, residual, weight, bias, rowscale, layerscale)
    accept(name, x0.dim() == _DIMS, f"x0 has {x0.dim()} dimensions, not 3")
    rows, columns = x0.shape[:-1], x0.shape[-1:]
    wanted = (
        (residual, x0.shape),
        (rowscale, rows),
        *((t, columns) for t in (weight, bias, layerscale)),
    )
    for tensor, shape in wanted:
        if tensor is not None:
            accept(name, tensor.shape == shape, f"{tuple(tensor.shape)} is not {tuple(shape)}")
    if not 0 <= dropout_p < 1:
        raise RuntimeError(f"{name}: dropout_p is {dropout_p}, not in [0, 1)")
    total = wide(x0)
    if rowscale is not None:
        total = total * wide(rowscale)[..., None]
    if layerscale is not None:
        total = total * wide(layerscale)
    # Drawn as ``F.dropout`` draws, so that with one seed the eager code drops the same.
    kept = F.dropout(torch.ones_like(x0), dropout_p) != 0
    total = total * kept / (1 - dropout_p)
    return (total if residual is None else total + wide(residual)), kept.to(torch.uint8)


def _scale(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * wide(weight)
    return scaled if bias is None else scaled + wide(bias)


def _refuse_float32(name: str, residual: Tensor | None, *, prenorm: bool, wanted: bool) -> None:
    # The documentation gives the sum the dtype of the residual, and this flag another one.
    if wanted and prenorm and residual is not None and residual.dtype != torch.float32:
        raise NoReferenceKernelError(f"{name}: residual_in_fp32 is not clear in half precision")


def _results(
    normalised: Tensor,
    total: Tensor,
    mask: Tensor,
    prenorm: bool,  # noqa: FBT001 - passed through
    return_dropout_mask: bool,  # noqa: FBT001 - passed through
) -> Tensor | tuple[Tensor, ...]:
    wanted = [normalised]
    if prenorm:
        wanted.append(total)
    if return_dropout_mask:
        wanted.append(mask)
    return wanted[0] if len(wanted) == 1 else tuple(wanted)


def modules() -> dict[str, types.ModuleType]:
    """Return the modules of MindSpeed that have a stand-in, by dotted name."""
    top = types.ModuleType("mindspeed", "A stand-in by npufix: reference functions on CPU.")
    found = {"mindspeed": top, "mindspeed.ops": types.ModuleType("mindspeed.ops")}
    top.__dict__["ops"] = found["mindspeed.ops"]

    def missing(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NoReferenceKernelError(f"there is no reference kernel for mindspeed.ops.{name}")

    found["mindspeed.ops"].__dict__["__getattr__"] = missing
    for short, centred in (("dropout_add_layer_norm", True), ("dropout_add_rms_norm", False)):
        module = types.ModuleType(f"mindspeed.ops.{short}")
        module.__dict__[f"npu_{short}"] = _fuse(f"npu_{short}", centred=centred)
        found["mindspeed.ops"].__dict__[short] = module
        found[module.__name__] = module
    for module in found.values():
        module.__path__ = []
    return found
