"""Norms: which code of the field is changed, by which rule, and which is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kernel_chains import ADDED, chain, kernel, seen, the
from kernel_chains import NORM as NORMED

from npufix.rewriters.find import find_sites
from npufix.rules.diagnostics import add_rms_norm_across_modules
from npufix.rules.substitution import Safety
from npufix.rules.substitutions import (
    add_layer_norm,
    add_rms_norm,
    cast_layer_norm_cast,
    dropout_add_layer_norm,
    dropout_add_rms_norm,
    eager_rms_norm,
    gemma_rms_norm,
    group_norm_silu,
    rms_norm_without_weight,
    written_out_layer_norm,
)

if TYPE_CHECKING:
    from npufix.rewriters.edit.site import Site

RULES = (
    rms_norm_without_weight.RULE,
    written_out_layer_norm.RULE,
    eager_rms_norm.RULE,
    dropout_add_layer_norm.RULE,
    add_rms_norm.RULE,
    gemma_rms_norm.RULE,
    add_layer_norm.RULE,
    group_norm_silu.RULE,
    cast_layer_norm_cast.RULE,
    dropout_add_rms_norm.RULE,
)
HEADER = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def sites(code: str) -> list[Site]:
    return list(find_sites(HEADER + code, RULES))


def the_site(code: str) -> Site:
    (site,) = sites(code)
    return site


def text_of(code: str) -> str:
    rewrite = the_site(code).rewrite
    assert rewrite is not None
    return rewrite.text


# --- spellings of RMSNorm

NORM = """
class Norm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
"""


def norm(*lines: str) -> str:
    return NORM + "".join(f"        {line}\n" for line in lines)


LLAMA = "torch_npu.npu_rms_norm(x, self.weight, epsilon=self.eps)[0]"
GEMMA_TEXT = "torch_npu.npu_rms_norm(x, 1.0 + self.weight.float(), epsilon=self.eps)[0]"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (("h = x.float()", "h = h / (h.square().mean(-1, True) + self.eps).sqrt()",
          "return h.type_as(x) * self.weight"), LLAMA),
        (("h = x.to(torch.float32)", "h *= 1", "return h"), ""),
        (("h = x.float()", "s = (torch.mean(h * h, dim=-1, keepdim=True) + self.eps) ** -0.5",
          "return (self.weight * h * s).to(x.dtype)"), LLAMA),
        (("v = torch.mean(torch.square(x), axis=-1, keepdims=True)",
          "return x * (torch.rsqrt(v + self.eps) * self.weight)"), LLAMA),
        (("s = torch.reciprocal(torch.sqrt(x.pow(2).mean((-1,), keepdim=True).add(self.eps)))",
          "return torch.mul(self.weight, x * s)"), LLAMA),
        (("h = x.float()", "h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)",
          "return (h * (self.weight.float() + 1)).to(x.dtype)"), GEMMA_TEXT),
        (("h = x.float()", "h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)",
          "return (h * (1 + self.weight)).type_as(x)"), GEMMA_TEXT),
        (("h = x.float()", "h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)",
          "return h.type_as(x) * (1 + self.weight)"),
         "torch_npu.npu_rms_norm(x, 1 + self.weight, epsilon=self.eps)[0]"),
        (("h = x.float()", "h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)",
          "return (h * (1.0 - self.weight.float())).type_as(x)"),
         "torch_npu.npu_rms_norm(x, 1.0 - self.weight.float(), epsilon=self.eps)[0]"),
        # the result stays in float32
        (("h = x.float()", "h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)",
          "return self.weight * h"),
         "torch_npu.npu_rms_norm(h, self.weight, epsilon=self.eps)[0]"),
        (("return F.rms_norm(x, self.weight.shape, self.weight, 1e-6)",),
         "torch_npu.npu_rms_norm(x, self.weight, epsilon=1e-6)[0]"),
    ],
)  # fmt: skip
def test_spellings_of_one_norm(lines: tuple[str, ...], text: str) -> None:
    assert [s.rewrite and s.rewrite.text for s in sites(norm(*lines))] == ([text] if text else [])


@pytest.mark.parametrize(
    "lines",
    [
        ("return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)",),
        ("return self.weight * (x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + self.eps))",),
        ("return self.weight * (x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + self.eps))",),
        ("return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1) + self.eps))",),
        ("return self.weight * (x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + self.eps))",),
        ("return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * self.weight",),
    ],
)  # fmt: skip
def test_what_is_no_rms_norm_with_a_weight(lines: tuple[str, ...]) -> None:
    assert not [s for s in sites(norm(*lines)) if s.rule.id not in {"NPU166", "NPU168"}]


def test_a_bias_stays_outside() -> None:
    code = norm(
        "h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)",
        "return self.weight * h + self.bias",
    )
    rewrite = the_site(code).rewrite
    assert rewrite is not None
    assert rewrite.text == LLAMA
    assert "+ self.bias" in rewrite.direct


def test_an_eps_that_may_be_none_is_a_question() -> None:
    code = norm("return F.rms_norm(x, self.weight.shape, self.weight, self.eps)")
    assert [c.name for c in the_site(code).open_conditions] == ["number-eps", "same-dtype"]


def test_a_dimension_from_the_constructor_is_a_question() -> None:
    code = norm(
        "h = x.float()",
        "h = h * torch.rsqrt(h.pow(2).mean(self.dim, keepdim=True) + self.eps)",
        "return (h * self.weight.float()).to(x.dtype)",
    )
    assert [c.name for c in the_site(code).open_conditions] == ["last-dimension"]


# --- which rule speaks

SUM_CODE = """
{decorator}
def f(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float):
    h = x + residual
    return weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps))
