"""Attention in other layouts: mistakes that the inputs refute, and variants of real code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from rule_checks import each_mistake, refuted

from npufix.rewriters.find import find_sites
from npufix.rules.substitutions import eager_attention
from npufix.rules.substitutions import eager_attention_forms as attention_layouts

if TYPE_CHECKING:
    from rule_checks import Mistake
    from torch import Tensor

    from npufix.rewriters.edit.site import Site

HEADER = "import torch\nimport torch.nn.functional as F\nfrom torch import einsum\n"


# --- mistakes


def keys_not_turned(**given: Any) -> Tensor:
    return attention_layouts.fused_folded(**given)


def queries_not_turned(**given: Any) -> Tensor:
    return attention_layouts.fused_by_channel(**given)


def result_not_turned(**given: Any) -> Tensor:
    return attention_layouts.fused_by_channel(**given).transpose(1, 2)


def result_of_heads_not_turned(**given: Any) -> Tensor:
    return attention_layouts.fused_heads_by_channel(**given).transpose(-2, -1)


def heads_not_exchanged(**given: Any) -> Tensor:
    return attention_layouts.fused_heads_first(**given)


def heads_left_in_front(**given: Any) -> Tensor:
    return attention_layouts.fused_length_first(**given).transpose(1, 2)


def left_in_four_dimensions(**given: Any) -> Tensor:
    return attention_layouts.fused_folded(**given).unsqueeze(1)


BY_CHANNEL = (attention_layouts.by_channel, attention_layouts.channel_inputs)
LETTERS = (attention_layouts.channel_letters, attention_layouts.all_channel_inputs)
BY_HEAD_CHANNEL = (attention_layouts.heads_by_channel, attention_layouts.head_channel_inputs)
LENGTH_FIRST = (attention_layouts.length_first, attention_layouts.length_first_inputs)
FOLDED = (attention_layouts.folded, attention_layouts.folded_inputs)
MISTAKES = [
    (*BY_CHANNEL, result_not_turned),
    (attention_layouts.keys_by_channel, attention_layouts.key_channel_inputs, keys_not_turned),
    (*LETTERS, queries_not_turned),
    (*BY_HEAD_CHANNEL, result_of_heads_not_turned),
    (*LENGTH_FIRST, heads_not_exchanged),
    (*LENGTH_FIRST, heads_left_in_front),
    (*FOLDED, left_in_four_dimensions),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_refuted(mistake: Mistake) -> None:
    refuted(*mistake)


# --- variants


def sites_of(text: str) -> list[Site]:
    return list(find_sites(HEADER + text, [eager_attention.RULE]))


LAYOUTS = {
    "one head": (
        "torch.bmm((torch.bmm(q, k.transpose(1, 2)) * s).softmax(dim=2), v)",
        "q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1), scale=s).squeeze(1)",
    ),
    "one head by other products": (
        "torch.matmul((torch.matmul(q, k.transpose(1, 2)) * s).softmax(dim=2), v)",
        "q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1), scale=s).squeeze(1)",
    ),
    "turned keys by other products": (
        "F.softmax(q @ k * s, dim=2) @ v",
        "k.transpose(1, 2).unsqueeze(1), v.unsqueeze(1), scale=s).squeeze(1)",
    ),
    "any number of dimensions": ("F.softmax(q @ k * s, dim=-1) @ v", None),
    "channels by letters": (
        "einsum('bts,bcs->bct', einsum('bct,bcs->bts', q, k * s).softmax(dim=-1), v)",
        "v.transpose(1, 2).unsqueeze(1), scale=1.0).squeeze(1).transpose(1, 2)",
    ),
    "keys of a convolution": (
        "torch.bmm(F.softmax(torch.bmm(q, k) * s, dim=-1), v)",
        "k.transpose(1, 2).unsqueeze(1), v.unsqueeze(1), scale=s).squeeze(1)",
    ),
    "pixels last": (
        "torch.bmm(v, F.softmax(torch.bmm(q, k) * s, dim=2).permute(0, 2, 1).contiguous())",
        "v.transpose(1, 2).unsqueeze(1), scale=s).squeeze(1).transpose(1, 2)",
    ),
    "heads with pixels last": (
        "v @ ((q.transpose(-2, -1) @ k) * s).softmax(dim=-1).transpose(-2, -1)",
        "v.transpose(-2, -1), scale=s).transpose(-2, -1)",
    ),
    "letters": (
        "torch.einsum('bij, bjd -> bid', F.softmax(q, -1), v)",
        None,
    ),
    "heads first": (
        "einsum('zhij,zhjd->zhid', [(einsum('bhld,bhtd->bhlt', q, k) * s).softmax(-1), v])",
        "q, k, v, scale=s)",
    ),
    "heads second": (
        "einsum('bknm, bmkc -> bnkc', (einsum('bnkc,bmkc->bknm', [q, k]) * s).softmax(-1), v)",
        "q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), scale=s).transpose(1, 2)",
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout(name: str) -> None:
    expression, wanted = LAYOUTS[name]
    found = sites_of(f"def f(q, k, v, s: float):\n    return {expression}\n")
    assert [s.rewrite is not None and str(wanted) in s.rewrite.text for s in found] == (
        [True] if wanted else []
    )


def test_known_dimensions_other_than_three_are_left_alone() -> None:
    expression = LAYOUTS["one head by other products"][0]
    shape = "b, h, n, d = q.shape"
    assert not sites_of(f"def f(q, k, v, s: float):\n    {shape}\n    return {expression}\n")


def test_three_dimensions_are_changed_for_those_who_ask() -> None:
    (site,) = sites_of(f"def f(q, k, v, s: float):\n    return {LAYOUTS['one head'][0]}\n")
    assert [condition.name for condition in site.open_conditions] == ["one-head-per-batch"]


@pytest.mark.parametrize(("heads", "proven"), [("h", True), ("1", False)])
def test_heads_are_counted_where_they_are(heads: str, proven: bool) -> None:  # noqa: FBT001
    (site,) = sites_of(f"""def f(q, k, v, b: int, h: int, d: int, s: float):
    q = q.view(b, -1, h, d)
    k, v = k.view(b, -1, {heads}, d), v.view(b, -1, {heads}, d)
    shares = (einsum('bnhd,bmhd->bhnm', q, k) * s).softmax(-1)
    return einsum('bhnm,bmhd->bnhd', shares, v)
