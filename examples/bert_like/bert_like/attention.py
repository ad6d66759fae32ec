"""Bidirectional self-attention, written out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from bert_like.config import Config
from bert_like.lengths import masked_softmax
from bert_like.rope import apply_rotary_pos_emb


class SelfAttention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, padding: torch.Tensor
    ) -> torch.Tensor:
        batch, length, _ = hidden.shape
        heads = (batch, length, self.num_heads, self.head_dim)
        query = self.query(hidden).view(heads).transpose(1, 2)
        key = self.key(hidden).view(heads).transpose(1, 2)
        value = self.value(hidden).view(heads).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, cos, sin)

        scores = torch.matmul(query, key.transpose(-2, -1)) * self.scale
        scores = scores.masked_fill(padding[:, None, None, :], -1e4)
        probs = F.softmax(scores, dim=-1)
        probs = self.dropout(probs)
        context = torch.matmul(probs, value)
        return context.transpose(1, 2).reshape(batch, length, -1)


class SelfOutput(nn.Module):
    """What BERT does behind every sub-layer: project, drop, add, normalise."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        hidden = self.dense(hidden)
        return self.LayerNorm(self.dropout(hidden) + residual)


class AttentionPooling(nn.Module):
    """Learned queries read the sentence; padding is out of their sight."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.scale = config.hidden_size**-0.5
        self.queries = nn.Parameter(torch.empty(config.num_pool_queries, config.hidden_size))
        nn.init.normal_(self.queries, std=0.02)

    def forward(self, hidden: torch.Tensor, valid_lens: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(self.queries, hidden.transpose(1, 2)) * self.scale
        weights = masked_softmax(scores, valid_lens)
        return torch.matmul(weights, hidden).mean(dim=1)
