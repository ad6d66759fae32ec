"""Attention of torch that refuses what its kernel for CPU reads beyond.

With more keys than values it computes with whatever lies behind these, and its gradient writes
there: a search for arguments then ends the process.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

_attend = F.scaled_dot_product_attention


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *args: Any,  # noqa: ANN401 - torch's own
    **keywords: Any,  # noqa: ANN401 - same
) -> torch.Tensor:
    """Return what torch does, if there is a value for each key."""
    dense = not (key.is_nested or value.is_nested)
    if dense and key.shape[-2:-1] != value.shape[-2:-1]:
        raise RuntimeError(f"keys {tuple(key.shape)} and values {tuple(value.shape)} do not match")
    return _attend(query, key, value, *args, **keywords)


def install() -> None:
    """Have all code of this process call it."""
    F.scaled_dot_product_attention = scaled_dot_product_attention
