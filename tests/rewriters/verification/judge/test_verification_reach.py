"""Code that no usual call reaches or shows, with a right and a wrong change of it."""

from __future__ import annotations

from textwrap import dedent

import pytest
from verification_snippets import verify_here

from npufix.rewriters.verification import Job
from npufix.rewriters.verification.verdict import Status, Verdict

pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("reach")  # they share one dear fixture

CODE = """
import torch
import torch.nn.functional as F
from dataclasses import dataclass
from torch import nn

@dataclass
class ModelArgs:
    dim: int = 4096
    n_heads: int = 32
    tp: int = 1
    norm_eps: float = 1e-5

class Norm(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.eps = args.norm_eps
        self.weight = nn.Parameter(torch.ones(args.dim))

    def forward(self, x):
        if self.args.tp > 1:
            parts = x.chunk(self.args.tp, -1)
            return torch.cat([p * 2 for p in parts], -1)
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * x * torch.rsqrt(variance + self.eps)

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * x

class Patches(nn.Module):
    def __init__(self, img_size=40, patch_size=20, embed_dim=8):
        super().__init__()
        self.img_size = img_size
        self.proj = nn.Conv2d(3, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x):
        _, _, height, width = x.shape
        assert height == width == self.img_size
        return self.proj(x).flatten(2).transpose(1, 2)

def pool(x, mode="mean", eps=1e-4):
    if mode == "largest":
        return x.max(1).values
    return x.sum(1) / (x.abs().sum(1) + eps)

def area(boxes):
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])

@torch.no_grad()
def update(ema_model: nn.Module, model: nn.Module, decay=0.9):
    kept = dict(ema_model.named_parameters())
    for name, p in model.named_parameters():
        kept[name].mul_(decay).add_(p, alpha=1 - decay)

def drop(x):
    return x * (torch.rand_like(x) > 0.25)
"""
CHANGES = {
    "default of a configuration": (
        "Norm.forward",
        "norm_eps: float = 1e-5",
        "norm_eps: float = 1e-6",
    ),
    "size of a configuration": ("Norm.forward", "dim: int = 4096", "dim: int = 2048"),
    "branch of a configuration": ("Norm.forward", "for p in parts", "for p in parts[::-1]"),
    "default of a parameter": ("pool", "eps=1e-4", "eps=1e-2"),
    "branch of a text": ("pool", "x.max(1)", "x.min(1)"),
    "gradient": ("Square.backward", "2 * grad * x", "grad * x"),
    "patches": ("Patches.forward", ".transpose(1, 2)", ".transpose(1, 2).flip(1)"),
    "boxes": ("area", "boxes[:, 3] - boxes[:, 1]", "boxes[:, 1] - boxes[:, 3]"),
    "module among arguments": ("update", "alpha=1 - decay", "alpha=decay"),
    "same numbers drawn": ("drop", "> 0.25", "< 0.75"),
    "saved no longer": (
        "Norm.forward",
        "self.weight = nn.Parameter(torch.ones(args.dim))",
        "self.weight = torch.ones(args.dim)",
    ),
}
RIGHT = {
    "branch of a configuration": (
        "Norm.forward",
        "[p * 2 for p in parts]",
        "[p + p for p in parts]",
    ),
    "fused operator": (
        "Norm.forward",
        "self.weight * x * torch.rsqrt(variance + self.eps)",
        "F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)",
    ),
    "another attribute": (
        "Norm.forward",
        "self.eps = args.norm_eps",
        "self.eps = args.norm_eps\n        self.by_two = 2.0",
    ),
    "gradient": ("Square.backward", "2 * grad * x", "grad * (x + x)"),
    "boxes": (
        "area",
        "(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])",
        "(boxes[:, 2:] - boxes[:, :2]).prod(1)",
    ),
    "module among arguments": (
        "update",
        ".mul_(decay).add_(p, alpha=1 - decay)",
        ".lerp_(p, 1 - decay)",
    ),
}


def job(qualname: str, old: str, new: str) -> Job:
    text = dedent(CODE)
    assert text.count(old) == 1, old
    line = text.count("\n", 0, text.index(old)) + 1
    # What happens before the function is called has no line that the call must reach.
    before = text[: text.index(old)].rpartition("\ndef ")[2].rpartition("    def ")[2]
    inside = not before.startswith("__init__") and "class " not in before and "eps=" not in old
    lines = (line,) if inside else ()
    return Job("/user/reach.py", "/user", text, text.replace(old, new), qualname, lines, lines)


@pytest.fixture(scope="module")
def verdicts() -> dict[tuple[str, bool], Verdict]:
    asked = {(name, False): job(*change) for name, change in CHANGES.items()}
    asked |= {(name, True): job(*change) for name, change in RIGHT.items()}
    return dict(zip(asked, verify_here(list(asked.values())), strict=True))


@pytest.mark.parametrize("what", CHANGES)
def test_a_wrong_change_is_refuted(verdicts: dict[tuple[str, bool], Verdict], what: str) -> None:
    verdict = verdicts[what, False]
    assert verdict.status is Status.REFUTED, verdict
    assert verdict.script or what == "size of a configuration", verdict


@pytest.mark.parametrize("what", RIGHT)
def test_a_right_change_is_equivalent(verdicts: dict[tuple[str, bool], Verdict], what: str) -> None:
    assert verdicts[what, True].status is Status.EQUIVALENT, verdicts[what, True]
