"""Operators of torch that refuse what their kernels for CPU read beyond.

With more keys than values, attention computes with whatever lies behind these, and its gradient
writes there; so does the CTC loss for a class that there is none of. A search for arguments then
ends the process.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

_attend = F.scaled_dot_product_attention
_align = torch.ctc_loss
_ROWS = 2


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


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,  # noqa: ANN401 - a tensor or whole numbers
    target_lengths: Any,  # noqa: ANN401 - same
    *args: Any,  # noqa: ANN401 - torch's own
    **keywords: Any,  # noqa: ANN401 - same
) -> torch.Tensor:
    """Return what torch does, if there is a class for each target that it reads."""
    read = targets
    if targets.dim() == _ROWS:  # what is beyond the length of a row may be anything
        lengths = torch.as_tensor(target_lengths, device=targets.device).reshape(-1, 1)
        read = targets[torch.arange(targets.shape[1], device=targets.device) < lengths]
    if bool(((read < 0) | (read >= log_probs.shape[-1])).any()):
        raise RuntimeError(f"targets are none of {log_probs.shape[-1]} classes")
    return _align(log_probs, targets, input_lengths, target_lengths, *args, **keywords)


def install() -> None:
    """Have all code of this process call these."""
    F.scaled_dot_product_attention = scaled_dot_product_attention
    torch.ctc_loss = ctc_loss
