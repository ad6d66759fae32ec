"""Changes that differ in what a call or a constructor leaves behind, and arguments of one kind."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from test_exposing_calls import verified

from npufix.rewriters.verification.verdict import Status

SCHEDULE = '''
import torch

class Scheduler:
    def __init__(self, steps: int = 100):
        self.alphas = torch.linspace(0.99, 0.01, steps)
        self.roots = None

    def add_noise(self, samples, noise, timesteps):
        """samples, noise: (B, C, H, W); timesteps: (B,) int64 below 100"""
        alphas = self.alphas.to(device=samples.device, dtype=samples.dtype)
        roots = alphas.sqrt(), (1 - alphas).sqrt()
        a, s = (root[timesteps].view(-1, 1, 1, 1) for root in roots)
        return a * samples + s * noise
'''
MADE = SCHEDULE[SCHEDULE.index("        alphas = ") : SCHEDULE.index("        a, s")]
KEPT = """        if self.roots is None or CHECK:
            alphas = self.alphas.to(device=samples.device, dtype=samples.dtype)
            self.roots = alphas.sqrt(), (1 - alphas).sqrt()
        roots = self.roots
"""


def test_what_is_kept_for_one_dtype_must_not_serve_another() -> None:
    kept = KEPT.replace("CHECK", "self.roots[0].device != samples.device")
    verdict = verified(SCHEDULE, MADE, kept)
    assert verdict.status is Status.REFUTED, verdict
    assert "after the same in " in verdict.reason


def test_what_is_made_again_for_each_dtype_may_be_kept() -> None:
    kept = KEPT.replace(
        "CHECK", "(self.roots[0].device, self.roots[0].dtype) != (samples.device, samples.dtype)"
    )
    verdict = verified(SCHEDULE, MADE, kept)
    assert verdict.status is not Status.REFUTED, verdict


NORMALIZE = '''
import torch

class Normalize(torch.nn.Module):
    def __init__(self, mean=(0.4, 0.5, 0.6)):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)

    def forward(self, images):
        """images: (B, 3, H, W)"""
        return images - self.mean
'''


def test_a_plain_attribute_does_not_move_with_its_module() -> None:
    buffer = 'self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)'
    verdict = verified(NORMALIZE, buffer, "self.mean = torch.tensor(mean).view(-1, 1, 1)")
    assert verdict.status is Status.REFUTED, verdict
    same = buffer.replace("torch.tensor(mean).view(-1, 1, 1)", "torch.tensor(mean)[:, None, None]")
    assert verified(NORMALIZE, buffer, same).status is Status.EQUIVALENT


CONFUSION = '''
import torch

class Confusion(torch.nn.Module):
    def __init__(self, num_classes: int):
        super().__init__()
        self.num_classes = num_classes
        self.register_buffer("matrix", torch.zeros(num_classes, num_classes, dtype=torch.int64))

    @torch.no_grad()
    def update(self, pred: torch.Tensor, target: torch.Tensor) -> None:
        """pred, target: (B, N) int64 class numbers; targets outside of the classes are ignored"""
        n = self.num_classes
        valid = (target >= 0) & (target < n)
        counts = torch.bincount(n * target[valid] + pred[valid], minlength=n * n)
        self.matrix += counts.view(n, n)
'''


def test_labels_may_be_negative_where_other_numbers_are_not() -> None:
    verdict = verified(CONFUSION, "(target >= 0) & (target < n)", "target < n")
    assert verdict.status is Status.REFUTED, verdict


AVERAGE = """
import copy

import torch

class Average:
    def __init__(self, model: torch.nn.Module, decay: float = 0.9):
        self.ema = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: torch.nn.Module):
        source = model.state_dict()
        for key, value in self.ema.state_dict().items():
            if value.dtype.is_floating_point:
                value.mul_(self.decay).add_(source[key], alpha=1 - self.decay)
            else:
                value.copy_(source[key])
"""
BODY = AVERAGE[AVERAGE.index("        source = ") :]


def test_buffers_of_a_model_inside_an_object_are_seen() -> None:
    weights = """        ema, source = list(self.ema.parameters()), list(model.parameters())
        torch._foreach_mul_(ema, self.decay)
        torch._foreach_add_(ema, source, alpha=1 - self.decay)
"""
    verdict = verified(AVERAGE, BODY, weights)
    assert verdict.status is Status.REFUTED, verdict
    other = BODY.replace("value.mul_(self.decay).add_(", "value.mul_(self.decay); value.add_(")
    verdict = verified(AVERAGE, BODY, other)
    assert verdict.status is Status.EQUIVALENT, verdict


PAIRS = '''
import torch

def pairs(emb: torch.Tensor) -> torch.Tensor:
    """emb: (batch, fields, dim), returns (batch,)"""
    total = emb.new_zeros(emb.shape[0])
    for i in range(emb.shape[1]):
        for j in range(i + 1, emb.shape[1]):
            total = total + (emb[:, i] * emb[:, j]).sum(dim=-1)
    return total
'''


def test_a_gradient_of_zeros_is_as_good_as_none_where_one_flows_elsewhere() -> None:
    loop = PAIRS[PAIRS.index("    total = ") :]
    square = "    s, t = emb.sum(dim=1), emb.pow(2).sum(dim=1)\n"
    good = square + "    return 0.5 * (s.pow(2) - t).sum(dim=-1)\n"
    verdict = verified(PAIRS, loop, good)
    assert verdict.status is Status.EQUIVALENT, verdict
    cut = square + "    return (0.5 * (s.pow(2) - t).sum(dim=-1)).detach()\n"
    assert verified(PAIRS, loop, cut).status is not Status.EQUIVALENT
