"""Rotary embeddings, gated units and activations: other ways to write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npufix.rewriters.find import find_sites
from npufix.rules.substitutions import (
    eager_geglu,
    eager_rotary_embedding,
    eager_swiglu,
    written_out_silu,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.site import Site

HEADER = "import math\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
RULES = [
    module.RULE for module in (eager_rotary_embedding, eager_swiglu, eager_geglu, written_out_silu)
]


def sites(body: str) -> list[Site]:
    return list(find_sites(HEADER + body, RULES))


def texts(body: str) -> Iterator[str]:
    for site in sites(body):
        assert site.rewrite is not None, site.problem
        yield site.rewrite.text.replace("'", '"')


HALF = "torch_npu.npu_rotary_mul(x, cos, sin)"
PAIRS = 'torch_npu.npu_rotary_mul(x, cos, sin, rotary_mode="interleave")'
STACKED = "torch.stack((-x2, x1), -1).flatten(-2)"
ROTATIONS = [
    ("x1, x2 = torch.split(x, x.shape[-1] // 2, dim=-1)", "torch.cat([-x2, x1], -1)", HALF),
    ("n = x.size(-1) // 2\n    x1, x2 = x.split([n, n], -1)", "torch.cat((-x2, x1), -1)", HALF),
    ("x1, x2 = torch.chunk(x, 2, -1)", "torch.cat((x2.neg(), x1), dim=x1.ndim - 1)", HALF),
    ("n = int(x.shape[-1] / 2)", "torch.cat((-x[..., n:], x[..., :n]), dim=-1)", HALF),
    ("b, s, h, d = x.shape", "torch.cat((-x[:, :, :, d // 2:], x[:, :, :, :d // 2]), 3)", None),
    ("b, s, h, d = x.shape", "torch.cat((-x[:, :, :, d // 2:], x[:, :, :, :d // 2]), -1)", HALF),
    ("x1, x2 = x.unflatten(-1, (2, -1)).unbind(-2)", "torch.cat((-x2, x1), -1)", HALF),
    ("n = x.shape[-1] // 4", "torch.cat((-x[..., n:], x[..., :n]), dim=-1)", None),
    ("x1, x2 = x.chunk(2, dim=1)", "torch.cat((-x2, x1), dim=-1)", None),
    ("x1, x2 = x.unflatten(-1, (-1, 2)).unbind(-1)", "torch.cat((-x2, x1), dim=-1)", None),
    (
        "x1, x2 = x.unflatten(-1, (2, -1)).unbind(-2)",
        "torch.stack((-x2, x1), -1).flatten(-2)",
        None,
    ),
    (
        "x1, x2 = x.unflatten(-1, (-1, 2)).unbind(-1)",
        "torch.stack((-x2, x1), -1).flatten(-2)",
        PAIRS,
    ),
    ("x1, x2 = x[..., 0::2], x[..., 1::2]", "torch.stack((-x2, x1), -1).reshape(x.shape)", PAIRS),
    ("x1, x2 = x[..., ::2], x[..., 1::2]", "torch.stack([-x2, x1], dim=-1).view_as(x)", PAIRS),
    (
        "y = x.view(x.shape[:-1] + (-1, 2))",
        "torch.stack((-y[..., 1], y[..., 0]), -1).flatten(-2)",
        PAIRS,
    ),
    ("x1, x2 = x[..., ::2], x[..., 1::2]", "torch.stack((-x2, x1), dim=-2).flatten(-2)", None),
    ("x1, x2 = x[..., ::2], x[..., 1::2]", "torch.stack((-x1, x2), dim=-1).flatten(-2)", None),
    ("x1, x2 = x[..., 1::2], x[..., ::2]", "torch.stack((-x2, x1), dim=-1).flatten(-2)", None),
    ("x1, x2 = sin.chunk(2, dim=-1)", "torch.cat((-x2, x1), dim=-1)", None),
    ("x1, x2 = x.chunk(2, dim=-1)", "torch.cat((-x1, x2), dim=-1)", None),
    ("x1, x2 = x[..., ::2], x[..., 1::3]", "torch.stack((-x2, x1), dim=-1).flatten(-2)", None),
]


@pytest.mark.parametrize(("before", "rotated", "wanted"), ROTATIONS)
def test_the_layout_follows_from_what_is_executed(
    before: str, rotated: str, wanted: str | None
) -> None:
    body = f"def f(x, cos, sin):\n    {before}\n    return x * cos + {rotated} * sin\n"
    assert list(texts(body)) == ([] if wanted is None else [wanted])


def test_an_exchange_read_with_einops_is_an_exchange() -> None:
    body = """
