"""Feed-forward networks: SwiGLU, and a few of them behind a router."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from bert_like.config import Config


class SwiGLU(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Router(nn.Module):
    """The share of every expert in every token, zero for all but the best ``top_k``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.num_experts = config.num_experts
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(config.num_experts))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        tokens = hidden.view(-1, hidden.shape[-1])
        logits = tokens @ self.weight.t() + self.bias
        scores = F.softmax(logits, dim=-1)
        indices = torch.topk(scores, self.top_k, dim=-1).indices
        mask = F.one_hot(indices, num_classes=self.num_experts).sum(dim=1)
        return scores * mask


class MixtureOfExperts(nn.Module):
    """Every expert sees every token: simple, and fine for a handful of small experts."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.router = Router(config)
        self.experts = nn.ModuleList(SwiGLU(config) for _ in range(config.num_experts))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        shares = self.router(hidden).view(*hidden.shape[:-1], -1)
        mixed = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            mixed = mixed + shares[..., number, None] * expert(hidden)
        return mixed
