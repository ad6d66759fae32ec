"""Masks: which tokens the model has to guess, and which positions are only padding."""

from __future__ import annotations

import torch


def mask_tokens(
    inputs: torch.Tensor, probability: float, mask_token_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hide a random part of the tokens; the labels keep the hidden tokens only."""
    inputs = inputs.clone()
    labels = inputs.clone()
    masked = torch.rand(inputs.shape, device=inputs.device) < probability
    labels[~masked] = -100  # the default ignore_index of cross_entropy
    inputs[masked] = mask_token_id
    return inputs, labels


def padding_mask(valid_lens: torch.Tensor, length: int) -> torch.BoolTensor:
    """(batch, length), true where a position lies behind the end of its sentence."""
    positions = torch.arange(length, device=valid_lens.device)
    return positions[None, :] >= valid_lens[:, None]


def clear_padding(hidden: torch.Tensor, padding: torch.BoolTensor) -> torch.Tensor:
    """Zero the states of padding, so that nothing leaks from it into the next layer."""
    hidden = hidden.clone()
    pad = padding.unsqueeze(-1).expand(hidden.shape)
    hidden[pad] = 0.0
    return hidden
