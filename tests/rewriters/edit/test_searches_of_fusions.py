"""What searches over statements find, and the text that they write."""

from __future__ import annotations

import ast
import itertools

import pytest

from npufix.rewriters.edit.statements.products import spell_chain, spell_product
from npufix.rewriters.edit.statements.selections import slice_of
from npufix.rewriters.find import find_sites
from npufix.rules.registry import all_rules

torch = pytest.importorskip("torch")

HEADER = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"


def sites(text: str, rule: str) -> list[tuple[str, list[str]]]:
    """Return what a rule would write in a text, and what is open there."""
    rules = [r for r in all_rules() if r.id == rule]
    return [
        (s.rewrite.text if s.rewrite else s.problem, [c.name for c in s.open_conditions])
        for s in find_sites(text, rules)
    ]


EQUATIONS = [
    f"{''.join(a)},{''.join(b)}->{''.join(out)}"
    for a, b, out in itertools.chain(
        itertools.product(
            itertools.permutations("xij"),
            itertools.permutations("xjk"),
            itertools.permutations("xik"),
        ),
        itertools.product(
            itertools.permutations("xij"),
            itertools.permutations("jk"),
            itertools.permutations("xik"),
        ),
        itertools.product(["xyij", "ij", "jxyi"], ["jk", "kj"], ["xyik", "ik", "kxyi"]),
        itertools.product(["xqc", "xcq", "cxq"], ["xchw", "xhwc"], ["xqhw", "xhwq"]),
        # several that lie together, as of tokens, experts and places: one dimension
        itertools.product(["yhw", "hwy"], ["yj", "jy"], ["hwj", "jhw"]),
        itertools.product(["yhw", "hwy"], ["hwj", "jhw"], ["yj", "jy"]),
        itertools.product(["xyhw"], ["xyj", "xjhw"], ["xhwj", "xyj"]),
        itertools.product(["xyij"], ["xykj", "xkj", "jkhw"], ["xyik", "xyikhw"]),
        # of a batch in between, and in another order
        itertools.product(["xyqj", "xyjq"], ["qjk", "qkj"], ["xyqk", "qxyk"]),
        itertools.product(["xqc", "xyqc"], ["xchw", "xychw"], ["qxhw", "xqyhw"]),
        itertools.product(["xcj", "xjc"], ["cjk", "jck"], ["xk", "kx"]),
        # what only one operand has is added up first
        itertools.product(["xyij", "xji"], ["xjk", "xjkq", "qcjk"], ["xk", "xik", "k"]),
        # vectors
        itertools.product(
            ["xij", "xji", "xyij", "xyji", "jxi"], ["j", "xj", "xyj", "yj"], ["xi", "xyi", "ix"]
        ),
    )
]


def test_each_product_is_the_einsum_or_left_alone() -> None:
    written = 0
    lengths = dict(zip("xyijkqchw", (2, 3, 4, 5, 6, 4, 5, 2, 3), strict=True))
    for equation in EQUATIONS:
        first, second, out = equation.replace("->", ",").split(",")
        text = spell_product(equation, "a", "b")
        if not set(out) <= {*first, *second} or text is None:
            assert text is None, equation
            continue
        a, b = (torch.randn([lengths[i] for i in part]).double() for part in (first, second))
        found = eval(text, {"torch": torch, "a": a, "b": b})  # noqa: S307 - our own text
        assert torch.allclose(found, torch.einsum(equation, a, b)), equation
        written += 1
    assert written > 200


@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk", "ij,jk,kl->il", "ii,ij->ij", "i,j->ij", "nbhm,bhm->nbh", "ngcp,gpcd->ngd",
        "bchw,bc->bchw", "...ij,j...->...i", "ij,jk->...ik",
        "bid,iod->bo", "bchw,oc->bhow", "...nn,nnb->...nb",
        "becd,bnce->bnd",
    ],
)  # fmt: skip
def test_other_equations_are_left_alone(equation: str) -> None:
    assert spell_product(equation, "a", "b") is None


