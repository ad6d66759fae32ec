"""The encoder, its three heads and their common loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from bert_like.attention import AttentionPooling, SelfAttention, SelfOutput
from bert_like.config import Config
from bert_like.data import Batch
from bert_like.focal_loss import FocalLoss
from bert_like.masking import clear_padding, mask_tokens, padding_mask
from bert_like.mlp import MixtureOfExperts, SwiGLU
from bert_like.norm import RMSNorm
from bert_like.rope import RotaryEmbedding


class Layer(nn.Module):
    def __init__(self, config: Config, *, experts: bool) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.output = SelfOutput(config)
        self.norm = RMSNorm(config)
        self.mlp = MixtureOfExperts(config) if experts else SwiGLU(config)

    def forward(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, padding: torch.Tensor
    ) -> torch.Tensor:
        hidden = self.output(self.attention(hidden, cos, sin, padding), hidden)
        hidden = hidden + self.mlp(self.norm(hidden))
        return clear_padding(hidden, padding)


class BertLike(nn.Module):
    """Masked words, a tag for every token and a class for every sentence, learned together."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary = RotaryEmbedding(config)
        # Experts in the last layer only: the first ones learn what all tokens share.
        last = config.num_layers - 1
        self.layers = nn.ModuleList(
            Layer(config, experts=number == last) for number in range(config.num_layers)
        )
        self.norm = RMSNorm(config)
        self.word_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.tag_head = nn.Linear(config.hidden_size, config.num_tags)
        self.pooling = AttentionPooling(config)
        self.class_head = nn.Linear(config.hidden_size, config.num_classes)
        self.tag_loss = FocalLoss(config)

    def encode(self, inputs: torch.Tensor, valid_lens: torch.Tensor) -> torch.Tensor:
        length = inputs.shape[1]
        padding = padding_mask(valid_lens, length)
        cos, sin = self.rotary(length)
        hidden = clear_padding(self.embedding(inputs), padding)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, padding)
        return self.norm(hidden)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch."""
        inputs, labels = mask_tokens(
            batch.inputs, self.config.mask_probability, self.config.mask_token_id
        )
        hidden = self.encode(inputs, batch.valid_lens)
        words = self.word_head(hidden)
        word_loss = F.cross_entropy(words.view(-1, words.size(-1)), labels.view(-1))
        tag_loss = self.tag_loss(self.tag_head(hidden), batch.tags)
        pooled = self.pooling(hidden, batch.valid_lens)
        class_loss = F.cross_entropy(self.class_head(pooled), batch.classes)
        return word_loss + tag_loss + class_loss
