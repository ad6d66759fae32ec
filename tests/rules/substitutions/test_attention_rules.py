"""The rules about attention: mistakes that their inputs refute, and variants of real code."""

# ruff: noqa: ARG001, FBT001, PLR0913, PLR0917 - a mistake has the parameters of its form
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: N812 - the field's name
from rule_checks import each_mistake, refuted

from npufix.rewriters.find import find_sites
from npufix.rules.substitution import Safety, Substitution
from npufix.rules.substitutions import (
    eager_attention,
    eager_attention_implementation,
    scaled_masked_softmax,
    sdpa_float_mask,
    sdpa_repeated_heads,
)

if TYPE_CHECKING:
    import torch_npu  # noqa: TC004 - the verifier supplies it
    from rule_checks import Mistake
    from torch import Tensor

    from npufix.rewriters.edit.site import Site

HEADER = "import math\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


# --- mistakes


def scale_forgotten(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=p if training else 0.0)


def scale_inverted(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    return F.scaled_dot_product_attention(
        q, k, v, dropout_p=p if training else 0.0, scale=divisor / scale
    )


def always_dropped(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=p, scale=scale / divisor)


def never_dropped(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=scale / divisor)


def causal(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    return F.scaled_dot_product_attention(
        q, k, v, dropout_p=p if training else 0.0, is_causal=True, scale=scale / divisor
    )


def in_float32(
    q: Tensor, k: Tensor, v: Tensor, scale: float, divisor: float, p: float, training: bool
) -> Tensor:
    return eager_attention.fused(q.float(), k.float(), v.float(), scale, divisor, p, training)


def mask_inverted(**given: Any) -> Tensor:
    return eager_attention.fused_hidden(**{**given, "hidden": ~given["hidden"]})


def mask_dropped(hidden: Tensor, value: float, mask: Any, **given: Any) -> Tensor:
    return eager_attention.fused(**given)


def mask_of_numbers(**given: Any) -> Tensor:
    return eager_attention.fused_shown(**given)


def bias_kept_as_bool(added: Tensor, mask: Any, **given: Any) -> Tensor:
    return eager_attention.fused_shown(shown=added.bool(), mask=mask, value=0.0, **given)


def float_mask_inverted(hidden: Tensor, **given: Any) -> Tensor:
    return sdpa_float_mask.not_hidden(hidden=~hidden, **given)


def heads_tiled(q: Tensor, k: Tensor, v: Tensor, n: int, mask: Any, **rest: Any) -> Tensor:
    k, v = k.repeat(1, n, 1, 1), v.repeat(1, n, 1, 1)
    return F.scaled_dot_product_attention(
        q, k, v, mask, rest["p"], rest["causal"], scale=rest["scale"]
    )


def softmax_mask_inverted(
    x: Tensor, hidden: Tensor, value: float, scale: float, divisor: float
) -> Tensor:
    return torch_npu.npu_scaled_masked_softmax(x, ~hidden, scale / divisor)


def softmax_scale_forgotten(
    x: Tensor, hidden: Tensor, value: float, scale: float, divisor: float
) -> Tensor:
    return torch_npu.npu_scaled_masked_softmax(x, hidden, 1.0)


def softmax_in_float32(
    x: Tensor, hidden: Tensor, value: float, scale: float, divisor: float
) -> Tensor:
    return torch_npu.npu_scaled_masked_softmax(x, hidden, scale / divisor).float()


PLAIN = (eager_attention.unmasked, eager_attention.operands)
HIDDEN = (eager_attention.named_hidden, eager_attention.hidden_inputs)
SOFTMAX = (scaled_masked_softmax.filled, scaled_masked_softmax.inputs)
MISTAKES = [
    (*PLAIN, scale_forgotten),
    (*PLAIN, scale_inverted),
    (*PLAIN, always_dropped),
    (*PLAIN, never_dropped),
    (*PLAIN, causal),
    (*PLAIN, in_float32),
    (*HIDDEN, mask_inverted),
    (*HIDDEN, mask_dropped),
    (eager_attention.zeros_hidden, eager_attention.number_inputs, mask_of_numbers),
    (eager_attention.added_to_scores, eager_attention.added_inputs, bias_kept_as_bool),
    (sdpa_float_mask.filled_where_hidden, sdpa_float_mask.hidden_inputs, float_mask_inverted),
    (sdpa_repeated_heads.repeated, sdpa_repeated_heads.inputs, heads_tiled),
    (*SOFTMAX, softmax_mask_inverted),
    (*SOFTMAX, softmax_scale_forgotten),
    (*SOFTMAX, softmax_in_float32),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_refuted(mistake: Mistake) -> None:
    refuted(*mistake)


# --- variants


def sites_of(text: str, rule: Substitution = eager_attention.RULE) -> list[Site]:
    return list(find_sites(HEADER + text, [rule]))


def the_site(text: str, rule: Substitution = eager_attention.RULE) -> Site:
    (site,) = sites_of(text, rule)
    return site


def opened(site: Site) -> set[str]:
    return {condition.name for condition in site.open_conditions}


MATCHED = {
    "no scale": ("(q @ k.mT).softmax(-1) @ v", "scale=1.0"),
    "scale first": ("((q * s) @ k.transpose(-1, -2)).softmax(-1) @ v", "q * s, k, v, scale=1.0"),
    "divided by a root": ("(q @ k.mT / s ** 0.5).softmax(-1) @ v", "scale=s ** (-0.5)"),
    "nn.Softmax": ("nn.Softmax(dim=-1)(q @ k.mT / s) @ v", "scale=1.0 / s"),
    "permuted": ("(q @ k.permute(0, 1, 3, 2) / s).softmax(-1) @ v", "scale=1.0 / s"),
    "in float32": ("F.softmax(q @ k.mT / s, -1, dtype=torch.float32).to(q.dtype) @ v", "1.0 / s"),
    "where": ("torch.where(m, q @ k.mT * s, -1e9).softmax(-1) @ v", "attn_mask=m, scale=s"),
    "not": ("(q @ k.mT * s).masked_fill(~m, -1e9).softmax(-1) @ v", "attn_mask=m, scale=s"),
    "bool": ("(q @ k.mT * s).masked_fill(m, -1e9).softmax(-1) @ v", "attn_mask=~m, scale=s"),
    "if given": (
        "(q @ k.mT * s if m is None else (q @ k.mT * s).masked_fill(m == 0, -1e9)).softmax(-1) @ v",
        None,
    ),
}


@pytest.mark.parametrize("name", MATCHED)
def test_a_spelling(name: str) -> None:
    expression, wanted = MATCHED[name]
    found = sites_of(f"def f(q, k, v, m, s: float):\n    return {expression}\n")
    assert bool(found) == (wanted is not None)
    if wanted is not None:
        assert found[0].rewrite is not None
        assert wanted in found[0].rewrite.text


def test_dropout_of_a_submodule_follows_its_mode() -> None:
    site = the_site("""
class A(nn.Module):
    def __init__(self, p, scale: float):
        super().__init__()
        self.drop = nn.Dropout(p)
        self.scale = scale

    def forward(self, q, k, v):
        b, h, n, d = q.shape
        return self.drop((q @ k.mT * self.scale).softmax(-1)) @ v
""")
    assert site.rewrite is not None
    assert "dropout_p=self.drop.p if self.drop.training else 0.0" in site.rewrite.text
    assert opened(site) == {"same-heads", "other-random-numbers"}


@pytest.mark.parametrize(
    "dropped",
    ["F.dropout(w, 0.0)", "F.dropout(w, 0.1, False)", "torch.dropout(w, 0.1, train=False)", "w"],
)  # fmt: skip
def test_weights_that_are_never_dropped_need_no_random_numbers(dropped: str) -> None:
    site = the_site(f"""
def f(qkv):
    q, k, v = qkv.view(2, 8, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
    w = (q @ k.mT * 0.25).softmax(-1)
    return {dropped} @ v
""")
    assert site.safety is Safety.SAFE


@pytest.mark.parametrize("write", ["m[:, 0] = 0", "m.mul_(0)"])
def test_a_mask_that_is_written_to_proves_nothing(write: str) -> None:
    code = """
def f(qkv, n):
    q, k, v = qkv.view(2, 8, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
    m = torch.tril(torch.ones(n, n))
    {}
    return (q @ k.mT * 0.25).masked_fill(m == 0, float("-inf")).softmax(-1) @ v
"""
    assert "no-fully-masked-row" in opened(the_site(code.format(write)))
    assert "no-fully-masked-row" not in opened(the_site(code.format("pass")))


def test_a_bias_that_is_written_into_a_mask_is_a_question() -> None:
    code = """
def f(qkv, hidden, slopes, n: int):
    q, k, v = qkv.view(2, 8, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
    mask = torch.zeros(n, n).masked_fill(hidden, float("-inf"))
    {}
    return (q @ k.mT * 0.25 + mask).softmax(-1) @ v
"""
    assert "mask-is-boolean" in opened(the_site(code.format("mask[:, 1] = 0.5")))
    assert "mask-is-boolean" not in opened(the_site(code.format("pass")))


def test_heads_of_one_projection_agree() -> None:
    site = the_site("""
def f(qkv):
    q, k, v = qkv.view(2, 8, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
    return (q @ k.mT * 0.25).softmax(-1) @ v
""")
    assert site.safety is Safety.SAFE


def test_a_causal_buffer_leaves_a_key_and_one_of_padding_may_not() -> None:
    body = """
class A(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("seen", {})

    def forward(self, q, k, v):
        b, h, n, d = q.shape
        scores = (q @ k.mT * 0.25).masked_fill(self.seen[:n, :n] == 0, float("-inf"))
        return scores.softmax(-1) @ v
"""
    name = "no-fully-masked-row"
    assert name not in opened(the_site(body.format("torch.tril(torch.ones(n, n))")))
    assert name in opened(the_site(body.format("torch.tril(torch.ones(n, n), -1)")))
    assert name in opened(the_site(body.format("torch.triu(torch.ones(n, n))")))
    assert name in opened(the_site(body.format("torch.rand(n, n) < 0.5")))


@pytest.mark.parametrize("name", ["position_bias", "alibi", "rel_pos", "relative_position_bias"])
def test_a_bias_is_no_mask(name: str) -> None:
    assert not sites_of(
        f"def f(q, k, v, {name}):\n    return (q @ k.mT * 0.1 + {name}).softmax(-1) @ v\n"
    )


def test_an_added_mask_is_a_matter_of_its_values() -> None:
    site = the_site(
        "def f(q, k, v, attention_mask):\n"
        "    return (q @ k.mT * 0.1 + attention_mask).softmax(-1) @ v\n"
    )
    assert {"mask-is-boolean", "no-fully-masked-row"} <= opened(site)
    assert site.rewrite is not None
    assert "attn_mask=attention_mask == 0" in site.rewrite.text


@pytest.mark.parametrize(
    "body",
    [
        "    w = (q @ k.mT * 0.1).softmax(-1)\n    self.weights = w\n    return w @ v\n",
        "    w = (q @ k.mT * 0.1).softmax(-1)\n    return w @ v, w\n",
        "    w = (q @ k.mT * 0.1).softmax(-1)\n    print(w.mean())\n    return w @ v\n",
    ],
)
def test_weights_that_are_needed_keep_the_code(body: str) -> None:
    found = sites_of(f"class A(nn.Module):\n  def f(self, q, k, v):\n{body}")
    assert all(site.rewrite is None for site in found)


def test_in_float32_for_the_product_alone_is_a_matter_of_dtype() -> None:
    site = the_site("""
def f(q, k, v):
    b, h, n, d = q.shape
    return (q.float() @ k.float().mT * 0.1).softmax(-1) @ v
""")
    assert "same-dtype" in opened(site)


def test_transformers_is_told_which_implementation_to_take() -> None:
    text = """
def eager_attention_forward(module, query, key, value, attention_mask, scaling: float):
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask[:, :, :, : key.shape[-2]]
    weights = nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    output = torch.matmul(weights, value)
    return output.transpose(1, 2).contiguous(), weights
"""
    site = the_site(text, eager_attention_implementation.RULE)
    assert 'attn_implementation="sdpa"' in site.rule.advice
    assert site.rewrite is None
    assert not sites_of(text)
