"""Modulations and gated residuals: what looks like one, and gains nothing or would fail."""

from __future__ import annotations

import pytest

from npufix.rewriters.find import find_sites
from npufix.rules.registry import all_rules
from npufix.rules.substitutions import modulated

HEADER = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def texts(body: str) -> list[str]:
    found = find_sites(HEADER + body, [modulated.RULE])
    return [site.rewrite.text if site.rewrite else site.problem for site in found]


def function(body: str, arguments: str = "x, scale, shift, gate, y") -> str:
    return f"def f({arguments}):\n    {body}\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x * (scale + 1) + shift", "torch.addcmul(shift, x, 1 + scale)"),
        ("return shift + (1.0 + scale) * x", "torch.addcmul(shift, x, 1 + scale)"),
        ("return gate[:, None] * y + x", "torch.addcmul(x, gate[:, None], y)"),
        ("return torch.add(x, torch.mul(gate, y))", "torch.addcmul(x, gate, y)"),
    ],
)
def test_any_spelling_is_found(body: str, expected: str) -> None:
    assert texts(function(body)) == [expected]


def test_a_helper_and_parts_of_a_projection_are_followed() -> None:
    body = """
def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Block(nn.Module):
    def forward(self, x, c):
        shift, scale, gate = self.mod(c).chunk(3, dim=1)
        return x + gate.unsqueeze(1) * self.attn(modulate(self.norm(x), shift, scale))
"""
    assert texts(body) == [
        "torch.addcmul(shift.unsqueeze(1), x, 1 + scale.unsqueeze(1))",
        "torch.addcmul(x, gate.unsqueeze(1), self.attn(modulate(self.norm(x), shift, scale)))",
    ]


@pytest.mark.parametrize(
    "body",
    [
        "return x * (1 - scale) + shift",
        "return x * (1 + scale) + 1",
        "return (x * (1 + scale)).float() + shift",
        "return x - gate * y",
        "return x + (gate * y).detach()",
        "return x + torch.sigmoid(gate) * y",  # not called a gate itself
        # the product is needed besides
        "scaled = x * (1 + scale); return scaled, scaled + shift",
        "p = gate * y; return x + p, p",
        "return x + gate * y, gate * y",
        # lengths and weights
        "return scale.shape[0] * (1 + scale) + 4",
        "gate_loss_weight = y; return x + gate_loss_weight * shift",
        "rows, columns = y; return rows * (1 + columns) + x",
        # numbers, masks
        "gate = 0.5; return x + gate * y",
        "gate = y.tanh() if shift else 1; return x + gate * y",
        "gate = torch.isnan(y); return x + gate * y",
        # one kernel already
        "return torch.addcmul(x, gate, y)",
        "return x.addcmul(gate, y, value=1)",
        "x.addcmul_(gate, y); return x",
        "return shift.addcmul(x, 1 + scale)",
    ],
)
def test_what_is_no_modulation_or_gains_nothing_stays(body: str) -> None:
    assert not texts(function(body))


@pytest.mark.parametrize("made", ["0.3", "settings.gate", "int(settings.gate)"])
def test_a_setting_is_no_gate(made: str) -> None:
    body = f"""
class Block(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.gate = {made}

    def forward(self, x, y):
        return x + self.gate * y
"""
    assert not texts(body)
    assert texts(body.replace(made, "nn.Parameter(torch.zeros(8))")) == [
        "torch.addcmul(x, self.gate, y)"
    ]


@pytest.mark.parametrize(
    "spelled",
    ["(x * cos).addcmul(rotated, sin)", "torch.addcmul(x * cos, rotated, sin, value=1)"],
)
def test_other_rules_read_addcmul_as_the_sum_that_it_computes(spelled: str) -> None:
    body = f"""
def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    x1, x2 = x.chunk(2, dim=-1)
    rotated = torch.cat((-x2, x1), -1)
    return {spelled}
"""
    rules = [rule for rule in all_rules() if rule.id == "NPU102"]
    (site,) = find_sites(HEADER + body, rules)
    assert site.rewrite is not None
    assert site.rewrite.text == "torch_npu.npu_rotary_mul(x, cos, sin)"
    doubled = body.replace(", value=1", "").replace("sin)\n", "sin, value=2)\n")
    assert not list(find_sites(HEADER + doubled, rules))