""")
    assert ("same-heads" not in {condition.name for condition in site.open_conditions}) is proven


PARTS = {
    "of one tensor": ("qkv = x.view(b, n, 3, h, d).permute(2, 0, 3, 1, 4)", "qkv[{}]", True),
    "views of its chunks": (
        "qkv = x.chunk(3, dim=-1)",
        "qkv[{}].reshape(b, n, h, d).transpose(1, 2)",
        True,
    ),
    "other views": ("qkv = x.chunk(3, dim=-1)", "qkv[{}].view(b, h, {} + 1, d)", True),
    "of what a call returns": ("qkv = prepare(x)", "qkv[{}]", False),
    "of an argument": ("qkv = x", "qkv[{}]", False),
    "of a map": ("qkv = list(map(prepare, (x, y, y)))", "qkv[{}]", False),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_one_tensor_have_as_many_heads(name: str) -> None:
    statement, part, proven = PARTS[name]
    q, k, v = (part.replace("{}", str(number)) for number in range(3))
    found = sites_of(f"""def f(x, y, b: int, n: int, h: int, d: int, s: float):
    {statement}
    q, k, v = {q}, {k}, {v}
    return ((q @ k.transpose(-2, -1)) * s).softmax(-1) @ v
""")
    (site,) = found
    assert ("same-heads" not in {condition.name for condition in site.open_conditions}) is proven


SCALES = {
    "/ torch.sqrt(torch.tensor(q.size(-1), dtype=torch.float32))": "q.size(-1) ** (-0.5)",
    "/ torch.sqrt(torch.tensor(64.0))": "64.0 ** (-0.5)",
    "* torch.tensor(0.125)": "0.125",
    "/ torch.sqrt(torch.tensor(q.size(-1), device=q.device))": "",
    "/ torch.sqrt(torch.tensor(s))": "",
    "/ torch.sqrt(torch.tensor([8.0]))": "",
}


@pytest.mark.parametrize("scale", SCALES)
def test_a_number_in_a_tensor_on_the_host_scales_as_a_number(scale: str) -> None:
    found = sites_of(f"""def f(q, k, v, s):
    return ((q @ k.transpose(-2, -1)) {scale}).softmax(-1) @ v
""")
    assert [f"scale={SCALES[scale]}" in site.rewrite.text for site in found if site.rewrite] == (
        [True] if SCALES[scale] else []
    )