from einops import rearrange


def rotate_half(x):
    x = rearrange(x, "... (d r) -> ... d r", r=2)
    x1, x2 = x.unbind(dim=-1)
    x = torch.stack((-x2, x1), dim=-1)
    return rearrange(x, "... d r -> ... (d r)")


def f(x, cos, sin):
    return x * cos + rotate_half(x) * sin
"""
    assert list(texts(body)) == [PAIRS]
    assert list(texts(body.replace("(d r)", "(r d)"))) == []


def test_query_and_key_are_two_sites() -> None:
    body = """
def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply(q, k, cos, sin):
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)
"""
    assert list(texts(body)) == [HALF.replace("x,", "q,"), HALF.replace("x,", "k,")]


def test_deinterleaved_halves_stay_halves() -> None:
    """DeepSeek: what is rotated is the reordered query, and its order is not restored."""
    body = """
def apply(q, cos, sin):
    b, h, s, d = q.shape
    q = q.view(b, h, s, d // 2, 2).transpose(4, 3).reshape(b, h, s, d)
    q1, q2 = q[..., : q.shape[-1] // 2], q[..., q.shape[-1] // 2 :]
    return q * cos + torch.cat((-q2, q1), dim=-1) * sin
"""
    assert list(texts(body)) == [HALF.replace("x,", "q,")]


BOTH = {"rotary-limits", "cosines-within-one"}
CONDITIONS = [
    ("x, cos.to(x.dtype), sin.to(x.dtype)", {"rotary-limits", "cosines-within-one"}),
    ("x, cos, sin.to(x.dtype)", {"same-dtype", "rotary-limits", "cosines-within-one"}),
    (
        "x.float(), cos.float()[:, None], sin.float()[:, None]",
        {"rotary-limits", "cosines-within-one"},
    ),
    ("x, cos.float(), sin.float()", BOTH),
    ("x, a.cos(), a.sin()", {"same-dtype", "rotary-limits"}),
    ("x, torch.cat((a, a), -1).cos().to(x.dtype), a.sin().to(x.dtype)", {"rotary-limits"}),
    ("x, 1.2 * a.cos(), 1.2 * a.sin()", {"same-dtype", *BOTH}),
]


@pytest.mark.parametrize(("arguments", "wanted"), CONDITIONS)
def test_what_the_source_proves_needs_no_word_of_the_user(arguments: str, wanted: set[str]) -> None:
    body = f"""
def f(x, cos, sin, a):
    x, cos, sin = {arguments}
    x1, x2 = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-x2, x1), dim=-1) * sin
"""
    (site,) = sites(body)
    assert {condition.name for condition in site.open_conditions} == wanted


def test_a_query_is_promoted_to_the_dtype_of_the_tables() -> None:
    body = """
def f(x, cos, sin):
    cos, sin = cos.float(), sin.float()
    x1, x2 = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-x2, x1), dim=-1) * sin
"""
    assert list(texts(body)) == ["torch_npu.npu_rotary_mul(x.to(cos.dtype), cos, sin)"]


def test_tables_in_float32_are_not_cast_to_the_query() -> None:
    pytest.importorskip("torch")
    from rule_checks import refuted

    rule = eager_rotary_embedding
    refuted(rule.halves, rule.promoting_inputs, rule.fused)
    refuted(rule.pairs, rule.promoting_pair_inputs, rule.fused_pairs)


LAYERS = """
class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.act_fn = {act}
        self.gate = nn.Linear(config.hidden, {width}, bias=False)
        self.up = nn.Linear(config.hidden, config.inter, bias=False)
        self.scale = nn.Parameter(torch.ones(config.inter))

    def forward(self, x, y):
        return {product}
