"""Calls of flash_attn: what is written, what is proven of it, and what is only named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from npufix.rewriters.find import find_sites
from npufix.rules.registry import all_rules

if TYPE_CHECKING:
    from npufix.rewriters.edit.job import Job

HEAD = "import torch\nfrom flash_attn import {name}\n\n\n"
DENSE, ROWS = "flash_attn_func", "flash_attn_varlen_func"


def site(call: str, name: str = DENSE, arguments: str = "q, k, v, p, scale", before: str = ""):  # noqa: ANN201 - a Site
    source = f"{HEAD.format(name=name)}def attend({arguments}):\n{before}    return {call}\n"
    (found,) = find_sites(source, [rule for rule in all_rules() if rule.id == "NPU170"])
    return source, found


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("flash_attn_func(q, k, v)", 'q.shape[2], "BSND", scale=q.shape[-1] ** -0.5)'),
        ("flash_attn_func(q, k, v, 0.0, 0.5)", 'q.shape[2], "BSND", scale=0.5)'),
        (
            "flash_attn_func(q, k, v, p, window_size=(-1, -1), deterministic=True)",
            '"BSND", scale=q.shape[-1] ** -0.5, keep_prob=1.0 - p)',
        ),
        ("flash_attn_func(q, k, v, causal=p)", "if p else None), sparse_mode=3 if p else 0)"),
    ],
)
def test_arguments_have_their_counterparts(call: str, expected: str) -> None:
    _, found = site(call)
    assert found.rewrite is not None
    written = (
        " ".join(found.rewrite.text.split())
        .replace("( ", "(")
        .replace(", )", ")")
        .replace(" )", ")")
    )
    assert written.endswith(f"{expected}[0]")
    assert [c.name for c in found.open_conditions] == (
        ["other-random-numbers"] if "keep_prob" in written else []
    )


def test_xformers_takes_other_names_for_the_same() -> None:
    head = (
        "import torch\nimport xformers.ops as xops\n\n\ndef attend(q, k, v, p, bias):\n    return "
    )
    rules = [rule for rule in all_rules() if rule.id == "NPU170"]
    call = "xops.memory_efficient_attention(query=q, key=k, value=v, p=p, scale=0.5, op=None)\n"
    (found,) = find_sites(head + call, rules)
    assert found.rewrite is not None
    assert "scale=0.5" in found.rewrite.text
    assert "keep_prob=1.0 - p" in found.rewrite.text
    assert {c.name for c in found.open_conditions} == {"other-random-numbers", "four-dimensional"}
    shaped = call.replace("query=q", "query=q.view(2, 3, 4, 5)").replace("p=p, ", "")
    (found,) = find_sites(head + shaped, rules)
    assert found.rewrite is None  # what is computed in the call would be computed twice
    assert not list(find_sites(head + call.replace("op=None", "attn_bias=bias"), rules))


@pytest.mark.parametrize(
    "call",
    [
        "flash_attn_func(q, k, v, causal=p > 0)",
        "flash_attn_func(q, k, v, window_size=(16, 0))",
        "flash_attn_func(q.half(), k, v)",
        "flash_attn_func(*q)",
        "flash_attn_func(q, k, v, **scale)",
        "[flash_attn_func(x, x, x) for x in q]",
    ],
)
def test_what_is_not_sure_is_named(call: str) -> None:
    _, found = site(call)
    assert found.rewrite is None
    assert "npu_fusion_attention" in found.problem
    assert ("sparse_mode=4" in found.problem) == ("window_size" in call)


VERIFIED = {
    "fewer heads of keys": (
        "flash_attn_func(q, k, v)",
        DENSE,
        "    k, v = k[:, :, :1], v[:, :, :1]\n",
    ),
    "fewer keys than queries": (
        "flash_attn_func(q, k, v, softmax_scale=0.25, causal=True)",
        DENSE,
        "    k, v = k[:, 1:], v[:, 1:]\n",
    ),
    "rows of sequences": (
        "flash_attn_varlen_func(q, k, v, starts, starts, 9, 9, causal=True)",
        ROWS,
        """    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    starts = torch.tensor([0, 1, len(q)], dtype=torch.int32)
