"""A package to import: four styles of model code, a line that fails, and odd neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NORM = '''"""A norm."""
from __future__ import annotations

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(dtype)  # the last line

    def fails(self):
        raise ValueError("in line 22")
'''
ROPE = """import torch


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary(q, k, cos, sin):
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed
"""
MLP = """import torch.nn.functional as F
from torch import nn


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate_proj = nn.Linear(width, 2 * width)
        self.up_proj = nn.Linear(width, 2 * width)

    def forward(self, x):
        return F.silu(self.gate_proj(x)) * self.up_proj(x)
"""
LEFT = """import torch
from torch import nn


class Left(nn.Module):
    def forward(self, x):
        return F.silu(x)  # npufix: ignore

    def halves(self, x):
        a, b = x.chunk(2, dim=-1)
        return nn.functional.silu(a) * b  # npufix: ignore[NPU103]
"""


def write(folder: Path, name: str) -> Path:
    """Write a package and return its folder."""
    package = folder / name
    package.mkdir()
    texts = {"__init__": "", "norm": NORM, "rope": ROPE, "mlp": MLP, "left": LEFT}
    for module, text in texts.items():
        (package / f"{module}.py").write_text(text, encoding="utf-8")
    return package
