"""Lists that belong to others, lists of scalars, weights that move; rows as many as columns."""

from __future__ import annotations

import ast
import inspect

import pytest

pytest.importorskip("torch")

from tests.rewriters.verification.inputs.test_exposing_calls import verified

from npufix.rewriters.verification.inputs.source.parameters import list_parameters
from npufix.rewriters.verification.inputs.source.several import find_parallel, find_twins
from npufix.rewriters.verification.inputs.source.usage import find_function
from npufix.rewriters.verification.verdict import Status

VOXELS = '''
import torch

def voxels(coords):
    """coords (N, 3) long; the distinct rows."""
    return torch.unique(coords, dim=0)
'''
GROUPS = '''
import torch

def accumulate(losses, steps: int = 4):
    """losses: list of scalars; mean of each group of `steps`, the last may be shorter."""
    out = []
    for start in range(0, len(losses), steps):
        group = losses[start : start + steps]
        out.append(torch.stack(group).sum() / len(group))
    return torch.stack(out)
'''
WEIGHED = '''
def total(losses, weights):
    """losses: list of scalars, weights: list of floats, one for each loss."""
    found = 0.0
    for loss, weight in zip(losses, weights):
        found = found + weight * loss
    return found
'''
MOMENTUM = '''
import torch

class Momentum:
    def __init__(self, params, beta=0.9):
        self.params = list(params)
        self.beta = beta
        self.m = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self, grads):
        """grads: list of tensors like the parameters."""
        for p, g, m in zip(self.params, grads, self.m):
            m.mul_(self.beta).add_(g)
            p.sub_(m)
'''
LOOP = """        for p, g, m in zip(self.params, grads, self.m):
            m.mul_(self.beta).add_(g)
            p.sub_(m)
"""
TOGETHER = """        torch._foreach_mul_(self.m, self.beta)
        torch._foreach_add_(self.m, grads)
        torch._foreach_sub_(self.params, self.m)
"""
AVERAGED = """
import torch

@torch.no_grad()
def average(targets: list[torch.Tensor], sources: list[torch.Tensor], decay: float = 0.75):
    for t, s in zip(targets, sources):
        t.mul_(decay).add_(s, alpha=1 - decay)
"""
SIGNS = """
import torch

class Signs:
    def __init__(self, params, lr=0.5):
        self.params = list(params)
        self.lr = lr
        self.m = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        for p, m in zip(self.params, self.m):
            if p.grad is not None:
                p.sub_((m + p.grad).sign() * self.lr)
                m.mul_(0.5).add_(p.grad)
"""
USED = "                p.sub_((m + p.grad).sign() * self.lr)\n"
KEPT = "                m.mul_(0.5).add_(p.grad)\n"
LOOKAHEAD = """
import torch

class Lookahead:
    def __init__(self, params, k: int = 2):
        self.params = list(params)
        self.slow = [p.detach().clone() for p in self.params]
        self.k, self.count = k, 0

    @torch.no_grad()
    def sync(self):
        self.count += 1
        if self.count % self.k:
            return
        for p, slow in zip(self.params, self.slow):
            slow.lerp_(p, 0.5)
            p.copy_(slow)
"""
CLIP = '''
import torch

@torch.no_grad()
def clip(params, share: float = 0.5, eps: float = 0.25):
    """params: list of parameters with gradients."""
    for p in params:
        if p.grad is not None:
            p.grad.mul_(p.norm().clamp(min=eps) * share)
'''
SURPRISE = """
class Target:
    def __init__(self, eta: float = 0.1):
        self.mu, self.eta = 6.0, eta

    def observe(self, surprise: float):
        self.mu = self.mu - self.eta * surprise
"""