""",
    ),
}


def written(case: str, old: str = "", new: str = "") -> Job:
    """Return the change of a case, with a slip in what is written if that is given."""
    from npufix.rewriters.edit.job import Job

    call, name, before = VERIFIED[case]
    source, found = site(call, name, "q, k, v", before)
    assert found.rewrite is not None
    assert old in found.rewrite.direct
    return Job(
        "/user/m.py",
        "/user",
        source,
        found.rewrite.direct.replace(old, new) if old else found.rewrite.direct,
        "attend",
        (found.line,),
        (found.rewrite.line,),
        portable="" if old else found.rewrite.portable,
        floating=True,
    )


def apart(job: Job) -> float:
    """Return how far both versions of a change are from each other in one call."""
    torch = pytest.importorskip("torch")
    from npufix.rewriters.verification.reference import npu_operators

    npu_operators.install()
    q, k, v = torch.randn(3, 2, 6, 4, 8, generator=torch.Generator().manual_seed(0))
    made = []
    for text in (job.original, job.patched):
        scope: dict[str, Any] = {}
        exec(text, scope)  # noqa: S102 - what is written here
        made.append(scope["attend"](q, k, v))
    assert made[0].shape == made[1].shape
    return float((made[0] - made[1]).abs().max())


SLIPS = [
    ("fewer heads of keys", "q.shape[-1] ** -0.5", "1.0"),
    ("fewer keys than queries", "sparse_mode=3", "sparse_mode=2"),
    ("rows of sequences", "starts[1:].tolist()", "[len(q)]"),
]


@pytest.mark.parametrize(("case", "old", "new"), SLIPS)
def test_what_is_written_attends_as_flash_attn_does(case: str, old: str, new: str) -> None:
    assert apart(written(case)) < 1e-6
    assert apart(written(case, old, new)) > 1e-2


@pytest.mark.parametrize(("slip", "status"), [(("", ""), "equivalent"), (SLIPS[0][1:], "refuted")])
def test_calls_of_flash_attn_are_verified(slip: tuple[str, str], status: str) -> None:
    pytest.importorskip("torch")
    from npufix.rewriters.verification.judge.verify_function import verify_function

    verdict = verify_function(written(SLIPS[0][0], *slip)).verdict
    assert verdict.status.value == status, verdict.reason


def test_packed_tensors_are_taken_apart_where_they_are_packed() -> None:
    torch = pytest.importorskip("torch")
    from npufix.rewriters.verification.reference import flash_functions

    flash = flash_functions.modules()["flash_attn"]
    qkv = torch.randn(2, 3, 3, 3, 4)
    q, k, v = qkv.unbind(2)
    whole = flash.flash_attn_func(q, k, v)
    assert torch.equal(flash.flash_attn_qkvpacked_func(qkv), whole)
    assert torch.equal(flash.flash_attn_kvpacked_func(q, qkv[:, :, 1:]), whole)
    starts = torch.tensor([0, 3, 6], dtype=torch.int32)
    rows = flash.flash_attn_varlen_kvpacked_func(
        q.flatten(0, 1), qkv[:, :, 1:].flatten(0, 1), starts, starts, 3, 3
    )
    assert torch.allclose(rows, whole.flatten(0, 1), atol=1e-6)


def test_a_class_keeps_the_name_that_it_is_imported_by() -> None:
    head = "import torch as th\nfrom torch.optim import AdamW\n"
    text = f"{head}def f(m, lr):\n    return AdamW(m.parameters(), lr=lr)\n"
    (found,) = find_sites(text, [rule for rule in all_rules() if rule.id == "NPU112"])
    assert found.rewrite is not None
    assert found.rewrite.text == "AdamW(m.parameters(), lr=lr, fused=True)"


def test_a_report_shows_every_line_that_a_creation_changes() -> None:
    text = "def f(x, n):\n    m = torch.ones(n)\n    m = m * 2\n    return x * m.to(x.device)\n"
    (found,) = find_sites(f"import torch\n{text}", [r for r in all_rules() if r.id == "NPU212"])
    assert found.rewrite is not None
    assert found.rewrite.text == "torch.ones(n, device=x.device)\nm"


_TWO_WAYS = """
def attend(q, k, v, mode):
    if mode == "torch":
        x = {}
    else:
        x = flash_attn_func(q, k, v)
    return x
"""
_TWO_CLASSES = """
class Flash(Backend):
    def attend(self, q, k, v):
        return flash_attn_func(q, k, v)


class Other({}):
    def attend(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)
