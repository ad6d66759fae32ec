"""``npu_moe_gating_top_k_softmax_v2``: softmax over all experts, or over the k largest."""

from __future__ import annotations

import torch

from npufix.rewriters.verification.kernels.common import wide
from npufix.rewriters.verification.kernels.npu_moe_gating_top_k_softmax import accept_scores

BACKWARD = "silent"
_NAME = "npu_moe_gating_top_k_softmax_v2"


def forward(
    x: torch.Tensor,
    k: int = 1,
    finished: torch.Tensor | None = None,
    renorm: int | None = 0,
    output_softmax: bool | None = False,  # noqa: FBT001, FBT002 - the operator's schema
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return probabilities, experts in int32, and in float32 all probabilities if asked for."""
    accept_scores(_NAME, x, finished, k)
    if renorm not in {None, 0, 1}:
        raise RuntimeError(f"{_NAME}: renorm is {renorm}, not 0 or 1")
    whole = torch.softmax(wide(x), -1)
    order = torch.sort(x if renorm else whole, dim=-1, descending=True, stable=True)
    values, chosen = order.values[..., :k], order.indices[..., :k].int()
    if renorm:
        values = torch.softmax(wide(values), -1)
    if finished is not None:
        chosen = chosen.masked_fill(finished.bool()[..., None], x.shape[-1])
    wanted = output_softmax and not renorm
    return values.to(x.dtype), chosen, whole if wanted else whole.new_empty(0)