@pytest.mark.parametrize(
    ("text", "old", "new", "status"),
    [
        (VOXELS, "torch.unique(", "torch.unique_consecutive(", Status.REFUTED),
        (GROUPS, "len(group))\n    return", "steps)\n    return", Status.REFUTED),
        (WEIGHED, "weight * loss", "loss * weight", Status.EQUIVALENT),
        (MOMENTUM, LOOP, TOGETHER, Status.EQUIVALENT),
        (MOMENTUM, LOOP, TOGETHER.replace("self.m, grads", "self.m, self.m"), Status.REFUTED),
        (SIGNS, USED + KEPT, KEPT + USED, Status.REFUTED),
        (AVERAGED, "(decay).add_(s,", "(decay); t.add_(s,", Status.EQUIVALENT),
        (LOOKAHEAD, "self.count % self.k:", "self.count < self.k:", Status.REFUTED),
        (CLIP, ".clamp(min=eps)", "", Status.REFUTED),
        (
            SURPRISE,
            "self.mu - self.eta * surprise",
            "max(0.0, self.mu - self.eta * surprise)",
            Status.REFUTED,
        ),
    ],
)
def test_lists_and_rows_are_such_as_callers_pass(
    text: str, old: str, new: str, status: Status
) -> None:
    verdict = verified(text, old, new)
    assert verdict.status is status, verdict


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("for p, g in zip(self.params, grads): p.add_(g)", [{"self.params", "grads"}]),
        ("for p, g in zip(list(params), grads): p.add_(g)", [{"params", "grads"}]),
        ("torch._foreach_add_(params, grads, alpha=2)", [{"params", "grads"}]),
        ("for i, p in enumerate(params): p.add_(grads[i])", [{"params", "grads"}]),
        ("for i, p in enumerate(params): p.add_(grads[0])", []),
        ("for p, g in zip(params, g * 2): p.add_(g)", []),
    ],
)
def test_lists_that_are_gone_through_side_by_side(body: str, names: list[set[str]]) -> None:
    tree = ast.parse(f"def f(self, params, grads):\n    {body}\n")
    assert find_parallel(find_function(tree, "f")) == [frozenset(one) for one in names]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("for p, q in zip(a.parameters(), b.parameters()): p.copy_(q)", [{"a", "b"}]),
        ("torch._foreach_add_([*a.buffers()], list(b.buffers()))", [{"a", "b"}]),
        ("for (n, p), q in zip(a.named_parameters(), given): p.copy_(q)", []),
        ("both = [*a.parameters(), *b.parameters()]", []),
    ],
)
def test_models_whose_weights_are_paired_are_of_one_make(body: str, names: list[set[str]]) -> None:
    tree = ast.parse(f"def f(a, b, given):\n    {body}\n")
    assert find_twins(find_function(tree, "f")) == [frozenset(one) for one in names]


JOINED = """
import torch

def join(*parts, dim: int = -1, scaled: bool = False):
    parts = [p / p.norm() for p in parts] if scaled else parts
    return torch.cat(list(parts), dim)
"""
MIXED = """
import torch

class Mixing(torch.nn.Module):
    def __init__(self, features, h):
        super().__init__()
        self.norm = torch.nn.LayerNorm((h, features))
        self.mix = torch.nn.Linear(h, h)

    def forward(self, x):
        y = self.mix(x.permute(0, 2, 1)).permute(0, 2, 1)
        return self.norm(x + y)
"""


@pytest.mark.parametrize(
    ("text", "old", "new", "status"),
    [
        (JOINED, "list(parts), dim)", "tuple(parts), dim)", Status.EQUIVALENT),
        (JOINED, "list(parts), dim)", "list(parts[::-1]), dim)", Status.REFUTED),
        (MIXED, "x + y", "y + x", Status.EQUIVALENT),
    ],
)
def test_what_is_collected_and_what_is_normalised_together(
    text: str, old: str, new: str, status: Status
) -> None:
    found = verified(text, old, new)
    assert found.status is status, found
    assert "*passed['parts']" in found.script or status is Status.EQUIVALENT


def test_what_goes_on_to_others_stays_empty() -> None:
    def through(x: object, *args: object, **kwargs: object) -> None: ...
    def unread(x: object, *_: object) -> None: ...
    def several(x: object, *maps: object) -> None: ...

    made = (list_parameters(inspect.signature(f), spread=True) for f in (through, unread, several))
    assert [[p.name for p in each] for each in made] == [["x"], ["x"], ["x", "maps"]]