"""


@pytest.mark.parametrize(
    ("decorator", "rule"),
    [
        ("", "NPU101"),
        ("@torch.no_grad()", "NPU107"),
        ("@torch.inference_mode()", "NPU107"),
        ("@torch.enable_grad()", "NPU101"),
    ],
)
def test_operators_without_gradient_only_where_none_is_needed(decorator: str, rule: str) -> None:
    assert the_site(SUM_CODE.format(decorator=decorator)).rule.id == rule


def test_a_context_without_gradients_counts_as_well() -> None:
    code = norm(
        "with torch.no_grad():",
        "    h = x.float()",
        "    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)",
        "    return (h * (1.0 + self.weight.float())).type_as(x)",
    )
    assert the_site(code).rule is gemma_rms_norm.RULE


POST_NORM = """
class Layer(nn.Module):
    def __init__(self, dim, p, steps):
        super().__init__()
        self.norm = nn.LayerNorm({shape})
        self.dropout = nn.Dropout(p)
        self.p = p

    def forward(self, x, residual):
        return {value}
"""


def layer(value: str, shape: str = "dim") -> str:
    return POST_NORM.format(value=value, shape=shape)


def test_dropout_is_part_of_the_fusion_where_there_is_one() -> None:
    assert the_site(layer("self.norm(residual + self.dropout(x))")).rule.id == "NPU106"
    assert the_site(layer("self.norm(residual + x)")).rule.id == "NPU109"
    mixed = text_of(layer("self.norm(F.dropout(x, self.p, self.training) + residual)"))
    assert "self.p if self.training else 0.0, self.norm.eps)" in mixed


@pytest.mark.parametrize(
    ("shape", "conditions"),
    [
        ("dim", []),
        ("(dim,)", []),
        ("256", []),
        ("steps", ["norm-over-last-dimension"]),
        ("dim, elementwise_affine=p", ["norm-has-weight"]),
    ],
)
def test_what_the_constructor_of_a_norm_proves(shape: str, conditions: list[str]) -> None:
    site = the_site(layer("self.norm(self.dropout(x) + residual)", shape))
    assert site.safety is Safety.CONDITIONAL
    assert [c.name for c in site.open_conditions if c.name.startswith("norm-")] == conditions


@pytest.mark.parametrize("shape", ["(steps, dim)", "[steps, dim]", "dim, elementwise_affine=False"])
def test_norms_that_mindspeed_does_not_compute(shape: str) -> None:
    found = sites(layer("self.norm(self.dropout(x) + residual)", shape))
    assert dropout_add_layer_norm.RULE not in [site.rule for site in found]


@pytest.mark.parametrize(
    "value",
    [
        "self.dropout(self.norm(x + 1))",
        "residual + self.dropout(self.norm(x))",
        "self.norm(self.dropout(x) - residual)",
        "self.norm(self.dropout(x) * residual)",
    ],
)
def test_other_orders_of_dropout_and_norm(value: str) -> None:
    assert sites(layer(value)) == []


def test_positions_are_broadcast() -> None:
    code = """