@pytest.mark.parametrize(
    ("equation", "text"),
    [
        ("...nd,...dh->...nh", "torch.matmul(a, b)"),
        ("... i d, ... j d -> ... i j", "torch.matmul(a, b.transpose(-2, -1))"),
        ("...ij,jk->...ik", "torch.matmul(a, b)"),
        ("...ij,...jk->...ki", "torch.matmul(a, b).transpose(-2, -1)"),
        ("...di,...dj->...ij", "torch.matmul(a.transpose(-2, -1), b)"),
        ("...nd,ndh->...nh", "torch.matmul(a.unsqueeze(-2), b).squeeze(-2)"),
        ("...nd,...d->...n", "torch.matmul(a, b.unsqueeze(-1)).squeeze(-1)"),
        ("...d,...dh->...h", "torch.matmul(a.unsqueeze(-2), b).squeeze(-2)"),
    ],
)
def test_batches_that_are_not_spelled_out_are_those_of_matmul(equation: str, text: str) -> None:
    assert spell_product(equation, "a", "b") == text
    first, second, _ = equation.replace(" ", "").replace("->", ",").split(",")
    lengths = dict(zip("ndhij", (2, 3, 4, 2, 3 if "d" not in equation else 5), strict=True))
    lengths["k"] = 6
    batches = {"...": [5, 1], "": []}, {"...": [4], "": []}
    a, b = (
        torch.randn(
            [*batch["..." if "..." in part else ""], *(lengths[i] for i in part.strip("."))]
        )
        for batch, part in zip(batches, (first, second), strict=True)
    )
    found = eval(text, {"torch": torch, "a": a, "b": b})  # noqa: S307 - our own text
    assert torch.allclose(found, torch.einsum(equation, a, b), atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "text"),
    [
        ("brij,brjk,brkl->bril", "torch.matmul(torch.matmul(a, b), c)"),
        (
            "ij,biq,bjp->bqp",
            "torch.matmul(torch.matmul(a.transpose(-2, -1), b).transpose(-2, -1), c)",
        ),
        ("c,cd,d->", None),
        ("ij,jk,ik->ik", None),
        ("bij,kjb,bkl->bil", None),  # turned
        (
            "bcij,kj,lk->bcil",
            "torch.matmul(torch.matmul(a, b.transpose(-2, -1)), c.transpose(-2, -1))",
        ),
    ],
)
def test_three_operands_are_two_products_from_left_to_right(
    equation: str, text: str | None
) -> None:
    assert spell_chain(equation, "abc") == text
    if text is not None:
        *parts, _ = equation.replace("->", ",").split(",")
        sizes = {letter: n for n, letter in enumerate(sorted({*"".join(parts)}), 2)}
        a, b, c = (torch.randn([sizes[i] for i in part]).double() for part in parts)
        found = eval(text, {"torch": torch, "a": a, "b": b, "c": c})  # noqa: S307 - our own text
        assert torch.allclose(found, torch.einsum(equation, a, b, c))


def test_a_product_is_written_where_a_dimension_is_made_of_its_sum() -> None:
    """``x.sum(-1)[..., None]`` is read as one operator, with a text that stands inside as well."""
    source = """
from .base import *


def project(a: torch.Tensor, b: torch.Tensor):
    a, b = a.float(), b.float()
    return b - torch.einsum("bli, bli -> bl", a, b)[..., None] * a
"""
    assert sites(source, "NPU207") == [("(a * b).sum(-1)", [])]
    assert sites(source.replace("import *", "import torch as other"), "NPU207") == []


def test_operands_without_a_name_are_not_repeated() -> None:
    assert spell_product("bqc,bchw->bqhw", "a", "f(b)", once=["f(b)"]) is None
    assert spell_product("bshc,bthc->bst", "a", "a") is None
    assert spell_product("bshc,btc->bsht", "f(a)", "b", once=["f(a)"]) is None
    assert spell_product("bshc,btc->bsht", "a", "b[:n]", once=["b[:n]"]) is not None


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ("0, 1", "0:2"), ("0, 2", "0:3:2"), ("3, 4, 5", "3:6"), ("1, 4, 7", "1:8:3"),
        ("2, 0", None),
        ("1, 1", None), ("-1, 0", None), ("0, 1, 3", None), ("0", None), ("i, 1", None),
        ("True, 2", None),
    ],
)  # fmt: skip
def test_slices_of_lists(places: str, expected: str | None) -> None:
    listed = ast.parse(f"[{places}]", mode="eval").body
    assert isinstance(listed, ast.List)
    assert slice_of(listed.elts) == expected


ATTENTION = """
class Block(nn.Module):
    def __init__(self, dim, p=0.0):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 8, {settings})

    def forward(self, x, mask=None):
        {call}
"""


