"""Modules in which each rewriter finds the same thing to change."""

NORM = """\
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(kind)
"""
MASKED = """\
import torch


def clip(x: torch.Tensor) -> torch.Tensor:
    x[x < 0] = 0
    return x
"""
"""What is proven soon, for tests of which the proof is not the point."""