class Embeddings(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.positions = nn.Embedding(512, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size)

    def forward(self, words, ids):
        return self.norm(words + self.positions(ids))
"""
    assert sites(code) == []


# --- advice with evidence from the dump


def test_additions_before_norms_are_told_in_inference() -> None:
    found = the(seen(add_rms_norm_across_modules.RULE, chain(ADDED, NORMED, times=4)))
    assert "npu_add_rms_norm" in found.what
    assert found.saving_ns == (0, 400_000)  # the four additions


def test_nothing_is_said_in_training() -> None:
    rows = chain(ADDED, NORMED, kernel("RmsNormGrad"), times=4)
    assert seen(add_rms_norm_across_modules.RULE, rows) == []


def test_the_norm_must_be_of_the_sum() -> None:
    rows = chain(kernel("Add", "8,16;8,16", "8,16"), kernel("RmsNorm", "2,4;4", "2,4;2"), times=4)
    assert seen(add_rms_norm_across_modules.RULE, rows) == []


@pytest.mark.parametrize("name", ["drop", "dropout", "do"])
def test_the_name_of_the_dropout_does_not_matter(name: str) -> None:
    site = the_site(f"""
class AddNorm(nn.Module):
    def __init__(self, dim, p):
        super().__init__()
        self.{name} = nn.Dropout(p)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, y):
        return self.norm(self.{name}(y) + x)
""")
    assert site.rule is dropout_add_layer_norm.RULE


@pytest.mark.parametrize("shape", ["(4, dim)", "[4, dim]"])
def test_a_norm_over_two_dimensions_stays(shape: str) -> None:
    code = f"""
class AddNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm({shape})

    def forward(self, x, y):
        return self.norm(x + y)
"""
    assert sites(code) == []
    (site,) = sites(code.replace(shape, "dim"))
    assert site.rule is add_layer_norm.RULE


def test_gradients_are_not_given_up_for_a_rule_that_matches_as_much() -> None:
    """Gemma: the operator for inference is no wider than the one that has a gradient."""
    site = the_site(
        norm(
            "h = x.float()",
            "h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)",
            "return (h * (1.0 + self.weight.float())).type_as(x)",
        )
    )
    assert site.rule is eager_rms_norm.RULE
    assert site.safety is Safety.SAFE


WITHOUT_VECTOR_WEIGHT = [
    (
        """
def f(x, weight: torch.Tensor, eps: float):
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return weight * ((x - mean) / torch.sqrt(variance + eps))
""",
        "NPU166",
    ),
    (
        """
class GroupedNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        groups = x.view(*x.shape[:-1], 4, -1)
        groups = groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * groups.view(*x.shape)
""",
        "NPU168",
    ),
    (
        """
class Norm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self.weight * self._norm(x)


class ClippedNorm(Norm):
    def _norm(self, x):
        return x.clamp(-1, 1)
""",
        "NPU168",
    ),
    (
        """
def norm(x: torch.Tensor, weight: torch.Tensor, eps: float):
    x = weight * x
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
""",
        "NPU168",
    ),
]
"""No RMSNorm with a weight for each element of the last dimension, but a kernel of another rule."""

BRANCHES = {
    "an optional weight": """
if self.weight is not None:
    h = h * self.weight
return h
""",
    "an optional offset": """
if self.shifted:
    return self.weight * h + self.bias
return self.weight * h
""",
    "an offset of the weight": """
h = h * (1 + self.weight) if self.one_more else h * self.weight
return h
""",
    "a result besides": """
return self.weight * h, h
""",
}


@pytest.mark.parametrize("name", BRANCHES)
def test_what_only_some_branches_scale_is_normalised_without_a_weight(name: str) -> None:
    rows = "h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)"
    code = norm(rows, *BRANCHES[name].strip().splitlines())
    fused = [(s.rule.id, s.rewrite.text) for s in sites(code) if s.rewrite and not s.problem]
    assert [rule for rule, _ in fused] == ["NPU168"]
    assert "x.new_ones(x.shape[-1])" in fused[0][1]


@pytest.mark.parametrize(("code", "rule"), WITHOUT_VECTOR_WEIGHT)
def test_norms_without_a_vector_of_weights_are_fused_as_far_as_they_go(
    code: str, rule: str
) -> None:
    assert the_site(code).rule.id == rule
