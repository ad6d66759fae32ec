"""A model, and mistakes that people make when they rewrite it by hand."""

from __future__ import annotations

from dataclasses import dataclass

MODEL = '''\
"""A small model."""

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x):
        variance = x.float().pow(2).mean(-1, keepdim=True)
        y = x.float() * torch.rsqrt(variance + self.eps)
        return self.weight * y.to(x.dtype)


class Norm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        variance = hidden_states.float().pow(2).mean(-1, keepdim=True)
        y = hidden_states.float() * torch.rsqrt(self.eps + variance)
        return self.weight * y.to(hidden_states.dtype)


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def hide(scores, mask):
    return scores.masked_fill(mask == 0, -1e9)


def clear(hidden, keep):
    hidden = hidden.clone()
    hidden[keep == 0] = 0.0
    return hidden


def scaled(x, weight):
    return x * weight


def count(indices, width: int = 4):
    return F.one_hot(indices, width).sum(dim=-2)


def accumulate(table, index, rows):
    out = table.clone()
    return out.index_add(0, index, rows)


def focal(prob, target):
    return -((1 - prob) ** 2) * torch.log(prob) * target
'''


@dataclass(frozen=True)
class Wrong:
    """A mistake: the text that becomes another, and the function that is no longer the same."""

    function: str
    old: str
    new: str
    says: str
    """What the counterexample must mention."""


WRONG = {
    "eps forgotten": Wrong(
        "RMSNorm.forward", "torch.rsqrt(variance + self.eps)", "torch.rsqrt(variance)", "result"
    ),
    "wrong keyword": Wrong(
        "Norm.forward",
        "        variance = hidden_states.float().pow(2).mean(-1, keepdim=True)\n"
        "        y = hidden_states.float() * torch.rsqrt(self.eps + variance)\n"
        "        return self.weight * y.to(hidden_states.dtype)\n",
        "        import torch_npu\n\n"
        "        return torch_npu.npu_rms_norm(hidden_states, self.weight, eps=self.eps)[0]\n",
        "eps",
    ),
    "halves swapped": Wrong("rotate_half", "(-x2, x1)", "(x2, -x1)", "result"),
    "mask inverted": Wrong("hide", "mask == 0", "mask != 0", "result"),
    "an integer mask with ~": Wrong("clear", "keep == 0", "~keep", "result"),
    "gradient dropped": Wrong("scaled", "x * weight", "x * weight.detach()", "gradient of weight"),
    "duplicates set, not counted": Wrong(
        "count",
        "F.one_hot(indices, width).sum(dim=-2)",
        "torch.zeros(*indices.shape[:-1], width, dtype=indices.dtype).scatter_(-1, indices, 1)",
        "result",
    ),
    "duplicates set, not added": Wrong("accumulate", "index_add", "index_copy", "result"),
    "log of the other probability": Wrong("focal", "torch.log(prob)", "torch.log1p(-prob)", ""),
}


def wrong_model() -> str:
    """Return the model with every mistake in it."""
    text = MODEL
    for wrong in WRONG.values():
        assert text.count(wrong.old) == 1, wrong
        text = text.replace(wrong.old, wrong.new)
    return text
