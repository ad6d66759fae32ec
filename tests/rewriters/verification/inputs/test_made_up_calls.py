"""Calls that are made up from how the code uses its arguments: the right change is proven."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

CASES = {
    "matrices that views end in, wider ones that columns are read of": (
        """
def f(pose, rots, grid):
    b, n, _, _ = pose.shape
    points = grid - pose[:, :, :3, 3].view(b, n, 1, 1, 1, 3)
    return rots.view(b, n, 1, 1, 1, 3, 3).matmul(points.unsqueeze(-1))
""",
        "rots.view(b, n, 1, 1, 1, 3, 3).matmul(points.unsqueeze(-1))",
        "(rots.view(b, n, 1, 1, 1, 3, 3) @ points.unsqueeze(-1))",
    ),
    "masks of vectors beside other tensors": (
        "def f(rows, shown):\n    return rows[shown > 0, :4] * 2.0\n",
        "rows[shown > 0, :4] * 2.0",
        "2.0 * rows[shown > 0, :4]",
    ),
    "weights, and numbers that an optimizer takes": (
        """
def f(held, speed):
    optimizer = torch.optim.AdamW(held, lr=speed)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return [optimizer], {"rates": rates}
""",
        "lr=speed",
        "lr=speed, fused=True",
    ),
    "a layer that __init__ makes of constants": (
        """
from missing import Base, build

class Block(Base):
    def __init__(self, width):
        super().__init__()
        self.layer = build(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.layer(x) + x)
""",
        "self.act(self.layer(x) + x)",
        "F.relu(self.layer(x) + x)",
    ),
}
HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"


def verdict(text: str, old: str, new: str, name: str = "f", **given: tuple[str, ...]) -> str:
    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.judge.verify_function import verify_function

    original = HEAD + text
    assert old in original
    line = original[: original.index(old)].count("\n") + 1
    patched = original.replace(old, new)
    asked = Job("/user/m.py", "/user", original, patched, name, (line,), (line,), **given)
    found = verify_function(asked).verdict
    return f"{found.status.value} {found.reason}".strip()


@pytest.mark.parametrize("case", CASES)
def test_calls_are_found_that_fit(case: str) -> None:
    text, old, new = CASES[case]
    name = "Block.forward" if "class Block" in text else "f"
    assert verdict(text, old, new, name) == "equivalent"


def test_another_setting_of_an_optimizer_is_seen_beside_its_schedule() -> None:
    text, old, _ = CASES["weights, and numbers that an optimizer takes"]
    assert verdict(text, old, "lr=speed, betas=(0.8, 0.999)").startswith("refuted")
    assert verdict(text, "StepLR(optimizer, 3)", "StepLR(optimizer, 2)").startswith("refuted")


def test_a_layer_of_another_kind_is_no_relu() -> None:
    text, old, new = CASES["a layer that __init__ makes of constants"]
    assert verdict(text.replace("nn.ReLU(", "nn.SiLU("), old, new, "Block.forward")[:7] == "refuted"


@pytest.mark.parametrize("vouched", [(), ("single-precision",)])
def test_halves_that_are_ruled_out_are_not_tried(vouched: tuple[str, ...]) -> None:
    text = "from torch import autocast\n\ndef f(a, b):\n    return torch.bmm(a, b)\n"
    new = "(a.unsqueeze(-1) * b.unsqueeze(1)).sum(2)"
    found = verdict(text, "torch.bmm(a, b)", new, vouched=vouched)
    assert found == "equivalent" if vouched else "bfloat16" in found
