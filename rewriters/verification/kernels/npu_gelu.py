"""``npu_gelu``: GELU that honours ``approximate``, in float32, rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.kernels.common import accept_dims, accept_dtypes, wide

if TYPE_CHECKING:
    from torch import Tensor


def forward(input: Tensor, approximate: str = "none") -> Tensor:  # noqa: A002 - the schema
    """Return the activation."""
    accept_dtypes("npu_gelu", input)
    accept_dims("npu_gelu", input, 0, 8)
    if approximate not in {"none", "tanh"}:
        raise RuntimeError(f"npu_gelu: approximate is none or tanh, not {approximate!r}")
    x = wide(input)
    if approximate == "none":  # by the formula: torch's own kernel makes NaN of infinity
        return (x * 0.5 * (1 + torch.erf(x * 0.5**0.5))).to(input.dtype)
    return F.gelu(x, approximate=approximate).to(input.dtype)
