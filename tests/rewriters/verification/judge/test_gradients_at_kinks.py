"""Gradients where there is none: between two equal maxima, at the 0 of a ReLU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from tests.rewriters.verification.inputs.test_exposing_calls import verified

from npufix.rewriters.verification.calls.observe import CallRecord
from npufix.rewriters.verification.judge.allowances import Further, Triple, find_overflown
from npufix.rewriters.verification.verdict import Status

HINGE = '''
import torch

def hinge(x):
    """x (N,)"""
    return torch.relu(x).sum()
'''
LONG = '''
import torch

def long(x):
    """x (N, C)"""
    return x.pow(2).sum(1).sqrt()
'''
HIGHEST = '''
import torch

def highest(x):
    """x (N, C)"""
    return torch.where(x > 0, x, x * 0.5).amax(1)
'''
MANY = '''
import torch

def highest(x):
    """x (B, N, C)"""
    return x.max(dim=-1).values
'''
LOW = "torch.where(x > 0, x, x * 0.5).amax(1)"
ALL_OF_THEM = """y = torch.where(x >= 0, x, x * 0.5)
    most = y.detach().amax(1, keepdim=True)
    return most[:, 0] + (y - y.detach()).masked_fill(y < most, 0).sum(1)"""


@pytest.mark.parametrize(
    ("text", "old", "new", "status"),
    [
        (HINGE, "torch.relu(x)", "x.clamp(min=0)", Status.EQUIVALENT),
        (HINGE, "torch.relu(x)", "torch.where(x > 0, x, x * 0.5)", Status.REFUTED),
        (LONG, "x.pow(2).sum(1).sqrt()", "torch.linalg.vector_norm(x, dim=1)", Status.EQUIVALENT),
        (LONG, "x.pow(2).sum(1)", "x.pow(2).detach().sum(1)", Status.REFUTED),
        (
            HIGHEST,
            f"return {LOW}",
            "return torch.where(x >= 0, x, x * 0.5).max(1).values",
            Status.EQUIVALENT,
        ),
        (HIGHEST, f"return {LOW}", ALL_OF_THEM, Status.REFUTED),
        (MANY, "x.max(dim=-1).values", "x.amax(dim=-1)", Status.EQUIVALENT),
    ],
)
def test_any_gradient_beside_a_kink_will_do(text: str, old: str, new: str, status: Status) -> None:
    verdict = verified(text, old, new)
    assert verdict.status is status, verdict
    kept = status is Status.EQUIVALENT
    assert kept == any("has no derivative" in note for note in verdict.notes), verdict.notes


@pytest.mark.parametrize(
    ("what", "dtype", "exact", "accepted"),
    [
        ("gradient of x", "float16", 0.5, [True, False]),
        ("gradient of x", "float16", 0.75, [False, False]),  # another gradient in float64
        ("gradient of x", "float32", 0.5, [False, False]),
        ("result", "float16", 0.5, [False, False]),
    ],
)
def test_a_gradient_that_overflows_in_halves_may_be_any(
    what: str, dtype: str, exact: float, accepted: list[bool]
) -> None:
    half = getattr(torch, dtype)
    original, patched = torch.tensor([[torch.inf, 1.0], [-0.25, 2.0]], dtype=half)
    oracle = torch.tensor([0.5, 1.0], dtype=torch.float64)
    triple = Triple(what, original, patched, oracle, 1.0 if what != "result" else 0.0)
    seen = CallRecord(tensors={what: torch.tensor([exact, 1.0], dtype=torch.float64)})
    found = find_overflown(triple, Further(lambda: None, lambda: seen))
    assert found.tolist() == accepted


@pytest.mark.parametrize(("original", "accepted"), [(-0.25, True), (0.28, False)])
def test_a_patch_may_overflow_in_halves_where_no_digit_is_right(
    original: float, *, accepted: bool
) -> None:
    what, exact = "gradient of x", torch.tensor([0.25], dtype=torch.float64)
    before, after = (torch.tensor([v], dtype=torch.bfloat16) for v in (original, torch.nan))
    seen = CallRecord(tensors={what: exact})
    triple = Triple(what, before, after, exact, noise=1.0)
    found = find_overflown(triple, Further(lambda: None, lambda: seen))
    assert found.tolist() == [accepted]
