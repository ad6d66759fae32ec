"""Whether a test says ``>`` or ``>=`` shows where its sides are equal: calls that meet there."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from changed_programs import verdict  # noqa: E402 - needs torch

from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

CACHE = '''
class Cache(torch.nn.Module):
    def __init__(self, batch: int, max_len: int, dim: int):
        super().__init__()
        self.max_len = max_len
        self.register_buffer("kept", torch.zeros(batch, max_len, dim), persistent=False)
        self.length = 0

    def update(self, x: torch.Tensor) -> torch.Tensor:
        """x (B, T, D)"""
        if self.length + x.shape[1] > self.max_len:
            raise ValueError("the cache is full")
        self.kept[: x.shape[0], self.length : self.length + x.shape[1]] = x
        self.length += x.shape[1]
        return self.kept[: x.shape[0], : self.length]
'''
CROP = '''
def crop(x: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """x (B, T, D)"""
    left = x.shape[1] - start
    if left < size:
        return torch.zeros_like(x[:, :1])
    return x[:, start : start + size].mean(1, keepdim=True)
'''
GATE = '''
class Gate(torch.nn.Module):
    def __init__(self, threshold: float = 0.3):
        super().__init__()
        self.threshold = threshold

    def forward(self, x: torch.Tensor, rate: float) -> torch.Tensor:
        """x (B, D)"""
        if rate >= self.threshold:
            x = x * rate
        return x
'''
ANGLES = """
class Rotary(torch.nn.Module):
    def __init__(self, dim=8, limit=32):
        super().__init__()
        self.dim, self.limit = dim, limit

    def forward(self, length: int):
        base = 10000.0
        if length > self.limit:
            base = base * (2.0 * length / self.limit - 1.0)
        steps = torch.arange(0, self.dim, 2).float() / self.dim
        return torch.outer(torch.arange(length).float(), base**-steps).cos()
"""
DRAFTED = """
def accepted(draft, target):
    same = (draft == target).long()
    return same.cumprod(dim=-1).sum(dim=-1)
"""
LOOKED_UP = """
def look_up(values, edges, table):
    return table[torch.searchsorted(edges, values)]
"""

RESIZED = '''
import math
import torch.nn.functional as F

def resize(table, height: int, width: int):
    """table: (S * S, D)"""
    side = math.isqrt(len(table))
    if (side, side) == (height, width):
        return table
    grid = table.view(1, side, side, -1).permute(0, 3, 1, 2)
    return F.interpolate(grid, (height, width)).flatten(2)[0].T
'''
WHOLE = RESIZED.replace(
    "(side, side) == (height, width)", "height * width == len(table) and height == width"
)
UNSURE = """
def sure(logits, limit: float = 0.7):
    probs = logits.softmax(-1)
    return probs.masked_fill(probs <= limit, 0.0)
"""
LIKELY = """
def likely(logits, share: float = 0.1):
    probs = logits.softmax(-1)
    return logits.masked_fill(probs < share * probs.amax(-1, keepdim=True), -1e4)
"""
BELOW = """
def below(scores, limit: float = 0.6):
    return scores[scores < limit]
"""
PAIRS = """
def nearest(inputs, reference):
    apart = torch.cdist(inputs, reference)
    if reference is inputs:
        apart = apart + torch.eye(len(apart)) * 1e4
    return apart.amin(1).mean()
"""


@pytest.mark.parametrize(
    ("original", "change"),
    [
        (RESIZED, ("(side, side) == (height, width)", "side * side == height * width")),
        (WHOLE, (" and height == width", "")),
    ],
)
def test_two_numbers_may_come_to_the_same_together(original: str, change: tuple[str, str]) -> None:
    found = verdict(original, change)
    assert found.status is Status.REFUTED, found


def test_two_arguments_are_one_where_code_asks_whether_they_are() -> None:
    found = verdict(PAIRS, ("reference is inputs", "reference is inputs and len(apart) > 100"))
    assert found.status is Status.REFUTED, found
    assert "inputs too" in found.reason, found


def test_a_cache_may_be_filled_to_its_end() -> None:
    full = "> self.max_len", ">= self.max_len"
    found = verdict(CACHE, full)
    assert found.status is Status.REFUTED, found
    assert "the patched code raises ValueError: the cache is full" in found.reason
    back = verdict(CACHE.replace(*full), full[::-1])
    assert back.status is Status.REFUTED, back
    assert (
        "the original raises ValueError: the cache is full, the patched code returns" in back.reason
    )
    moved = verdict(
        CACHE,
        ("self.length + x.shape[1] > self.max_len", "x.shape[1] > self.max_len - self.length"),
    )
    assert moved.status is Status.EQUIVALENT, moved


@pytest.mark.parametrize(
    ("original", "change"),
    [
        (CROP, ("left < size", "left <= size")),
        (GATE, (">= self.threshold", "> self.threshold")),
        (ANGLES, ("length > self.limit", "length >= self.limit - 1")),
        (DRAFTED, ("same.cumprod(dim=-1)", "same")),
        (LOOKED_UP, ("values)]", "values, right=True)]")),
        (UNSURE, ("probs <= limit", "probs < limit")),
        (LIKELY, ("probs < share", "probs <= share")),
        (BELOW, ("scores < limit", "scores <= limit")),
    ],
)
def test_sizes_and_numbers_meet_what_they_are_compared_with(
    original: str, change: tuple[str, str]
) -> None:
    found = verdict(original, change)
    assert found.status is Status.REFUTED, found


IGNORING = '''
def loss(logits: torch.Tensor, labels: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    """logits (B, V); labels (B,)"""
    valid = labels != ignore_index
    picked = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return -(picked * valid).sum()
'''


def test_labels_are_classes_or_the_one_that_the_call_ignores() -> None:
    found = verdict(IGNORING, ("labels.clamp(min=0)", "labels.masked_fill(~valid, 0)"))
    assert found.status is Status.EQUIVALENT, found
    lost = verdict(IGNORING, ("(picked * valid)", "picked"))
    assert lost.status is Status.REFUTED, lost
