"""``npu_gelu_mul``: GELU of the first half times the second; for inference only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F  # noqa: N812 — the field's name

from npufix.rewriters.verification.kernels.common import accept_dtypes, accept_even, wide

if TYPE_CHECKING:
    from torch import Tensor

BACKWARD = "silent"


def forward(input: Tensor, approximate: str = "none") -> Tensor:  # noqa: A002 — the schema
    """Return a tensor with the last dimension halved."""
    accept_dtypes("npu_gelu_mul", input)
    accept_even("npu_gelu_mul", input)
    gate, up = wide(input).chunk(2, -1)
    return (F.gelu(gate, approximate=approximate) * up).to(input.dtype)