@pytest.mark.parametrize(
    ("call", "settings", "expected"),
    [
        ("return self.attn(x, x, x)[0]", "", []),
        ("y, _ = self.attn(x, x, x); return y", "dropout=0.0", []),
        ("y = self.attn(x, x, x); return y[0]", "dropout=0", []),
        ("y, w = self.attn(x, x, x); return y", "dropout=p", ["other-random-numbers"]),
        ("return self.attn(x, x, x, attn_mask=None)[0]", "", []),
        ("return self.attn(x, x, x, mask)[0]", "", ["no-mask", "no-fully-masked-row"]),
        (
            "return self.attn(x, x, x, attn_mask=mask)[0]",
            "0.1",
            ["other-random-numbers", "no-mask", "no-fully-masked-row"],
        ),
        ("y, w = self.attn(x, x, x); return y, w", "", None),
        ("y = self.attn(x, x, x); return y[0], y[1]", "", None),
        ("y = self.attn(x, x, x); y = y[0]; return y", "", []),
        ("y = self.attn(x, x, x); z = y; y = y[0]; return y, z", "", None),
        ("y = self.attn(x, x, x); y = y[1]; return y", "", None),
        ("return self.attn(x, x, x)[1]", "", None),
        ("return self.attn(*x)[0]", "", None),
        ("return self.attn(x)[0]", "", None),
        ("return self.attn(x, x, x, average_attn_weights=False)[0]", "", None),
        ("return self.attn(x, x, (x))[0]", "", None),
    ],
)
def test_unused_weights(call: str, settings: str, expected: list[str] | None) -> None:
    text = HEADER + ATTENTION.format(settings=settings, call=call)
    found = sites(text, "NPU165")
    assert [conditions for _, conditions in found] == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimizer = dict(type='AdamW', lr=1e-4)", ["no-grad-scaler"]),
        ("optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-4))", ["no-grad-scaler"]),
        ("optimizer = dict(type='AdamW', lr=1e-4, fused=True)", None),
        ("optimizer = dict(type='AdamW', lr=1e-4, **more)", None),
        ("scheduler = dict(type='AdamW', lr=1e-4)", None),
        ("optimizer = dict(type='Lion', lr=1e-4)", None),
    ],
)
def test_optimizers_of_configurations(text: str, expected: list[str] | None) -> None:
    found = sites(text + "\n", "NPU169")
    assert [c for _, c in found] == ([] if expected is None else [expected])
    assert all("fused=True)" in written for written, _ in found)


def test_scaled_gradients_and_other_classes_are_advice() -> None:
    scaled = "fp16 = dict(loss_scale=512.0)\noptimizer = dict(type='AdamW', lr=1e-4)\n"
    assert "NpuFusedAdamW" in sites(scaled, "NPU169")[0][0]
    assert "NpuFusedSGD" in sites("optimizer = dict(type='SGD', lr=0.1)\n", "NPU169")[0][0]


UNDECIDED = ["fused-undecided", "parameters-on-npu"]


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        ("settings = dict(lr=1e-3)", ["parameters-on-npu"]),
        ("settings = {'lr': 1e-3, 'foreach': False}", None),
        ("settings = dict(lr=1e-3); settings['fused'] = False", None),  # the author has decided
        ("settings = load()", UNDECIDED),
    ],
)  # fmt: skip
def test_settings_in_a_dictionary(setup: str, expected: list[str] | None) -> None:
    text = (
        HEADER
        + f"def build(model):\n    {setup}\n"
        + "    return torch.optim.AdamW(model.parameters(), **settings)\n"
    )
    assert [c for _, c in sites(text, "NPU169")] == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("imported", "call", "operator"),
    [
        ("from torch_scatter import scatter_mean", "scatter_mean(x, i, dim=0)", "scatter_mean"),
        ("import torch_scatter as ts", "ts.segment_csr(x, i)", "scatter_max"),
        (
            "from .functions import MSDeformAttnFunction",
            "MSDeformAttnFunction.apply(x)",
            "multi_scale",
        ),
        ("from mmcv.ops import furthest_point_sample", "furthest_point_sample(x, 8)", "furthest"),
        ("from mx_driving import scatter_max", "scatter_max(x, i)", ""),
        ("from einops import reduce as scatter_mean", "scatter_mean(x, i)", ""),
        ("from mylib import scatter_mean", "scatter_mean(x, i)", ""),
    ],
)
def test_vendor_operators_are_known_by_where_they_come_from(
    imported: str, call: str, operator: str
) -> None:
    found = sites(f"{HEADER}{imported}\n\n\ndef f(x, i):\n    return {call}\n", "NPU171")
    assert [operator in advice for advice, _ in found] == ([True] if operator else [])


