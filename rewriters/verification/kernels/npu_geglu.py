"""``npu_geglu``: GELU of the *second* half times the first, in float32, rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F  # noqa: N812 - the field's name

from npufix.rewriters.verification.kernels.common import accept_dtypes, accept_even, wide

if TYPE_CHECKING:
    from torch import Tensor

NOT_DIFFERENTIABLE = (1,)


def forward(
    input: Tensor,  # noqa: A002 - the name in the operator's schema
    dim: int = -1,
    approximate: int = 1,
    activate_left: bool = False,  # noqa: FBT001, FBT002 - the operator's schema
) -> tuple[Tensor, Tensor]:
    """Return the product and the activated half; ``approximate`` is tanh unless it is zero."""
    accept_dtypes("npu_geglu", input)
    accept_even("npu_geglu", input, dim)
    left, right = wide(input).chunk(2, dim)
    other, gate = (right, left) if activate_left else (left, right)
    active = F.gelu(gate, approximate="tanh" if approximate else "none")
    return (other * active).to(input.dtype), active.to(input.dtype)
