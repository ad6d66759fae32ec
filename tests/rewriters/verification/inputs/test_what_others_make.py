"""Objects and arguments that others make: configurations, schedules, trees, lists of tensors."""

from __future__ import annotations

import ast

import pytest

torch = pytest.importorskip("torch")

from tests.rewriters.verification.inputs.test_exposing_calls import verified  # noqa: E402 - needs torch

from npufix.rewriters.verification.inputs.source.declarations import (  # noqa: E402 - same
    read_declarations,
)
from npufix.rewriters.verification.inputs.source.shapes import read_text  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.siblings import read_uses  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.usage import find_function  # noqa: E402 - same
from npufix.rewriters.verification.judge.allowances import KnownNoise, Triple  # noqa: E402 - same
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

BLOCK = """
from dataclasses import dataclass
from typing import Union
import torch

@dataclass
class BlockConfig:
    width: int
    layers: int
    rank: Union[int, str] = "auto"

    def __post_init__(self):
        self.rank = self.width // 2 if self.rank == "auto" else self.rank

class Block(torch.nn.Module):
    def __init__(self, config: BlockConfig):
        super().__init__()
        self.proj = torch.nn.Linear(config.width, config.rank + 2)

    def forward(self, x):
        return self.proj(x) * 2
"""
LISTED = """
import torch

class Search(torch.nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.shapes = shapes
        self.build()

    def build(self):
        self.linear = torch.nn.Linear(self.shapes[1], self.shapes[0])

    def forward(self, inputs):
        tokens, pooled = inputs
        return torch.einsum("abc,ac->ab", tokens, self.linear(torch.relu(pooled))) * 2
"""
TREE = '''
import torch

class Layer(torch.nn.Module):
    def __init__(self, adjacency: torch.Tensor):
        super().__init__()
        if adjacency.shape[0] != adjacency.shape[1]:
            raise ValueError("adjacency must be a square matrix")
        assert adjacency.matrix_power(len(adjacency)).sum() == 0
        self.labels = adjacency.shape[0]
        self.register_buffer("adjacency", adjacency)

    def forward(self, scores):
        """scores (torch.Tensor): of shape (classes, labels)"""
        batch, classes, labels = scores.shape
        assert labels == self.labels
        return scores @ self.adjacency * 2
'''
SCHEDULE = """
import typing
import torch

class Kwargs(typing.TypedDict):
    cu_seq_lens: int

class Noise(torch.nn.Module):
    def __init__(self, steps: int = 10):
        super().__init__()
        self.register_buffer("betas", torch.linspace(0.1, 0.9, steps))

    def spread(self, value, shape):
        return value.reshape(-1, *[1] * (len(shape) - 1))

class Reverse(torch.nn.Module):
    def __init__(self, scheduler: torch.nn.Module):
        super().__init__()
        self.vs = scheduler

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.vs.spread(self.vs.betas[t], x.shape) * x * 2
"""
LOSS = """
import torch

class Loss(torch.nn.Module):
    def __init__(self, delta: float = 0.7, common: int = 0):
        super().__init__()
        self.delta = delta
        self.common = common

    def forward(self, pred: torch.Tensor, true: torch.Tensor):
        n, c = pred.shape
        entropy = -true * torch.log(pred)
        rest = entropy.sum() - entropy[:, self.common].sum()
        return self.delta * rest + (1 - self.delta) * entropy[:, self.common].sum()
"""


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (BLOCK, "* 2\n", "* 3\n"),
        (TREE, "* 2\n", "* 3\n"),
        (SCHEDULE, "x * 2", "x * 3"),
        (
            LOSS,
            "entropy[:, self.common].sum()\n        return",
            "entropy[:, 0].sum()\n        return",
        ),
    ],
    ids=["configuration", "tree", "schedule", "loss"],
)
def test_wrong_changes_show_in_them(text: str, old: str, new: str) -> None:
    assert text.count(old) == 1
    verdict = verified(text, old, new)
    assert verdict.status is Status.REFUTED, verdict
    assert "stand-in" not in verdict.ground + verdict.reason


def test_what_is_unpacked_into_tensors_is_a_list_of_them() -> None:
    tree = ast.parse(LISTED)
    function = find_function(tree, "Search.forward")
    assert function is not None
    use = read_uses(tree, function, "Search.forward", None)["inputs"]
    assert use.listed
    assert use.keys == ["tokens", "pooled"]


def test_sizes_in_pairs_are_no_list_of_tensors() -> None:
    text = "def f(x, size):\n    h, w = size\n    return x.view(-1, h, w), torch.zeros(h, w)\n"
    function = find_function(ast.parse(text), "f")
    assert function is not None
    assert not read_uses(ast.parse(text), function, "f", None)["size"].listed


def test_what_others_are_indexed_by_is_whole() -> None:
    text = "def f(x, edges, parts):\n    j = edges[1]\n    k = parts[0]\n    return x[0][j] + k\n"
    declared = read_declarations(text, "f")
    assert declared.of("edges").kinds == {"int"}
    assert not declared.of("parts").kinds


def test_a_text_yields_to_what_code_unpacks() -> None:
    text = '''def f(x, y):
    """x (c, l), y (c, l)"""
    b, c, l = x.shape
    return x + y
'''
    declared = read_declarations(text, "f")
    assert not declared.of("x").shapes
    assert declared.of("y").shapes == (("c", "l"),)


@pytest.mark.parametrize(
    ("said", "shape"),
    [("[classes + 1] long", ("classes + 1",)), ("(remark) of it", None), ("see [the paper]", None)],
)
def test_one_size_may_be_a_sum(said: str, shape: tuple[str, ...] | None) -> None:
    found = read_text(f"Args:\n    ids: {said}\n", ["ids"])
    shapes = found["ids"].shapes if "ids" in found else ()
    assert shapes == (() if shape is None else (shape,))


def test_as_little_as_rounding_need_not_be_asked_of_again() -> None:
    def off_by(share: float) -> Triple:
        exact = torch.ones(3)
        return Triple("gradient of x", exact, exact + share, exact.double(), noise=1.0)

    known = KnownNoise()
    for _ in range(3):
        known.add(off_by(2e-6))
    assert not known.covers(off_by(1e-6))
    known.add(off_by(2e-6))
    assert known.covers(off_by(1e-6))
    assert not known.covers(off_by(4e-6))
    known.add(off_by(0.5))  # all of it was noise: what is off by half is not always
    assert not known.covers(off_by(0.4))
