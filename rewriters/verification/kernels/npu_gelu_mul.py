"""``npu_gelu_mul``: GELU of the first half times the second; for inference only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.kernels.common import (
    accept,
    accept_dims,
    accept_dtypes,
    accept_even,
    wide,
)

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = "silent"
_NAME = "npu_gelu_mul"
_WIDEST, _MOST_ROWS = 1024, 200_000


def forward(input: Tensor, approximate: str = "none") -> Tensor:  # noqa: A002 - the schema
    """Return a tensor with the last dimension halved."""
    accept_dtypes(_NAME, input)
    accept_dims(_NAME, input, 2, 8)
    accept_even(_NAME, input)
    accept(_NAME, input.shape[-1] <= _WIDEST, f"the last dimension is above {_WIDEST}")
    accept(_NAME, input.shape[:-1].numel() <= _MOST_ROWS, f"there are more than {_MOST_ROWS} rows")
    if approximate not in {"none", "tanh"}:
        raise RuntimeError(f"{_NAME}: approximate is none or tanh, not {approximate!r}")
    gate, up = wide(input).chunk(2, -1)
    return (F.gelu(gate, approximate=approximate) * up).to(input.dtype)
