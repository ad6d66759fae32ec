"""Differences that no caller can see: of what has no elements, or of integers nobody asks for."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from npufix.advisor.verify.changed_functions import find_touched
from npufix.rewriters.verification import Job
from npufix.rewriters.verification.judge.verify_function import verify_function
from npufix.rewriters.verification.verdict import Status, Verdict

PICKED = '''
import torch
import torch.nn.functional as F

def picked(logp, target):
    """logp (N, C), target (N,)."""
    return (logp * F.one_hot(target, logp.shape[1]).to(logp.dtype)).sum(1)
'''
GATHERED = "logp.gather(1, target[:, None]).squeeze(1)"
ATTENTION = '''
import torch
import torch.nn.functional as F

def attend(q, k, v, bias=None):
    """q (B, H, T, D), k and v (B, H, S, D), bias (B, 1, T, S) to be added."""
    w = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if bias is not None:
        w = w + bias
    return w.softmax(-1) @ v
'''
ROWS = '''
import torch

def totals(rows, keep):
    """rows (B, T, C), keep (B, T) of bool."""
    return torch.stack([row[on].sum(0) for row, on in zip(rows, keep)])
'''


def verified(old: str, before: str, after: str) -> Verdict:
    new = old.replace(before, after)
    assert new != old
    (one,) = find_touched(old, new)
    lines = one.lines_original, one.lines_changed
    return verify_function(
        Job("/user/m.py", "/user", old, new, one.qualname, *lines, by_hand=True)
    ).verdict


def test_the_same_integers_in_another_type_are_said() -> None:
    product = "(logp * F.one_hot(target, logp.shape[1]).to(logp.dtype)).sum(1)"
    verdict = verified(PICKED, product, GATHERED)
    assert verdict.status is Status.EQUIVALENT
    assert "its integers are of another type for logp=int" in verdict.ground
    wrong = verified(PICKED, product, f"{GATHERED}.abs()")
    assert wrong.status is Status.REFUTED


def test_a_gradient_without_elements_is_as_good_as_none() -> None:
    fused = "return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)"
    body = ATTENTION[ATTENTION.index("    w = ") :].strip()
    assert verified(ATTENTION, body, fused).status is Status.EQUIVALENT
    detached = fused.replace("=bias", "=None if bias is None else bias.detach()")
    assert verified(ATTENTION, body, detached).status is Status.REFUTED


def test_what_a_docstring_gives_a_shape_is_no_list() -> None:
    loop = "torch.stack([row[on].sum(0) for row, on in zip(rows, keep)])"
    verdict = verified(ROWS, loop, "(rows * keep[..., None]).sum(1)")
    assert verdict.status is Status.EQUIVALENT
