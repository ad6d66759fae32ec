"""Changes of ``__init__``: it has run, by arguments that lead where it has changed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from tests.rewriters.verification.changed_programs import verdict

from npufix.rewriters.verification.calls.values import find_nothing
from npufix.rewriters.verification.inputs.recipes import Recipe, _why_not

BY_KIND = """
class Pool(torch.nn.Module):
    def __init__(self, dim: int, kind: str = "mean"):
        super().__init__()
        self.fc = torch.nn.Linear(dim, dim)
        if kind == "max":
            self.pool = lambda x: x.amax(1)
        elif kind == "cls":
            self.pool = lambda x: x[:, 0]
        else:
            self.pool = lambda x: x.mean(1)

    def forward(self, x):
        return self.pool(self.fc(x))
"""
SCALED = """
class Scaled(torch.nn.Module):
    def __init__(self, dim: int, extra=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(dim))
        if extra is not None:
            self.weight.data.mul_(extra * 2)

    def forward(self, x):
        return x * self.weight
"""
DRAWN = """
class Table(torch.nn.Module):
    def __init__(self, n: int = 16, dim: int = 8):
        super().__init__()
        self.rows = torch.nn.Parameter(torch.empty(n, dim))
        torch.nn.init.normal_(self.rows, std=0.02)

    def forward(self, ids: torch.LongTensor):
        return self.rows[ids]
"""
NOT_MADE = """
class Wrapped(torch.nn.Module):
    def __init__(self, backend):
        super().__init__()
        self.net = backend.load("weights.bin").build(1, 2, 3)

    def forward(self, x):
        return x / (x.norm(dim=-1, keepdim=True) + 1e-3)
"""
REGISTERED = """
NORMS = {}


def register(name):
    def add(cls):
        NORMS[name] = cls
        return cls

    return add


@register("rms")
class RMS(torch.nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Block(torch.nn.Module):
    def __init__(self, dim: int = 8, norm: str = "rms", eps: float = 1e-3):
        super().__init__()
        self.norm = NORMS[norm](dim, eps=eps)

    def forward(self, x):
        return x + self.norm(x)
"""

AVERAGED = """
class Average:
    def __init__(self, model: torch.nn.Module, decay: float = 0.9):
        self.decay = decay
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: torch.nn.Module):
        for n, p in model.named_parameters():
            self.shadow[n].lerp_(p, 1 - self.decay)
"""


@pytest.mark.parametrize(
    ("text", "old", "right", "wrong", "says"),
    [
        (BY_KIND, "x[:, 0]", "x.select(1, 0)", "x[:, -1]", "kind='cls'"),
        (SCALED, "extra * 2", "2 * extra", "extra * 3", "self.weight starts with 1 in the"),
        (DRAWN, "std=0.02", "mean=0.0, std=0.02", "std=0.2", "deviation 0.198"),
        (REGISTERED, "(dim, eps=eps)", "(dim, eps)", "(dim)", "eps"),
        (AVERAGED, ".detach().clone()", ".clone().detach()", ".detach()", "shares memory with"),
    ],
)
def test_objects_are_made_by_what_has_changed(
    text: str, old: str, right: str, wrong: str, says: str
) -> None:
    kept = verdict(text, (old, right))
    assert kept.status == "equivalent", kept.reason
    assert "without" not in kept.ground
    found = verdict(text, (old, wrong))
    assert found.status == "refuted", found.reason
    assert says in found.reason or "result" in found.reason


def test_an_init_that_cannot_run_is_not_verified() -> None:
    found = verdict(NOT_MADE, ("weights.bin", "other.bin"))
    assert found.status == "not verified", found
    assert "__init__ has changed" in found.reason


def test_objects_by_which_the_lines_run_are_filled_before_the_call() -> None:
    text = """
    class Confusion:
        def __init__(self, normalize: bool = False):
            self.normalize, self.table = normalize, torch.zeros(3, 3)

        def update(self, x: torch.Tensor) -> None:
            self.table = self.table + x.mean() * torch.arange(9.0).view(3, 3)

        def compute(self) -> torch.Tensor:
            if self.normalize:
                return self.table / self.table.abs().sum(1).clamp(min=1e-6)[:, None]
            return self.table
    """
    found = verdict(text, ("sum(1)", "sum(0)"))
    assert found.status == "refuted", found.reason


@pytest.mark.parametrize(("most", "devices"), [(63, ["meta"]), (64, ["meta", "cpu"])])
def test_what_is_too_large_is_only_sketched(most: int, devices: list[str]) -> None:
    made: list[str] = []

    class Square(torch.nn.Module):
        def __init__(self, size: int = 8) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(size, size))
            made.append(self.weight.device.type)

    told = _why_not(Recipe(), Square, find_nothing, most)
    assert told == ("" if most == 64 else "MemoryError: the module has 64 parameters")
    assert made == devices