"""
UNLIKE = {"joining-pays", "same-shape"}
SILU = 'ACT2FN["silu"]'
GATES = [
    (SILU, "config.inter", "self.act_fn(self.gate(x)) * self.up(x)", {"joining-pays"}),
    (SILU, "config.inter", "self.up(x) * self.act_fn(self.gate(x))", {"joining-pays"}),
    ("nn.SiLU()", "config.inter", "self.act_fn(self.gate(x)) * self.up(x)", {"joining-pays"}),
    (SILU, "1", "self.act_fn(self.gate(x)) * self.up(x)", UNLIKE),
    (
        SILU,
        "config.inter",
        "self.act_fn(self.gate(x)) * self.up(y)",
        UNLIKE,
    ),
    (SILU, "config.inter", "self.act_fn(self.gate(x)) * self.scale", None),
    ('ACT2FN["relu"]', "config.inter", "self.act_fn(self.gate(x)) * self.up(x)", None),
    ("nn.Tanh()", "config.inter", "self.act_fn(self.gate(x)) * self.up(x)", None),
    *(
        (act, "config.inter", "self.act_fn(self.gate(x)) * self.up(x)", wanted)
        for act, wanted in [
            ("build_act(config.act, inplace=False)", {"activation-is-silu", "joining-pays"}),
            ("build_act(config.act, inplace=True)", None),
            ("getattr(F, config.act)", {"activation-is-silu", "joining-pays"}),
            ("getattr(config, config.act)", None),
            ('{"a": nn.SiLU(), "b": nn.GELU()}[act]', {"activation-is-silu", "joining-pays"}),
            ('{"a": nn.SiLU(), "b": nn.Linear(3, 3)}[act]', None),
        ]
    ),
]


@pytest.mark.parametrize(("act", "width", "product", "wanted"), GATES)
def test_gate_and_up_must_be_alike(
    act: str, width: str, product: str, wanted: set[str] | None
) -> None:
    found = sites(LAYERS.format(act=act, width=width, product=product))
    assert len(found) == (wanted is not None)
    assert all({c.name for c in site.open_conditions} == wanted for site in found)


FORMULAS = [
    ("x.mul(x.sigmoid())", "F.silu(x)"),
    ("x / (1 + torch.exp(-x))", "F.silu(x)"),
    ("torch.sigmoid(1.702 * x) * x", "torch_npu.npu_fast_gelu(x)"),
    ("0.5 * x * (1 + torch.erf(x / math.sqrt(2)))", "torch_npu.npu_gelu(x)"),
    ("x * 0.5 * (1.0 + torch.erf(x * 0.70710678))", "torch_npu.npu_gelu(x)"),
    (
        "0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))",
        'F.gelu(x, approximate="tanh")',
    ),
    (
        "0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))",
        'F.gelu(x, approximate="tanh")',
    ),
    ("x * F.softplus(x).tanh()", "F.mish(x)"),
    ("x * torch.sigmoid(1.7 * x)", None),
    ("x / (1 + torch.exp(x))", None),
    ("0.5 * x * (1 + torch.erf(x / math.sqrt(3)))", None),
    ("x * (1 + torch.erf(x / math.sqrt(2)))", None),
    ("0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044 * x ** 3)))", None),
    ("0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x ** 2)))", None),
    ("x * torch.tanh(F.softplus(y))", None),
]


@pytest.mark.parametrize(("formula", "wanted"), FORMULAS)
def test_a_formula_is_its_activation(formula: str, wanted: str | None) -> None:
    found = list(texts(f"def f(x, y):\n    return {formula}\n"))
    assert found == ([] if wanted is None else [wanted])


def test_a_submodule_without_parameters_is_its_function() -> None:
    body = """
class Swish(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Sigmoid()

    def forward(self, x):
        return x * self.act(x)
"""
    assert list(texts(body)) == ["F.silu(x)"]


def test_a_call_of_a_helper_that_is_a_site_is_none_of_its_own() -> None:
    body = """
def gelu(x):
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def f(x):
    return gelu(x) + 1
"""
    (site,) = sites(body)
    assert site.function == "gelu"


def test_what_only_prepares_the_old_code_goes_with_it() -> None:
    body = """
def f(x, cos, sin):
    half = x.shape[-1] // 2
    x1, x2 = x[..., :half], x[..., half:]
    rotated = torch.cat((-x2, x1), dim=-1)
    cos = cos.unsqueeze(1)
    x = x * cos + rotated * sin
    return x{more}
"""
    (site,) = sites(body.format(more=""))
    assert site.rewrite is not None
    assert site.rewrite.direct.count("\n    ") == 3
    (site,) = sites(body.format(more=", half"))
    assert site.rewrite is not None
    assert "    half = x.shape[-1] // 2\n    cos" in site.rewrite.direct
    compile(site.rewrite.portable, "portable", "exec")


def test_an_activation_that_nothing_proves_is_a_word_of_the_user() -> None:
    body = LAYERS.format(
        act="ACT2FN[config.hidden_act]",
        width="config.inter",
        product="self.act_fn(self.gate(x)) * self.up(x)",
    )
    (site,) = sites(body)
    names = {condition.name for condition in site.open_conditions}
    assert names == {"activation-is-silu", "joining-pays"}
    config = "\n\nclass MLPConfig:\n    hidden_act: str = {!r}\n"
    (site,) = sites(body + config.format("silu"))
    # A checkpoint may set another one than the class does by default.
    assert {condition.name for condition in site.open_conditions} == names
    fixed = body.replace("ACT2FN[config.hidden_act]", 'ACT2FN["silu"]')
    (site,) = sites(fixed)
    assert {condition.name for condition in site.open_conditions} == {"joining-pays"}
    (site,) = sites(body + config.format("gelu"))
    assert site.rule.id == "NPU110"
    assert sites(body + config.format("relu")) == []
    (site,) = sites(body.replace("hidden_act]", "hidden_activation]"))
    assert site.rule.id == "NPU110"  # Gemma


def test_two_branches_that_share_a_product_are_two_sites() -> None:
    """The layout is chosen at run time, but both layouts are there: timm."""
    body = """
def f(x, cos, sin, half):
    if half:
        x1, x2 = x.chunk(2, dim=-1)
        out = x * cos + torch.cat((-x2, x1), dim=-1) * sin
    else:
        out = x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape) * sin
    return out
