"""Programs whose changes differ, or not, for arguments of certain kinds alone."""

from __future__ import annotations

HASHED = """
def f(ids):
    return ids.long() * 1000003 % 1009
"""
CLIPPED = """
from typing import Iterable

import torch

def f(parameters: Iterable[torch.nn.Parameter]) -> None:
    parameters = list(parameters)
    most = max(p.grad.abs().max() for p in parameters if p.grad is not None)
    for p in parameters:
        if p.grad is not None:
            p.grad.div_(most)
"""
GROWN = """
import torch

class Positions(torch.nn.Module):
    def __init__(self, dim: int = 8):
        super().__init__()
        self.dim, self._made = dim, None

    def forward(self, x):
        self._made = torch.arange(x.shape[1]).outer(torch.arange(self.dim) + 1)
        return x[..., : self.dim] + self._made[: x.shape[1]]
"""
ATTENTION = '''
import torch

def attend(q, k, v):
    """q: (B, H, T, D); k, v: (B, H, S, D)"""
    t, s = q.size(2), k.size(2)
    keep = torch.ones(t, s, dtype=torch.bool).tril(s - t)
    scores = (q @ k.mT).masked_fill(~keep, -1e4)
    return scores.softmax(-1) @ v
'''
UNDECLARED = ATTENTION.replace('    """q: (B, H, T, D); k, v: (B, H, S, D)"""\n', "")
LONGER = ATTENTION.replace(
    "q: (B, H, T, D); k, v: ", "q, k, v: (B, H, T, D); k and v may be longer: "
)
MASKED = """
import torch

def total(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.masked_fill((MASK)[..., None], 0.0).sum(1)
"""
LITERAL = """
def f(x):
    return sum(c.amax(-1) for c in x.split(64, -1))
"""
CLAMPED = """
import torch

def f(lengths):
    return lengths.clamp(max=400)
"""
RESIDUAL = """
import torch

def f(x: torch.Tensor, residual: torch.Tensor):
    return residual + x.to(residual.dtype)
"""
SCALED = """
import torch

class Scaled(torch.nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * self.weight
"""
AUTOCAST = """
import torch

def f(x, weight):
    with torch.autocast("cpu", enabled=False):
        return x @ weight.t()
"""
LAYER = """
import torch
from torch import nn

@torch.no_grad()
def f(norm: nn.BatchNorm1d, x: torch.Tensor) -> None:
    norm.running_var.lerp_(x.var(0), 0.25)
"""
BATCH = """
def f(batch):
    return batch["ids"][:, :-1], batch["labels"][:, 1:]
"""
RAGGED = """
import torch

def f(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([len(r) for r in rows])
"""
WEIGHTS = """
def f(parameters):
    return sum(p.grad.sum() for p in parameters if p.grad is not None)
"""
CASTS = """
import torch

def f(logits, labels):
    return logits.gather(1, labels.long()[:, None])
"""
TABLE = """
def f(x, how: str):
    return {"all": x.sum, "each": x.cumsum}[how](-1)
"""
WINDOW = """
import torch

def f(q_len, kv_len, window):
    q = torch.arange(kv_len - q_len, kv_len)[:, None]
    k = torch.arange(kv_len)
    return (k <= q) & (q - k < window)
"""
CAPPED = '''
import torch

def f(x, mask=None, cap: float = 50.0):
    """x, mask: (B, T), mask additive"""
    x = cap * torch.tanh(x / cap)
    if mask is not None:
        x = x + mask
    return x.softmax(-1)
'''
LIMIT = """
import torch

def f(x: torch.Tensor, threshold: float):
    return x[x <= threshold]
"""
CACHED = """
import torch
from torch import nn

class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = None

    def forward(self, x: torch.Tensor):
        if self.kept is not None:
            x = torch.cat((self.kept, x), 1)
        self.kept = x.detach()
        return x
"""
DISTANCES = """
import torch

def f(rel):
    return torch.div(rel.long(), 4, rounding_mode="floor").clamp(-9, 9)
"""
CLASSES = '''
import torch.nn.functional as F

def f(logits, target, weight):
    """logits: (n, c), target: (n,) long, weight: (c,)"""
    return F.cross_entropy(logits, target, weight)
'''
COLLECT = """
import torch

def f(x: torch.Tensor, found=None):
    found = [] if found is None else found
    found.append(x.sum())
    return torch.stack(found)
"""
LENGTHS = """
import torch

class Positions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x: torch.Tensor):
        if self.table is None or self.table.shape[0] < x.shape[0]:
            self.table = torch.arange(x.shape[0])
        return x + self.table[: x.shape[0], None]
"""
VARIANCE = """
def f(x):
    return (x - x.mean(-1, keepdim=True)).pow(2).mean(-1)
"""
SOFTMAX = """
def f(x):
    return x.softmax(-1)
"""
MEAN = """
import torch

def f(tensors: list[torch.Tensor]):
    return sum(tensors) / len(tensors)
"""
OPTIONAL = """
def f(batch):
    if "scale" in batch:
        return batch["x"] * batch["scale"]
    return batch["x"]
"""
NORM = """
import torch
from torch import nn

class Norm(nn.Module):
    def __init__(self, dim: int = 4):
        super().__init__()
        self.inner = nn.BatchNorm1d(dim, affine=False)

    @torch.no_grad()
    def reset(self):
        for buffer in self.buffers():
            buffer.zero_()
"""
NAMED = """
def f(x, how: str = "sum"):
    if how == "sum":
        return x.sum()
    raise ValueError(how)
"""
EXPERTS = '''
import torch
from torch import nn

class Experts(nn.Module):
    def __init__(self, n: int = 3, dim: int = 8):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n, dim))

    def forward(self, x: torch.Tensor, idx: torch.Tensor):
        """x: (tokens, 8), idx: (tokens,) long below n"""
        hot = torch.stack([idx == e for e in range(len(self.weight))], -1)
        return x * (hot.to(x.dtype) @ self.weight)
'''
WINDOWS = '''
import torch

def f(x: torch.Tensor):
    """x: (b, t, d)"""
    return x.mT.reshape(x.shape[0], x.shape[1], x.shape[2]).clone()
'''
COPIED = "reshape(x.shape[0], x.shape[1], x.shape[2]).clone()"
KEPT = "contiguous().view(x.shape[0], x.shape[1], x.shape[2])"
SPARSE = """
import torch

def f(x: torch.Tensor, chosen: torch.Tensor, scale: torch.Tensor):
    out = torch.zeros_like(x)
    for expert in range(len(scale)):
        rows = torch.where(chosen == expert)[0]
        if len(rows) == 0:
            continue
        out[rows] = x[rows] * scale[expert]
    return out
"""
HOOKED = """
from torch import nn

class Residual(nn.Module):
    def __init__(self, dim: int = 8):
        super().__init__()
        self.inner = nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.inner(x)
"""
SIGNS = """
import torch

@torch.no_grad()
def f(p, g, m):
    update = torch.sign(0.99 * m + 0.01 * g)
    m.mul_(0.999).add_(g, alpha=0.001)
    p.sub_(update)
"""
HALVES = """
import torch

def f(x: torch.Tensor):
    d = x.shape[-1]
    return torch.cat((-x[..., : d // 2], x[..., d // 2 :]), -1)
"""
IMAGE = '''
import torch
from torch.nn import functional as F

class Conv(torch.nn.Module):
    def __init__(self, channels: int = 4, out: int = 6):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(out, channels))

    def forward(self, x):
        """x (B, channels, H, W)"""
        return torch.einsum("oc,bchw->bohw", self.weight, x)
'''
SHADOW = """
import torch
from torch import nn

class Shadow:
    def __init__(self, model: nn.Module, decay=0.75):
        self.decay = decay
        self.kept = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module):
        for n, p in model.named_parameters():
            self.kept[n].mul_(self.decay).add_(p, alpha=1 - self.decay)
"""
NUCLEUS = '''
import torch

def f(logits: torch.Tensor, top_p: float = 0.9):
    """logits (batch, vocab)"""
    if top_p >= 1.0:
        return logits
    return logits.masked_fill(logits.softmax(-1) > top_p, 0.0)
'''
BOUNDED = """
import torch

class Bounded(torch.nn.Module):
    def __init__(self, p: float = 0.5):
        super().__init__()
        if not 0 < p < 1:
            raise ValueError(p)
        self.p = p

    def forward(self, x: torch.Tensor):
        return x * self.p if self.p < 1 else x + 1
"""
FRAMES = '''
import torch

def f(a: torch.Tensor, b: torch.Tensor):
    """a, b uint8 (3, H, W)"""
    return ((a.short() + b.short()) // 2).to(torch.uint8)
'''
PATCHES = '''
import torch

def f(images: torch.Tensor, p: int = 2):
    """images (N, C, H, W)"""
    n, c, h, w = images.shape
    x = images.reshape(n, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1)
    return x.reshape(n, (h // p) * (w // p), p * p * c)
'''
FOCAL = '''
import torch.nn.functional as F

def f(pred, target):
    """pred (N, C), target (N, C) of 0 and 1"""
    return F.binary_cross_entropy_with_logits(pred, target, reduction="none").mean(-1)
'''
COUNTED = """
import torch

def f(ids: torch.Tensor, experts: int):
    return torch.bincount(ids, minlength=experts).cumsum(0)
"""
PENALTY = """
import torch

def penalise(logits: torch.Tensor, ids: torch.Tensor, presence: float = 0.0, repeated: float = 0.0):
    "logits (B, V) float, ids (B, T) long."
    counts = torch.zeros_like(logits).scatter_add_(1, ids, torch.ones_like(ids, dtype=logits.dtype))
    return logits - repeated * counts - presence * (counts > 0)
"""
CENTRES = """
import torch

class Head:
    def __init__(self, voxel_size=(0.2, 0.2), origin=(-4.0, -4.0)):
        self.voxel_size, self.origin = voxel_size, origin

    def decode(self, rows: torch.Tensor, columns: torch.Tensor):
        x = columns * self.voxel_size[0] + self.origin[0]
        y = rows * self.voxel_size[1] + self.origin[1]
        return torch.stack([x, y], -1)
"""
OVERFLOWN = """
import torch

def unscale(grads: list[torch.Tensor], scale: float = 2.0):
    found = False
    for g in grads:
        g.div_(scale)
        found = found or not bool(torch.isfinite(g).all())
    return found
"""

