"""Masks that are added to scores are numbers; those that select something as well may be flags."""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("torch")

from tests.rewriters.verification.changed_programs import verdict

from npufix.rewriters.verification.inputs.source.operands import find_summed

ATTENTION = """
class Attention(torch.nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)

    def forward(self, x, attention_mask=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        if attention_mask is not None:
            scores = scores + attention_mask
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)
"""
SCORES = ATTENTION[ATTENTION.index("        scores = q") : ATTENTION.index("        return")]
FUSED = "F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)"


def test_flags_are_not_added_to_scores() -> None:
    fused = (SCORES, ""), ("(scores.softmax(-1) @ v)", FUSED)
    assert verdict(ATTENTION, *fused).status == "equivalent"


def test_a_mask_that_is_added_twice_is_refuted() -> None:
    wrong = FUSED.replace("attn_mask=attention_mask", "attn_mask=2 * attention_mask")
    change = (SCORES, ""), ("(scores.softmax(-1) @ v)", wrong)
    assert verdict(ATTENTION, *change).status == "refuted"


@pytest.mark.parametrize(
    ("body", "summed"),
    [
        ("return s + m", True),
        ("if m is not None:\n        s = s + m[:, None, :, : s.shape[-1]]\n    return s", True),
        ("s += m.unsqueeze(1)\n    return s", True),
        ("return s.add(m) if m.ndim == 4 else s", True),
        ("return s + ~m", False),
        ("return s + m * 2", False),
        ("return s.masked_fill(m, 0.0) + m", False),
        ("return s + m.float()", False),
        ("return s + f(m)", False),
        ("return s - m", False),
        ("return s[m]", False),
        ("return s + s[m]", False),
        ("return s + (m == 0)", False),
    ],
)
def test_only_what_is_added_alone_is_no_flag(body: str, *, summed: bool) -> None:
    function = ast.parse(f"def f(s, m):\n    {body}\n").body[0]
    assert ("m" in find_summed(function, {"m"})) is summed