"""
    assert list(texts(body)) == [HALF, PAIRS]


def test_a_product_that_is_used_as_well_stays() -> None:
    body = """
def f(x, cos, sin):
    x1, x2 = x.chunk(2, dim=-1)
    rotated = torch.cat((-x2, x1), dim=-1)
    if sin is cos:
        return rotated
    return x * cos + rotated * sin
"""
    assert [site.rewrite for site in sites(body)] == [None]


def test_cosines_that_are_scaled_in_place_are_a_question() -> None:
    code = """
def f(x: torch.Tensor, angles: torch.Tensor, scale: float):
    cos, sin = angles.cos(), angles.sin()
    {}
    x1, x2 = x.chunk(2, -1)
    return x * cos + torch.cat((-x2, x1), -1) * sin
"""
    (scaled,) = sites(code.format("cos.mul_(scale)"))
    (plain,) = sites(code.format("pass"))
    assert "cosines-within-one" in {c.name for c in scaled.open_conditions}
    assert "cosines-within-one" not in {c.name for c in plain.open_conditions}


UNIT = """
class Unit(nn.Module):
    def __init__(self, dim, act_layer=nn.SiLU, *, activation=nn.GELU, none=None, **settings):
        super().__init__()
        self.gate = nn.Linear(dim, dim, **settings)
        self.up = nn.Linear(dim, dim, **settings)
        self.act = {made}

    def forward(self, x):
        return self.act(self.gate(x)) * self.up(x)
"""


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("act_layer()", "NPU103 activation-is-silu"),
        ("activation()", "NPU110 activation-is-gelu"),
        ("nn.SiLU()", "NPU103"),
        ("none()", ""),
        ("other()", ""),
        ("act_layer(inplace=True)", ""),
        ("act_layer(dim)", ""),
        ("nn.SiLU(**settings)", ""),
    ],
)
def test_an_activation_that_a_caller_may_exchange(made: str, found: str) -> None:
    said = [
        " ".join([s.rule.id, *(c.name for c in s.open_conditions if c.name.startswith("act"))])
        for s in sites(UNIT.replace("{made}", made))
    ]
    assert said == ([found] if found else [])


def test_an_activation_is_what_the_callers_make_of_it_in_one_place_alone() -> None:
    other = "\n\nclass Other(Unit):\n    def __init__(self):\n        self.act = nn.Tanh()\n"
    assert sites(UNIT.replace("{made}", "act_layer()") + other) == []


HANDED = """
class Glu(nn.Module):
    def __init__(self, dim, activation):
        super().__init__()
        self.act = activation
        self.both = nn.Linear(dim, 2 * dim)

    def forward(self, x):
        gate, up = self.both(x).chunk(2, dim=-1)
        return up * self.act(gate)


def build(dim, act):
    known = nn.SiLU()
    return nn.Sequential({made})
"""


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("Glu(dim, nn.SiLU())", ["NPU103"]),
        ("Glu(dim, activation=known)", ["NPU103"]),
        ("Glu(dim, nn.GELU())", ["NPU110"]),
        ("Glu(dim, nn.ReLU())", []),
        ("Glu(dim, nn.SiLU(inplace=True))", []),
        ("Glu(dim, nn.SiLU()), Glu(dim, nn.GELU())", []),
        ("Glu(dim, nn.SiLU()), Glu(dim, act)", []),
        ("Glu(*act)", []),
    ],
)
def test_an_activation_that_the_callers_of_the_file_hand_in(made: str, found: list[str]) -> None:
    """Callers of other files may hand in another one, so it is asked."""
    there = sites(HANDED.format(made=made))
    assert [site.rule.id for site in there] == found
    assert all(
        any(c.name.startswith("activation-is") for c in site.open_conditions) for site in there
    )
