"""What is left out because of what is made once, learned, or chosen elsewhere in a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from scanned_code import places, scanned

if TYPE_CHECKING:
    from pathlib import Path

ROWS = "import torch\n\n\ndef step(x: torch.Tensor):\n    {}\n"


@pytest.mark.parametrize(
    ("head", "other", "shown"),
    [
        ("", "", True),
        ("", "loss.backward()\n", False),
        ("@torch.no_grad()\n", "loss.backward()\n", True),
    ],
)
def test_a_gather_that_gradients_flow_into_is_left_alone(
    tmp_path: Path, head: str, other: str, *, shown: bool
) -> None:
    text = ROWS.format("return x.gather(1, x.argmax(1).unsqueeze(1)).squeeze(1)")
    files = {"net.py": text.replace("def ", f"{head}def "), "train.py": other}
    assert bool(places(scanned(tmp_path, files))) is shown


KEPT = """
import torch
from torch import nn


class Net(nn.Module):
    def grow(self, x: torch.Tensor):
        {}
        self.table = torch.zeros(x.shape).to(x.device)
        return None
"""


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        ("if self.table.size(1) >= x.size(1):\n            return", False),
        ("if x.size(1) >= 9:\n            return", True),
    ],
)
def test_what_is_made_anew_only_where_it_does_not_suffice(
    tmp_path: Path, before: str, *, shown: bool
) -> None:
    assert bool(places(scanned(tmp_path, {"a.py": KEPT.format(before)}))) is shown


@pytest.mark.parametrize("asked", ["not hasattr(self, 'queue')", "x.ndim == 2"])
def test_what_an_object_lacks_is_made_once(tmp_path: Path, asked: str) -> None:
    made = "self.queue = torch.zeros(9).to(x.device)"
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        f"    def push(self, x: torch.Tensor):\n        if {asked}:\n            {made}\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is ("ndim" in asked)


@pytest.mark.parametrize(("given", "shown"), [("ids", True), ("tokenizer", False)])
def test_who_gets_a_tokenizer_runs_once_a_text(tmp_path: Path, given: str, *, shown: bool) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
        f"        return x\n\n    def decode(self, lengths: torch.Tensor, {given}):\n"
        f"        return {given}, lengths.sum().item()\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(("decorator", "shown"), [("", True), ('@norms("torch")\n', False)])
def test_a_class_that_is_chosen_by_name_beside_the_fused_one(
    tmp_path: Path, decorator: str, *, shown: bool
) -> None:
    norm = (
        "import torch\nfrom torch import nn\nfrom lib import norms\n\n\n{}class {}(nn.Module):\n"
        "    def __init__(self, n):\n        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(n))\n\n"
        "    def forward(self, x: torch.Tensor):\n"
        "        return {}\n"
    )
    written = "self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))"
    fused = "torch_npu.npu_rms_norm(x, self.weight, 1e-6)[0]"
    files = {
        "plain.py": norm.format(decorator, "Norm", written),
        "ascend.py": norm.format('@norms("npu")\n', "Other", fused),
    }
    assert bool(places(scanned(tmp_path, files))) is shown
