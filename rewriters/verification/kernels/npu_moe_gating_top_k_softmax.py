"""``npu_moe_gating_top_k_softmax``: softmax in float32, then the k largest; inference only."""

from __future__ import annotations

import torch

from npufix.rewriters.verification.kernels.common import (
    accept,
    accept_chip,
    accept_dims,
    accept_dtypes,
    wide,
)

BACKWARD = "raises"
_NAME = "npu_moe_gating_top_k_softmax"
_MOST = 1024


def forward(
    x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return probabilities, experts and rows; the last two are int32."""
    accept_scores(_NAME, x, finished, k)
    order = torch.sort(torch.softmax(wide(x), -1), dim=-1, descending=True, stable=True)
    chosen = order.indices[..., :k].int()
    if finished is not None:
        chosen = chosen.masked_fill(finished.bool()[..., None], x.shape[-1])
    count = x.shape[:-1].numel()
    rows = torch.arange(count * k, dtype=torch.int32).view(k, count).t().reshape(chosen.shape)
    return order.values[..., :k].to(x.dtype), chosen, rows.contiguous()


def accept_scores(name: str, x: torch.Tensor, finished: torch.Tensor | None, k: int) -> None:
    """Raise what the device raises for scores, finished rows or a ``k`` that it does not take."""
    accept_chip(name, "A2", "A3", "A5")
    accept_dtypes(name, x)
    accept_dims(name, x, 2, 3)
    experts = x.shape[-1]
    accept(name, 0 < k <= min(experts, _MOST), f"k={k} of {experts} experts")
    accept(
        name,
        finished is None or finished.shape == x.shape[:-1],
        f"finished is not one for each row of {tuple(x.shape)}",
    )
