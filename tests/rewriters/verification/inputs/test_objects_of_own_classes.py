"""Arguments that are objects of own classes, members of enumerations, lists of places."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.rewriters.verification.inputs.test_exposing_calls import verified

from npufix.rewriters.verification.judge import compare_versions, judge
from npufix.rewriters.verification.verdict import Status

PLANES = """
import enum
from dataclasses import dataclass

import torch


class Way(enum.Enum):
    SUM = 1
    MEAN = 2


@dataclass
class Scale:
    factor: float
    offset: torch.Tensor


class Plane:
    def __init__(self, normal: torch.Tensor, scale: Scale) -> None:
        self.normal = normal / 2
        self.scale = scale


def distance(x: torch.Tensor, plane: Plane, way: Way) -> torch.Tensor:
    \"\"\"x: (N, 8)\"\"\"
    y = (x * plane.normal).sum(-1) * plane.scale.factor + plane.scale.offset.sum()
    if way is Way.MEAN:
        return y.mean()
    return y.sum()
"""
BLOCKS = """
import torch
from torch import nn
from typing import List, Optional, Union


def choose(count: int, indices: Optional[Union[int, List[int]]]):
    if indices is None:
        indices = count
    if isinstance(indices, int):
        assert 0 < indices <= count
        chosen = [count - indices + i for i in range(indices)]
    else:
        chosen = [i % count for i in indices]
    return chosen, max(chosen)


class Blocks(nn.Module):
    def __init__(self, width: int, layers: int):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    def forward(
        self,
        x: torch.Tensor,
        indices: Optional[Union[int, List[int]]] = None,
        stop_early: bool = False,
    ):
        chosen, last = choose(len(self.blocks), indices)
        blocks = self.blocks
        if stop_early:
            blocks = self.blocks[: last + 1]
        for block in blocks:
            x = block(x)
        return x
"""
SCORES = """
import torch
from typing import List, Optional


def weigh(
    scores: List[torch.Tensor], weights: torch.Tensor
) -> torch.Tensor:
    \"\"\"weights: (2,)\"\"\"
    means = torch.stack([one.mean() for one in scores])
    kept = ~torch.isnan(means)
    return (means[kept] * weights[kept]).sum() / weights[kept].sum()
"""
COUNTED = """
import torch


class Sparse:
    def __init__(self, threshold: float | None = None):
        self.threshold = threshold

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        \"\"\"x: (B, D)\"\"\"
        if self.threshold is not None:
            count = (x != 0).sum(dim=1)
            x = x * (count > self.threshold).float().unsqueeze(1)
        return x.mean(0).square().sum()
"""
RESET = """
import torch
from torch import nn


class Queue(nn.Module):
    def __init__(self, rows: int):
        super().__init__()
        self.rows = rows
        self.reset()

    def reset(self):
        self.register_buffer("labels", torch.zeros(self.rows).long())
"""
FACTORS = """
import torch
from torch import nn


class Stack(nn.Module):
    def __init__(self, dim, factors=[2, 2]):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(dim, dim) for _ in factors])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * 2
"""
FEATURES = """
import torch
import torch.nn.functional as F


def loss(image_features, text_features, scale):
    labels = torch.arange(image_features.shape[0], device=image_features.device)
    return F.cross_entropy(scale * image_features @ text_features.T, labels)
"""
POOLED = """
import torch


def pool(x: torch.Tensor, factor: float, kept: int) -> torch.Tensor:
    \"\"\"x: (T, D)\"\"\"
    first, rest = x[:kept], x[kept:]
    count = len(rest)
    groups = max(int(count // factor), 1)
    if groups < count:
        rest = torch.stack([part.mean(0) for part in rest.tensor_split(groups)])
    return torch.cat([first, rest])
"""
WINDOWS = """
import torch
from typing import Any


def pad(x: torch.Tensor, settings: dict[str, Any]) -> torch.Tensor:
    \"\"\"x: (B, T)\"\"\"
    most, hop = settings["max_windows"], settings["hop"]
    count = x.shape[1] // hop
    if most < count:
        raise RuntimeError("too many windows")
    padded = x.new_zeros(x.shape[0], most)
    padded[:, :count] = x[:, : count * hop : hop]
    return padded
"""
SCALED = "plane.scale.factor + plane.scale.offset"


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (PLANES, "y.mean()", "y.sum() / 3"),
        (PLANES, SCALED, "plane.scale.offset + plane.scale.offset"),
        (BLOCKS, "[: last + 1]", "[: last + 2]"),
        (SCORES, "/ weights[kept].sum()", "/ weights.sum()"),
        (COUNTED, "count > self", "count >= self"),
        (RESET, "torch.zeros(self.rows).long()", "torch.zeros(self.rows).int()"),
        (FEATURES, "@ text_features.T", "@ image_features.T"),
        (POOLED, "factor), 1)", "factor), 2)"),
        (WINDOWS, "most < count", "most <= count"),
    ],
)
def test_wrong_changes_show_in_calls_with_such_arguments(text: str, old: str, new: str) -> None:
    verdict = verified(text, old, new)
    assert verdict.status is Status.REFUTED, verdict
    assert verdict.script or text != PLANES, verdict.notes


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (PLANES, "(x * plane.normal).sum(-1)", "(plane.normal * x).sum(dim=-1)"),
        (FACTORS, "x * 2", "x + x"),  # a default that is a list
    ],
)
def test_right_changes_are_equivalent_in_them(text: str, old: str, new: str) -> None:
    verdict = verified(text, old, new)
    assert verdict.status is Status.EQUIVALENT, verdict


def test_calls_that_are_left_out_for_time_are_said_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_versions, "_COMPARE_S", 0.05)
    verdict = verified(FEATURES, "scale * image_features @", "image_features * scale @")
    assert verdict.status is Status.EQUIVALENT, verdict
    assert verdict.ground.startswith(f"in the {verdict.cases} calls that there was time for")


def test_what_may_be_rounding_refutes_nothing_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "_NOISE_S", -1.0)
    text = "import torch\n\ndef f(x, y):\n    return x @ y - x @ y.roll(1, -1)\n"
    verdict = verified(text, "x @ y - x @ y.roll(1, -1)", "x @ (y - y.roll(1, -1))")
    assert verdict.status is not Status.REFUTED, verdict