SHORTENED = """
import torch

def shorten(rows, most: float = 1.0):
    rows.mul_((most / (rows.norm() + 1e-6)).clamp(max=1.0))
"""

WRONG = {
    "a dictionary that an object keeps": (
        SHADOW, "mul_(self.decay).add_(p, alpha=1 - self.decay)", "lerp_(p, self.decay)"
    ),
    "a number at its limit": (NUCLEUS, "top_p >= 1.0", "top_p > 1.0"),
    "bytes": (FRAMES, "((a.short() + b.short()) // 2).to(torch.uint8)", "(a + b) // 2"),
    "experts after one without tokens": (SPARSE, "continue", "break"),
    "hooks of a module": (HOOKED, "self.inner(x)", "self.inner.forward(x)"),
    "a sign that seldom changes": (
        SIGNS, "sign(0.99 * m + 0.01 * g)", "sign(0.989 * m + 0.011 * g)"
    ),
    "no copy of some strides": (WINDOWS, COPIED, KEPT),
    "a default that is written into": (
        COLLECT, "=None):\n    found = [] if found is None else found\n", "=[]):\n"
    ),
    "a table of the first length": (LENGTHS, " or self.table.shape[0] < x.shape[0]", ""),
    "a difference of squares": (
        VARIANCE, "(x - x.mean(-1, keepdim=True)).pow(2).mean(-1)",
        "x.pow(2).mean(-1) - x.mean(-1).pow(2)",
    ),
    "exponentials that overflow": (SOFTMAX, "x.softmax(-1)", "x.exp() / x.exp().sum(-1, True)"),
    "NaN without Inf": (OVERFLOWN, "not bool(torch.isfinite(g).all())", "bool(g.isinf().any())"),
    "small numbers below another limit": (SHORTENED, "clamp(max=1.0)", "clamp(max=max(1.0, most))"),
    "longer lists": (MEAN, "len(tensors)", "min(len(tensors), 4)"),
    "a key that may be missing": (
        OPTIONAL, 'if "scale" in batch:\n        return', "if True:\n        return"
    ),
    "running statistics": (NORM, "self.buffers()", "self.parameters()"),
    "an error at the end": (NAMED, "raise ValueError(how)", "return x"),
    "an argument without a gradient": (
        CLASSES, "(logits, target, weight)\n", '(logits, target, weight, reduction="none").mean()\n'
    ),
    "the second call": (CACHED, "(self.kept, x), 1", "(x, self.kept), 1"),
    "distances below zero": (DISTANCES, "floor", "trunc"),
    "whole numbers by their use": (WINDOW, "q - k < window", "q - k <= window"),
    "a mask and another limit": (
        CAPPED,
        """    x = cap * torch.tanh(x / cap)
    if mask is not None:
        x = x + mask
""",
        """    if mask is not None:
        x = x + mask
    x = cap * torch.tanh(x / cap)
""",
    ),
    "what is equal to a limit": (LIMIT, "x <= threshold", "x < threshold"),
    "longer keys": (ATTENTION, "tril(s - t)", "tril()"),
    "longer keys, said afterwards": (LONGER, "tril(s - t)", "tril()"),
    "longer keys, undeclared": (UNDECLARED, "tril(s - t)", "tril()"),
    "numbers of segments": (MASKED.replace("MASK", "mask == 0"), "mask == 0", "mask != 1"),
    "sizes beyond a literal": (LITERAL, "x.split(64, -1)", "x.split(64, -1)[:1]"),
    "values beyond uint8": (CLAMPED, "400)", "400).to(torch.uint8).long()"),
    "residual in float32": (
        RESIDUAL, "residual + x.to(residual.dtype)", "residual.to(x.dtype) + x"
    ),
    "autocast": (AUTOCAST, "enabled=False", "enabled=torch.is_autocast_enabled('cpu')"),
    "a layer of torch.nn": (LAYER, "0.25", "0.75"),
    "a dictionary": (BATCH, '["labels"][:, 1:]', '["labels"][:, :-1]'),
    "tensors of different lengths": (RAGGED, "len(r) for r in", "len(rows[0]) for _ in"),
    "gradients of weights": (WEIGHTS, "p.grad.sum()", "p.grad.abs().sum()"),
    "labels of other types": (CASTS, "labels.long()", "labels"),
    "the keys of a table": (TABLE, "x.cumsum", "x.cumprod"),
    "a factor that is zero by default": (PENALTY, "scatter_add_(1, ids,", "scatter_(1, ids,"),
    "defaults that are equal": (CENTRES, "self.origin[1]", "self.origin[0]"),
    "products beyond int32": (HASHED, "ids.long()", "ids.int()"),
    "an iterator that ends": (CLIPPED, "parameters = list(parameters)", "pass"),
    "a longer second call": (
        GROWN, "        self._made =", "        if self._made is None:\n            self._made ="
    ),
}  # fmt: skip
OPTIMIZER = """
import torch

class Average(torch.optim.Optimizer):
    def __init__(self, params, lr=0.5):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                kept = self.state[p].setdefault("kept", torch.zeros_like(p))
                kept.mul_(0.5).add_(p.grad)
                p.sub_(kept, alpha=group["lr"])
"""
USED = """
                p.sub_((0.9 * kept + 0.1 * p.grad).sign(), alpha=group["lr"])"""
KEPT_LATER = """
                kept.mul_(0.99).add_(p.grad, alpha=0.01)"""
LION = OPTIMIZER[: OPTIMIZER.index("\n                kept.mul_")] + USED + KEPT_LATER
