"""What is done with a value behind a place proves what it is there, if the way goes on to it."""

from __future__ import annotations

import pytest

from npufix.rewriters.find import find_sites
from npufix.rules.registry import all_rules

HEADER = "import torch\nfrom torch import nn\n"
RULES = [rule for rule in all_rules() if rule.id == "NPU201"]


def open_at(body: str) -> set[str]:
    """Return what is not known of ``x[pad_mask] = 0`` where a method goes on like this."""
    text = f"""{HEADER}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 3, 1)

    def forward(self, x, pad_mask, last):
        x[pad_mask] = 0
        {body}
"""
    (site,) = find_sites(text, RULES)
    return {proof.condition.name for proof in site.proofs if proof.basis == "open"}


@pytest.mark.parametrize(
    "body",
    [
        "return x.unsqueeze(1)",
        "return self.conv(x)",
        "y = x.view(-1, 3)\n        if last:\n            return y\n        return y + 1",
        "y = (x > 0).float()\n        return y",
    ],
)
def test_what_only_tensors_have_proves_a_tensor_in_front_of_it(body: str) -> None:
    assert "is-tensor" not in open_at(body)


@pytest.mark.parametrize(
    "body",
    [
        "if last:\n            return x\n        return x.unsqueeze(1)",
        "if last:\n            x = x.unsqueeze(1)\n        return x",
        "try:\n            x = x.unsqueeze(1)\n        except AttributeError:\n            pass",
        "return [x.unsqueeze(1) for _ in range(last)]",
        "return x.view(last)",
        "return torch.stack(x, 0)",  # of a list
    ],
)
def test_what_may_not_be_reached_proves_nothing(body: str) -> None:
    assert "is-tensor" in open_at(body)


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ("return x.masked_fill(~pad_mask[..., None], 1.0)", True),
        ("return torch.masked_select(x, pad_mask)", True),
        ("return x.masked_fill(pad_mask.bool(), 1.0)", False),
        ("return torch.where(pad_mask, x, 1.0)", False),  # which takes bytes as well
    ],
)
def test_what_takes_bools_alone_proves_a_mask(body: str, *, known: bool) -> None:
    assert ("boolean-mask" not in open_at(body)) is known


@pytest.mark.parametrize(
    ("lines", "known"),
    [
        ("y = (n - x) ** 2\n        y[x > n] = 0", True),
        ("y = (x.sum(-1) - n) * x\n        y[(x > 3) & (n > x)] = 0", True),
        ("y = (m - x) ** 2\n        y[x > n] = 0", False),
        ("y = (n - x) ** 2\n        torch.exp(m, out=m)\n        y[x > n] = 0", True),
        ("y = (n - x) ** 2\n        torch.exp(m, out=x)\n        y[x > n] = 0", False),
    ],
)
def test_what_is_computed_with_the_same_has_as_many_dimensions(lines: str, *, known: bool) -> None:
    text = f"""{HEADER}
class Net(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor, m: torch.Tensor):
        {lines}
        return y
"""
    (site,) = find_sites(text, RULES)
    assert (site.safety == "safe") is known


@pytest.mark.parametrize(
    ("loop", "known"),
    [("row in x", True), ("i, row in enumerate(x)", True), ("row in rows", False)],
)
def test_a_row_of_a_tensor_is_one(loop: str, *, known: bool) -> None:
    text = f"""{HEADER}
class Net(nn.Module):
    def forward(self, x: torch.Tensor, rows):
        for {loop}:
            row[row < 0] = 0
        return x
"""
    (site,) = find_sites(text, RULES)
    assert ("is-tensor" not in {c.name for c in site.open_conditions}) is known
