"""Softmax over sentences of different length, as in *Dive into Deep Learning*."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def sequence_mask(x: torch.Tensor, valid_lens: torch.Tensor, value: float = 0.0) -> torch.Tensor:
    """Overwrite, in each row of ``x``, everything from ``valid_lens`` on with ``value``."""
    positions = torch.arange(x.size(1), device=x.device)
    mask = positions[None, :] < valid_lens[:, None]
    x[~mask] = value
    return x


def masked_softmax(x: torch.Tensor, valid_lens: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension; ``valid_lens`` has one length per batch entry."""
    shape = x.shape
    if valid_lens.dim() == 1:
        valid_lens = torch.repeat_interleave(valid_lens, shape[1])
    else:
        valid_lens = valid_lens.reshape(-1)
    x = sequence_mask(x.reshape(-1, shape[-1]), valid_lens, value=-1e6)
    return F.softmax(x.reshape(shape), dim=-1)