@pytest.mark.parametrize(
    ("imported", "call", "written"),
    [
        (  # of stacked points: the second argument is no index
            "from pcdet.ops.pointnet2.pointnet2_stack import pointnet2_utils",
            "pointnet2_utils.grouping_operation(x, x, i, i)",
            "",
        ),
        ("from mmcv.ops import knn", "knn(3, x, i, True)", "mx_driving.knn(3, x, i, True)"),
        ("from mmcv.ops import knn", "knn(3, x, transposed=True)", ""),
        (
            "from mmdet3d.ops import bev_pool",
            "bev_pool(x, i, 2, 1, 8, 4)",
            "mx_driving.bev_pool_v3(None, x, None, None, i.int(), [2, 1, 8, 4, x.shape[1]])",
        ),
        ("from mmdet3d.ops import bev_pool", "bev_pool(x.relu(), i, 2, 1, 8, 4)", ""),
        ("from mmdet3d.ops import bev_pool", "bev_pool(*x)", ""),
        (
            "from bevdepth.ops.voxel_pooling_train import voxel_pooling_train",
            "voxel_pooling_train(i, x, [8, 8, 1])",
            "mx_driving.npu_voxel_pooling_train(i, x, [8, 8, 1])",
        ),
    ],
)
def test_vendor_operators_are_written_where_arguments_correspond(
    imported: str, call: str, written: str
) -> None:
    source = f"{HEADER}import mx_driving\n{imported}\n\n\ndef f(x, i):\n    return {call}\n"
    ((text, _),) = sites(source, "NPU171")
    assert text == written if written else text.startswith("mx_driving.")


@pytest.mark.parametrize(
    ("operand", "asked"),
    [
        ("x.permute(1, 0)[m]", "x.device"),
        ("x[m]", "i.device"),  # x may be a list of tensors
        ("self.pool(x)", "i.device"),
    ],
)
def test_operands_that_are_computed_tell_their_device(operand: str, asked: str) -> None:
    source = (
        f"{HEADER}import torch_scatter\n\n\n"
        "class Pool(nn.Module):\n    def forward(self, x, i, m):\n"
        f"        y = torch_scatter.scatter_add({operand}, i, dim=0)\n        return y\n"
    )
    rules = [r for r in all_rules() if r.id == "NPU171"]
    (site,) = find_sites(source, rules)
    assert site.rewrite is not None
    assert f"if {asked}.type" in site.rewrite.portable


DEFORMABLE = f"""{HEADER}import mx_driving
from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch
from .functions import MultiScaleDeformableAttnFunction_fp16, MultiScaleDeformableAttnFunction_fp32


def f(value, shapes, level_start_index, places, weights):
    if value.dtype == torch.float16:
        Function = MultiScaleDeformableAttnFunction_fp16
    else:
        Function = MultiScaleDeformableAttnFunction_fp32
    if value.is_cuda:
        return Function.apply(value, shapes, level_start_index, places, weights, 64)
    return multi_scale_deformable_attn_pytorch(value, shapes, places, weights)
"""


def test_deformable_attention_is_known_behind_a_variable_and_without_starts() -> None:
    new = (
        "mx_driving.multi_scale_deformable_attn(value, shapes, level_start_index, places, weights)"
    )
    assert {text for text, _ in sites(DEFORMABLE, "NPU171")} == {new}
    other = DEFORMABLE.replace(
        "Function = MultiScaleDeformableAttnFunction_fp16", "Function = torch"
    )
    other = other.replace("level_start_index", "starts")
    assert [text for text, _ in sites(other, "NPU171") if not text.startswith("mx_driving.")] == []
    assert new not in {text for text, _ in sites(other, "NPU171")}


@pytest.mark.parametrize(
    ("later", "told"),
    [
        ("w = w.masked_fill(mask, 0.0)", True),  # what rows without any key become
        ("w = w.masked_fill(other == 0, 0.0)", False),  # no kernel hides them
        ("parts = x.bmm(w.transpose(1, 2))", False),  # they are factors of something else
        ("parts = scores.transpose(1, 2).softmax(dim=-1) @ x", False),  # scores that serve two ways
        ("v = self.table.weight + self.other.weight", False),  # a layer
        ("return w @ v, w", True),
    ],
)
def test_attention_in_pieces_is_told_where_a_kernel_may_take_its_place(
    later: str, *, told: bool
) -> None:
    source = f"""{HEADER}

class Attention(nn.Module):
    def forward(self, q, k, v, x, mask, other):
        scores = torch.einsum("bnd,bmd->bnm", q, k)
        scores = scores.masked_fill(mask, -1e9)
        w = scores.softmax(dim=-1)
        parts = x
        {later}
        return self.out(w @ v) + parts
"""
    assert bool(sites(source, "NPU186")) is told


def test_of_several_weights_made_wide_the_first_of_the_product_is_told() -> None:
    """Not the one that comes first in a set, which differs from run to run."""
    source = f"""{HEADER}

class Lora(nn.Module):
    def forward(self, x):
        first = dequantize(self.weight_first)
        second = dequantize(self.weight_second)
        third = dequantize(self.weight_third)
        return torch.addmm(third, second, first)
"""
    (rule,) = (r for r in all_rules() if r.id == "NPU188")
    (site,) = find_sites(source, [rule])
    assert "third = dequantize" in source.splitlines()[site.line - 1]
