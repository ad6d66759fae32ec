"""Focal loss (Lin et al., 2017): easy examples count less."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from bert_like.config import Config


class FocalLoss(nn.Module):
    """Mean of ``-alpha * (1 - p) ** gamma * log(p)`` over the rows of the logits."""

    alpha: torch.Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gamma = config.focal_gamma
        self.register_buffer("alpha", torch.linspace(0.5, 1.0, config.num_tags))

    def forward(
        self, logits: torch.Tensor, target: torch.Tensor, eps: float = 1e-7
    ) -> torch.Tensor:
        logits = logits.view(-1, logits.size(-1))
        target = target.view(-1, 1)
        prob = F.softmax(logits, dim=-1)
        pt = prob.gather(1, target).view(-1) + eps
        logpt = torch.log(pt)
        alpha = self.alpha.to(logpt.device)
        alpha_class = alpha.gather(0, target.view(-1))
        loss = -alpha_class * torch.pow(1 - pt, self.gamma) * logpt
        return loss.mean()