"""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (_TWO_WAYS.format("torch.nn.functional.scaled_dot_product_attention(q, k, v)"), False),
        (_TWO_WAYS.format("q @ k"), True),
        (_TWO_CLASSES.format("Backend"), False),
        (_TWO_CLASSES.format("Memory"), True),
        (f"{_TWO_CLASSES.format('Memory')}\n\nMODES = {{'flash': Flash, 'torch': Other}}\n", False),
        (f"{_TWO_CLASSES.format('Memory')}\n\nMODES = {{'flash': Flash, 'none': None}}\n", True),
    ],
)
def test_who_has_the_attention_of_torch_as_well_has_chosen(text: str, *, shown: bool) -> None:
    rules = [rule for rule in all_rules() if rule.id == "NPU170"]
    assert bool(list(find_sites(HEAD.format(name=DENSE) + text, rules))) is shown


@pytest.mark.parametrize(
    ("call", "name", "layout"),
    [
        ("flash_attn_with_kvcache(q, k, v, block_table=p)", "flash_attn_with_kvcache", "BSND"),
        ("flash_attn_varlen_func(q, k, v, p, p, 1, 1, block_table=scale)", ROWS, "TND"),
    ],
)
def test_a_cache_of_pages_has_an_operator_of_its_own(call: str, name: str, layout: str) -> None:
    _, found = site(call, name)
    assert "npu_fused_infer_attention_score" in found.problem
    assert f"input_layout='{layout}'" in found.problem


@pytest.mark.parametrize(("default", "count"), [("flash", 1), ("torch", 0)])
def test_the_branch_that_runs_by_default_is_no_choice_for_gpus(default: str, count: int) -> None:
    source = (
        f"{HEAD.format(name=DENSE)}import torch.nn.functional as F\n\n\n"
        f"def attend(q, k, v, mode='{default}'):\n    if mode == 'flash':\n"
        "        x = flash_attn_func(q, k, v)\n    else:\n"
        "        x = F.scaled_dot_product_attention(q, k, v)\n    return x\n"
    )
    rules = [rule for rule in all_rules() if rule.id == "NPU170"]
    assert len(list(find_sites(source, rules))) == count


@pytest.mark.parametrize(
    ("above", "called", "count"),
    [
        ("attend = flash_attn_func\n", "attend(q, k, v)", 1),
        ("attend = flash_attn_func if FAST else plain\n", "attend(q, k, v)", 0),
        ("", "self.attend(q, k, v)", 1),
        ("", "self.other_attention(q, k, v)", 0),
        ("", "flash_attn_func(q, k, v, return_attn_probs=self.needed)", 1),
        ("", "flash_attn_func(q, k, v, return_attn_probs=True)", 0),
    ],
)
def test_names_and_attributes_that_hold_the_function_are_followed(
    above: str, called: str, count: int
) -> None:
    source = (
        f"{HEAD.format(name=DENSE)}{above}\n\nclass Attention(torch.nn.Module):\n"
        "    def __init__(self, other):\n        super().__init__()\n"
        "        self.attend = flash_attn_func\n        self.other_attention = other\n\n"
        f"    def forward(self, q, k, v):\n        return {called}\n"
    )
    found = list(find_sites(source, [rule for rule in all_rules() if rule.id == "NPU170"]))
    assert len(found) == count


@pytest.mark.parametrize(("offered", "count"), [("['attend']", 0), ("['flash', 'attend']", 1)])
def test_a_function_that_is_offered_by_itself_is_called_without_asking(
    offered: str, count: int
) -> None:
    source = (
        f"{HEAD.format(name=DENSE)}import torch.nn.functional as F\n\n__all__ = {offered}\n\n\n"
        "def flash(q, k, v):\n    return flash_attn_func(q, k, v)\n\n\n"
        "def attend(q, k, v):\n    if HAS_FLASH:\n        return flash(q, k, v)\n"
        "    return F.scaled_dot_product_attention(q, k, v)\n"
    )
    found = list(find_sites(source, [rule for rule in all_rules() if rule.id == "NPU170"]))
    assert len(found) == count


def test_a_function_may_import_it_by_itself() -> None:
    source = (
        "import torch\n\n\ndef attend(q, k, v):\n    from flash_attn import flash_attn_func\n\n"
        "    return flash_attn_func(q, k, v)\n"
    )
    (found,) = find_sites(source, [rule for rule in all_rules() if rule.id == "NPU170"])
    assert found.rewrite is not None


@pytest.mark.parametrize(
    ("fold", "calls", "layout", "conditions"),
    [
        ("x.reshape(-1, x.shape[1], self.size)", 1, "BSH", set()),
        ("x.view(*x.shape[:2], self.heads, self.size)", 1, "BSND", {"four-dimensional"}),
        ("x.view(len(x), x.shape[1], self.heads, self.size)", 1, "BSND", set()),
        ("x.reshape(-1, x.shape[1], self.size)", 2, "BSND", {"four-dimensional"}),  # of another
    ],
)
def test_calls_within_the_class_tell_how_many_dimensions_there_are(
    fold: str, calls: int, layout: str, conditions: set[str]
) -> None:
    again = (
        ""
        if calls == 1
        else "\n    def other(self, x, y):\n        return self.attend(y, k=x, v=x)\n"
    )
    source = (
        "import torch\nimport xformers.ops as xops\n\n\nclass Attention(torch.nn.Module):\n"
        f"    def fold(self, x):\n        return {fold}\n\n"
        "    def attend(self, q, k, v):\n"
        "        q = q.contiguous()\n"
        "        return xops.memory_efficient_attention(q, k, v, attn_bias=None)\n\n"
        "    def forward(self, x):\n        x = self.fold(x)\n"
        f"        return self.attend(x, x, x)\n{again}"
    )
    (found,) = find_sites(source, [rule for rule in all_rules() if rule.id == "NPU170"])
    assert found.rewrite is not None
    assert f'"{layout}"' in found.rewrite.text
    assert {c.name for c in found.open_conditions} == conditions
