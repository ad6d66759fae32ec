"""A small decoder as users write it: everything in eager operators, helpers at module level."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's name

WORDS, WIDTH, HEADS, LENGTH = 24, 64, 4, 12
PER_HEAD = WIDTH // HEADS


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(dtype)


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaling = 1.0
        steps = 1.0 / 10000 ** (torch.arange(0, PER_HEAD, 2).float() / PER_HEAD)
        self.register_buffer("steps", steps, persistent=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(x.shape[-2], device=x.device).float()
        angles = torch.outer(positions, self.steps)
        angles = torch.cat((angles, angles), dim=-1)
        cos = angles.cos() * self.scaling
        sin = angles.sin() * self.scaling
        return cos.to(x.dtype)[None, None], sin.to(x.dtype)[None, None]


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rotated(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.rotary = Rotary()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, PER_HEAD).permute(2, 0, 3, 1, 4)
        cos, sin = self.rotary(q)
        q, k = rotated(q, k, cos, sin)
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(PER_HEAD)
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        mixed = torch.matmul(weights, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.after(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm = RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        scores = self.head(self.norm(x)).float()
        return F.cross_entropy(scores[:, :-1].flatten(0, 1), words[:, 1:].flatten())
