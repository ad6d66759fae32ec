"""Synthetic batches: nothing to download, the same for the same seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bert_like.config import Config


@dataclass(frozen=True)
class Batch:
    """Token ids padded at the end, with a tag per token and a class per sentence."""

    inputs: torch.Tensor
    """(batch, length) int64."""
    valid_lens: torch.Tensor
    """(batch,) int64: number of real tokens in each sentence."""
    tags: torch.Tensor
    """(batch, length) int64."""
    classes: torch.Tensor
    """(batch,) int64."""

    def to(self, device: torch.device) -> Batch:
        return Batch(
            self.inputs.to(device),
            self.valid_lens.to(device),
            self.tags.to(device),
            self.classes.to(device),
        )


def make_batch(config: Config, generator: torch.Generator) -> Batch:
    """Random sentences of half to full length; tags and classes follow from the tokens."""
    shape = (config.batch_size, config.max_length)
    first_word = config.mask_token_id + 1
    inputs = torch.randint(first_word, config.vocab_size, shape, generator=generator)
    lengths = torch.linspace(config.max_length // 2, config.max_length, config.batch_size).long()
    valid_lens = lengths[torch.randperm(config.batch_size, generator=generator)]
    padding = torch.arange(config.max_length)[None, :] >= valid_lens[:, None]
    inputs = inputs.masked_fill(padding, config.pad_token_id)
    return Batch(
        inputs=inputs,
        valid_lens=valid_lens,
        tags=inputs % config.num_tags,
        classes=inputs[:, 0] % config.num_classes,
    )
