"""Sizes and hyper-parameters of the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Defaults small enough for a laptop, with the proportions of the real thing."""

    vocab_size: int = 2000
    hidden_size: int = 256
    intermediate_size: int = 512
    num_layers: int = 2
    num_heads: int = 4
    num_experts: int = 4
    top_k: int = 2
    num_tags: int = 16
    num_classes: int = 8
    num_pool_queries: int = 32

    max_length: int = 128
    batch_size: int = 16

    pad_token_id: int = 0
    mask_token_id: int = 1
    mask_probability: float = 0.15

    dropout: float = 0.1
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    focal_gamma: float = 2.0
    learning_rate: float = 3e-4
    weight_decay: float = 0.01

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads
