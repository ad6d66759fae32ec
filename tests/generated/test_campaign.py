"""The campaign puts a replacement where its original stands, and names where all code is from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
ORIGINAL = """\
import torch


class Norm(torch.nn.Module):
    @staticmethod
    def forward(self, x):
        return x


after = Norm
"""
REPLACEMENT = """\
from __future__ import annotations
import torch
import torch_npu

EPS, OTHER = 1e-6, 2
unused = 3


@register
def norm_npu(self, hidden):
    hidden = hidden + OTHER
    return torch_npu.npu_rms_norm(hidden, self.weight, epsilon=EPS)[0]
"""
COMPOSED = """\
import torch


import torch_npu
EPS, OTHER = 1e-6, 2
class Norm(torch.nn.Module):
    @staticmethod
    def forward(self, x):
        x = x + OTHER
        return torch_npu.npu_rms_norm(x, self.weight, epsilon=EPS)[0]


after = Norm
"""


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.campaign import pairs

    return pairs


def test_a_replacement_is_called_as_its_original(pairs: ModuleType) -> None:
    assert pairs.compose(ORIGINAL, "Norm.forward", REPLACEMENT, "norm_npu") == COMPOSED


@pytest.mark.parametrize(
    ("replacement", "name", "why"),
    [
        (REPLACEMENT, "norm", "no norm"),
        ("after = 1\ndef norm(self, x):\n    return after\n", "norm", "both files define after"),
    ],
)
def test_what_cannot_stand_in_one_file_is_refused(
    pairs: ModuleType, replacement: str, name: str, why: str
) -> None:
    with pytest.raises(pairs.PairError, match=why):
        pairs.compose(ORIGINAL, "Norm.forward", replacement, name)


def test_every_pair_names_its_sources_and_every_difference_is_judged() -> None:
    told = json.loads((ROOT / "benchmarks/campaign/pairs.json").read_text("utf-8"))
    for pair in (pair for pairs in told["pairs"].values() for pair in pairs):
        for place in (pair["old"], *pair["changes"].values()):
            assert place.partition(":")[0] in told["sources"], place
    for source in told["sources"].values():
        assert "==" in source or len(source.partition("@")[2]) == len("0" * 40)
    rows = [line for line in (ROOT / "docs/campaign.md").read_text("utf-8").splitlines()
            if line.startswith("| ") and line.count(" | ") == 3]  # fmt: skip
    assert all(row.split(" | ")[2].startswith("equivalent") or row.split(" | ")[3].strip(" |")
               for row in rows)  # fmt: skip
