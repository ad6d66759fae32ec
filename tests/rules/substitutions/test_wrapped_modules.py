"""Dropouts and norms that a package wraps: read where it is certain what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npufix.rewriters.find import find_sites
from npufix.rules.substitutions import dropout_add_layer_norm, eager_rms_norm

if TYPE_CHECKING:
    from npufix.rewriters.edit.site import Site

HEADER = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
DROPOUT = """
class OwnDropout(nn.Module):
    def __init__(self, p, module_name=None):
        super().__init__()
        self.p = p
        self.always = False

    def forward(self, x, inplace: bool = False):
        if self.p > 0 and (self.training or self.always):
            return F.dropout(x, p=self.p, training=True, inplace=inplace)
        else:
            return x
"""
FACTORY = """
def LayerNorm(normalized_shape, eps=1e-5, elementwise_affine=True, export=False):
    if not export and has_fused_layernorm:
        return FusedLayerNorm(normalized_shape, eps, elementwise_affine)
    return nn.LayerNorm(normalized_shape, eps, elementwise_affine)
"""
LAYER = """
class AddNorm(nn.Module):
    def __init__(self, dim, p):
        super().__init__()
        self.dropout = OwnDropout(p, module_name="AddNorm")
        self.norm = LayerNorm(dim)

    def forward(self, x, residual):
        x = self.dropout(x)
        return self.norm(x + residual)
"""
TEXT = (
    "npu_dropout_add_layer_norm(x, residual, self.norm.weight, self.norm.bias, "
    "self.dropout.p if self.dropout.training or self.dropout.always else 0.0, self.norm.eps)"
)


def sites(code: str, modules: dict[str, str] | None = None) -> list[Site]:
    """Return what the rule about dropout, addition and norm finds."""
    known = {name: HEADER + text for name, text in (modules or {}).items()}
    return list(find_sites(HEADER + code, [dropout_add_layer_norm.RULE], neighbour=known.get))


def texts(code: str, modules: dict[str, str] | None = None) -> list[str]:
    return [site.rewrite.text for site in sites(code, modules) if site.rewrite]


def test_a_dropout_and_a_norm_of_the_file() -> None:
    assert texts(DROPOUT + FACTORY + LAYER) == [TEXT]


def test_what_is_proven_goes_by_the_arguments_of_the_factory() -> None:
    (site,) = sites(DROPOUT + FACTORY + LAYER)
    open_conditions = {condition.name for condition in site.open_conditions}
    assert not open_conditions & {"norm-over-last-dimension", "norm-has-weight"}
    (site,) = sites(DROPOUT + FACTORY + LAYER.replace("(dim)", "(shape)"))
    assert "norm-over-last-dimension" in {condition.name for condition in site.open_conditions}
    assert not sites(DROPOUT + FACTORY + LAYER.replace("(dim)", "(dim, elementwise_affine=False)"))


def test_they_come_from_a_package_that_passes_them_on() -> None:
    modules = {
        "own.modules.__init__": "from .dropout import OwnDropout\nfrom .norm import LayerNorm\n",
        "own.modules.dropout": DROPOUT,
        "own.modules.norm": FACTORY,
    }
    code = "from own.modules import LayerNorm, OwnDropout\n" + LAYER
    assert texts(code, modules) == [TEXT]
    assert texts(code, {}) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # another operator
        ("return F.dropout(x", "return F.alpha_dropout(x"),
        # something else happens when nothing is dropped
        ("            return x\n", "            return x * self.p\n"),
        # what is dropped is not what is returned otherwise
        ("return F.dropout(x,", "return F.dropout(x * 2,"),
        # in place, on what the caller still has
        ("inplace: bool = False", "inplace: bool = True"),
        # a mode that is not that of the module
        (
            "    def forward",
            "    def train(self, mode=True):\n        return self\n\n    def forward",
        ),
        # a class that brings more along
        ("OwnDropout(nn.Module)", "OwnDropout(nn.Dropout)"),
        # an effect of its own
        ("        if self.p > 0", "        self.calls = 1\n        if self.p > 0"),
        # compiled
        ("    def forward", "    @torch.jit.script_method\n    def forward"),
    ],
)
def test_other_dropouts_are_left_alone(before: str, after: str) -> None:
    assert DROPOUT.count(before) == 1
    assert texts(DROPOUT.replace(before, after) + FACTORY + LAYER) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # another norm, on some paths or on all
        ("return nn.LayerNorm(normalized_shape", "return nn.GroupNorm(normalized_shape"),
        ("return FusedLayerNorm(", "return ScaledLayerNorm("),
        # over more than one dimension
        ("return nn.LayerNorm(normalized_shape,", "return nn.LayerNorm((2, normalized_shape),"),
        # only somebody else's
        ("return nn.LayerNorm(", "return FusedLayerNorm("),
        # whatever
        ("def LayerNorm(", "@wrapped\ndef LayerNorm("),
        ("export=False)", "export=False, *more)"),
    ],
)
def test_other_factories_are_left_alone(before: str, after: str) -> None:
    assert FACTORY.count(before) == 1
    found = sites(DROPOUT + FACTORY.replace(before, after) + LAYER)
    assert not found


def test_a_norm_that_is_made_twice_under_one_name_is_not_known() -> None:
    assert texts(DROPOUT + FACTORY + "\ndef LayerNorm(dim):\n    return dim\n" + LAYER) == []


NORM = """
class Norm(nn.Module):
    def __init__(self, dim{annotation}, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Attention(nn.Module):
    def __init__(self, heads, size):
        super().__init__()
        self.q_norm = {made}
"""


@pytest.mark.parametrize(
    ("made", "annotation", "proven"),
    [
        ("Norm(size)", "", True),
        ("Norm(size)", ": int", True),
        ("Norm((heads, size))", ": int", True),  # an error of the caller
        ("Norm((heads, size))", "", False),
        ("Norm([heads, size], 1e-5)", "", False),
        ("Norm(eps=1e-5, dim=(heads, size))", "", False),
        ("nn.ModuleList([Norm((heads, size)) for _ in range(2)])", "", False),
        ("Norm(eps=(1, 2), dim=size)", "", True),
        ("Other((heads, size))", "", True),
        ("Norm(size)", ": tuple[int, ...]", False),
        ("Norm(size)", ": int | Sequence[int]", False),
    ],
)
def test_a_weight_has_as_many_dimensions_as_it_is_made_with(
    made: str,
    annotation: str,
    proven: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    code = HEADER + NORM.format(made=made, annotation=annotation)
    (site,) = find_sites(code, [eager_rms_norm.RULE])
    names = {condition.name for condition in site.open_conditions}
    assert ("one-dimensional-weight" not in names) is proven


@pytest.mark.parametrize(
    ("parameter", "use", "proven"),
    [
        ("k", "nn.Linear(k, 4)", True),
        ("k", "k // 2", True),
        ("k", "2 * k", False),  # a tuple allows it as well
        ("k", "nn.LayerNorm(k)", False),
        ("k=8", "None", True),
        ("k=(8, 2)", "None", False),
    ],
)
def test_a_length_is_told_by_its_use(
    parameter: str,
    use: str,
    proven: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    code = NORM.replace("dim{annotation}", parameter).replace("ones(dim)", "ones(k)")
    code = code.replace("__init__()", f"__init__()\n        self.other = {use}", 1)
    (site,) = find_sites(HEADER + code.format(made="None"), [eager_rms_norm.RULE])
    names = {condition.name for condition in site.open_conditions}
    assert ("one-dimensional-weight" not in names) is proven
