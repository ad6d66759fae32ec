"""Sizes that have halves, numbers that a dtype given by an argument cannot hold, whole numbers."""

from __future__ import annotations

import ast

import pytest

torch = pytest.importorskip("torch")

from tests.rewriters.verification.inputs.test_exposing_calls import verified  # noqa: E402 - needs torch

from npufix.rewriters.verification.inputs.source.shapes import read_multiples  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.siblings import (  # noqa: E402 - same
    find_passed_whole,
)
from npufix.rewriters.verification.inputs.source.usage import find_function  # noqa: E402 - same
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

GATED = """
import torch
import torch.nn.functional as F

def gated(x: torch.Tensor{given}) -> torch.Tensor:
    a, b = x.chunk(2, {dim})
    return a * torch.sigmoid(b)
"""
TURNED = """
import torch

def turned(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[1]
    a, b = x.chunk(2, 1)
    return torch.cat([b, a], 1)
"""
ANGLES = """
from typing import Optional
import torch

def angles(n: int, dim: int = 16, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    dtype = dtype or torch.get_default_dtype()
    rates = 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim)
    return torch.outer(torch.arange(n).float(), rates).sin().to(dtype)
"""
BUCKETS = """
import torch
from torch import Tensor, nn

class Distances(nn.Module):
    def __init__(self, most: int = 12, heads: int = 2):
        super().__init__()
        self.most = most
        self.table = nn.Embedding(most, heads)

    def bucket(self, apart: Tensor) -> Tensor:
        apart = torch.max(apart, torch.zeros_like(apart))
        return torch.min(apart, torch.full_like(apart, self.most - 1)).long()

    def forward(self, queries: int, keys: int) -> Tensor:
        first = torch.arange(queries)[:, None]
        then = torch.arange(keys, device=self.table.weight.device)[None, :]
        return self.table(self.bucket(then - first))
"""


@pytest.mark.parametrize(("given", "dim"), [("", "1"), (", dim: int", "dim")])
def test_an_odd_size_may_be_refused_where_its_halves_only_meet_by_chance(
    given: str, dim: str
) -> None:
    text = GATED.format(given=given, dim=dim)
    body = text[text.index("    a, b") :]
    found = verified(text, body, f"    return F.glu(x, {dim})\n")
    assert found.status is Status.EQUIVALENT, found
    found = verified(text, body, f"    b, a = x.chunk(2, {dim})\n    return a * b.sigmoid()\n")
    assert found.status is Status.REFUTED, found


def test_odd_sizes_are_not_refused_where_they_have_a_meaning() -> None:
    body = TURNED[TURNED.index("    a, b") :]
    new = "    return x.unflatten(1, (2, n // 2)).flip(1).flatten(1, 2)\n"
    assert verified(TURNED, body, new).status is Status.REFUTED


def test_positions_are_more_than_a_dtype_that_may_be_given_can_hold() -> None:
    found = verified(ANGLES, "arange(n).float()", "arange(n).to(dtype).float()")
    assert found.status is Status.REFUTED, found
    assert "bfloat16" in found.reason
    found = verified(ANGLES, "arange(n).float()", "arange(n, dtype=torch.float32)")
    assert found.status is Status.EQUIVALENT, found


def test_flags_are_counted_beyond_what_a_half_counts_to() -> None:
    text = '''
    import torch

    def positions(mask: torch.Tensor) -> torch.Tensor:
        """mask (B, T) in a floating dtype, 0 or 1: the position of each token, int64."""
        return (mask.float().cumsum(-1) - 1).clamp(min=0).long()
    '''
    found = verified(text, "mask.float().cumsum(-1)", "mask.cumsum(-1)")
    assert found.status is Status.REFUTED, found
    assert "bfloat16" in found.reason
    found = verified(text, "mask.float().cumsum(-1)", "mask.cumsum(-1, dtype=torch.float32)")
    assert found.status is Status.EQUIVALENT, found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x (B, C, H, W), H and W are even.", [("H", "2"), ("W", "2")]),
        ("x (B, C, H, W) of even sizes", [("H", "2"), ("W", "2")]),
        ("x (B, C, H, W) with even height and width", [("H", "2"), ("W", "2")]),
        ("C must be even", [("C", "2")]),
        ("(n, dim) positions, dim even: sines", [("dim", "2")]),
        ("x is taken even if H is 1; evenly many", []),
        ("C is a multiple of 4", [("C", "4")]),
    ],
)
def test_texts_say_that_sizes_are_even(text: str, found: list[tuple[str, str]]) -> None:
    assert read_multiples(text, [("B", "C", "H", "W")], ["dim"]) == found


def test_sizes_that_are_said_to_be_even_are_never_odd() -> None:
    text = '''
    import torch
    import torch.nn.functional as F

    def halved(x: torch.Tensor) -> torch.Tensor:
        """x (B, C, H, W) float; H and W are even."""
        return 0.5 * (x[..., ::2, :] + x[..., 1::2, :])
    '''
    old = "0.5 * (x[..., ::2, :] + x[..., 1::2, :])"
    rows = "x.unflatten(2, (x.shape[2] // 2, 2))"
    found = verified(text, old, f"{rows}.mean(3)")
    assert found.status is Status.EQUIVALENT, found
    assert verified(text, old, f"{rows}.amax(3)").status is Status.REFUTED


@pytest.mark.parametrize(
    ("value", "whole"),
    [
        ("then - first", True),
        ("then.abs()", True),
        ("(then + queries)[:, 0]", True),
        ("then * 0.5", False),
        ("then / 2", False),
        ("self.table.weight", False),
        ("then.float()", False),
        ("torch.arange(queries, dtype=torch.float32)", False),
        ("torch.arange(0, 1, 0.1)", False),
        ("other", False),
    ],
)
def test_callers_say_that_numbers_are_whole(value: str, whole: bool) -> None:  # noqa: FBT001 - a parameter
    tree = ast.parse(BUCKETS.replace("then - first", value))
    function = find_function(tree, "Distances.bucket")
    assert function is not None
    assert find_passed_whole(tree, function, "Distances.bucket") == ({"apart"} if whole else set())


def test_no_floats_are_made_up_where_callers_pass_whole_numbers() -> None:
    old = "torch.max(apart, torch.zeros_like(apart))"
    found = verified(BUCKETS, old, "apart.clamp(min=0)")
    assert found.status is Status.EQUIVALENT, found
    assert verified(BUCKETS, old, "apart.clamp(min=1)").status is Status.REFUTED


BUCKETED = """
import torch

def bucketed({name}, most: int = 32):
    "{name}: (Q, K) int64{said}"
    half = most // 2
    return ({name} // 4).clamp(-half, half - 1) + half
"""


@pytest.mark.parametrize(
    ("name", "said", "status"),
    [
        ("relative_positions", "", Status.REFUTED),
        ("offsets", " of either sign", Status.REFUTED),
        ("positions", ", never negative", Status.EQUIVALENT),
    ],
)
def test_distances_are_below_zero_too(name: str, said: str, status: Status) -> None:
    text = BUCKETED.format(name=name, said=said)
    found = verified(text, f"({name} // 4)", f'torch.div({name}, 4, rounding_mode="trunc")')
    assert found.status is status, found
