"""The affinity table: code that its rules must tell apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npufix.rewriters.find import find_sites
from npufix.rules.substitution import Safety
from npufix.rules.substitutions import (
    batched_vector_product,
    creation_on_host,
    gather_elements,
    index_by_vector,
    integer_cumsum,
    linear_matmul_add,
    masked_assignment,
    masked_copy,
    nonzero_reduction,
    one_hot_sum,
    repeat_interleave,
    repeated_mask,
    where_comparison,
)

if TYPE_CHECKING:
    from npufix.rewriters.edit.site import Site
    from npufix.rules.substitution import Substitution

RULES: tuple[Substitution, ...] = (
    masked_assignment.RULE,
    gather_elements.RULE,
    repeat_interleave.RULE,
    one_hot_sum.RULE,
    linear_matmul_add.RULE,
    batched_vector_product.RULE,
    where_comparison.RULE,
    nonzero_reduction.RULE,
    index_by_vector.RULE,
    masked_copy.RULE,
    creation_on_host.RULE,
    repeated_mask.RULE,
    integer_cumsum.RULE,
)
HEADER = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"

# --- real code in other words

SAFE = [
    ("NPU201", "x[~(x > 0)] = 0", "x.masked_fill_(~(x > 0), 0)"),
    ("NPU201", "x[torch.isnan(x)] = -torch.inf", "x.masked_fill_(torch.isnan(x), -torch.inf)"),
    ("NPU201", "x[1:][x[1:] < 0] = 1", "x[1:].masked_fill_(x[1:] < 0, 1)"),
    ("NPU201", "x[torch.where(x < 0)] = 0", "x.masked_fill_(x < 0, 0)"),
    ("NPU201", "x[(x < 0).nonzero(as_tuple=True)] = 0", "x.masked_fill_(x < 0, 0)"),
    ("NPU201", "x[x.sum(-1) > 0, :] = 0", "x.masked_fill_((x.sum(-1) > 0).unsqueeze(-1), 0)"),
    ("NPU201", "x[x.isnan()] = x.max()", "x.masked_fill_(x.isnan(), x.max())"),
    ("NPU211", "x[x < 0] = (-x)[x < 0]", "x.copy_(torch.where(x < 0, -x, x))"),
    ("NPU211", "x[x > 0] += n", "x.copy_(torch.where(x > 0, x + n, x))"),
    ("NPU211", "x[x > 0] -= 1", "x.copy_(torch.where(x > 0, x - 1, x))"),
    ("NPU211", "x[x > 0] = n - x[x > 0]", "x.copy_(torch.where(x > 0, n - x, x))"),
    ("NPU201", "x = y.atan2(i)\n    x[x < 0] = 0", "x.masked_fill_(x < 0, 0)"),
    (
        "NPU202",
        "y = x.view(-1).gather(0, i.view(-1))",
        "y = x.view(-1).index_select(0, i.view(-1))",
    ),
    (
        "NPU203",
        "y = torch.repeat_interleave(x, x.size(0) // 2)",
        "y = x.reshape(-1, 1).expand(-1, x.size(0) // 2).clone().reshape(-1)",
    ),
    (
        "NPU208",
        "y = torch.where(i.long() > 3, 3, i.long())",
        "y = i.long().clamp(max=3)",
    ),
    ("NPU209", "y = len(torch.nonzero(x > 0)) == 0", "y = not (x > 0).any().item()"),
    ("NPU209", "y = x[x > 0].sum()", "y = torch.where(x > 0, x, 0).sum()"),
    ("NPU210", "y = x[torch.randperm(8, device=x.device)]", "index_select(0, "),
    ("NPU212", "y = torch.ones(4, 5).to(x.device)", "y = torch.ones(4, 5, device=x.device)"),
    ("NPU215", "y = (x > 0).cumsum(-1)", "y = (x > 0).cumsum(-1, dtype=torch.int32).long()"),
]


def sites(body: str) -> list[Site]:
    source = f"{HEADER}def f(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor, n: int):\n"
    return list(find_sites(f"{source}    {body}\n    return x, y\n", RULES))


@pytest.mark.parametrize(("rule", "before", "after"), SAFE, ids=[f"{r}-{b}" for r, b, _ in SAFE])
def test_what_is_proven_is_written(rule: str, before: str, after: str) -> None:
    (site,) = sites(before)
    assert site.rule.id == rule
    assert site.safety is Safety.SAFE, [c.name for c in site.open_conditions]
    assert site.rewrite is not None
    assert after in site.rewrite.direct


OPEN = [
    ("x[x > 0] = -1e9", {"value-fits-dtype"}),
    ("x[x > 0] = 2.7", {"value-fits-dtype"}),
    ("y = torch.where(x < y, x, y)", {"no-nan", "ties-without-gradient"}),
    ("y = torch.where(x < 0, 0, x)", {"no-nan"}),
    ("y = torch.where(x > 0, x, 0)", {"no-nan", "ties-without-gradient"}),
    ("y = x.gather(1, i).squeeze(1)", {"one-column-index"}),
    ("x[x > 0] += n.v", {"is-number"}),
    ("y = torch.matmul(x[:, None], y[:, :, None])", {"batches-of-vectors", "single-precision"}),
    (
        "with torch.autocast('npu'): y = torch.bmm(x.float()[:, None], y.float()[:, :, None])",
        {"single-precision"},
    ),
    ("x[i.bool(), :] = 0", {"row-mask"}),
    ("y = F.one_hot(i, n).sum(-2)", {"number-of-classes"}),
    ("y = x[i.long().flatten()]", {"nonnegative-index"}),
    ("y = i.long().cumsum(0)", {"sums-fit-int32"}),
    ("y = (x > 0).nonzero().numel() > 0", {"has-dimensions"}),
]


@pytest.mark.parametrize(("code", "names"), OPEN, ids=[code for code, _ in OPEN])
def test_what_is_not_proven_has_a_name(code: str, names: set[str]) -> None:
    (site,) = sites(code)
    assert {condition.name for condition in site.open_conditions} == names
    assert site.safety is Safety.CONDITIONAL


@pytest.mark.parametrize(
    "code",
    [
        "x[i.long()] = 0",
        "x[x > 0] = y",
        "x[x > 0] = 1 / y[x > 0]",
        "x[x > 0] = y[y > 0]",
        "x[x > 0] += y",
        "x[x > 0] = y[y > 0] + 1",
        "x[x > 0] = x[x > 0] * y",
        "x[x > 0] *= y.sum(0)",
        "x[i.long(), :] = 0",
        "y = torch.matmul(x.view(2, 3, 4)[:, None], y[:, :, None])",
        "x[0] = 0",
        "x[n] += 1",
        "x[:, n] = 0",
        "y = x.repeat_interleave(i)",
        "y = x.repeat_interleave(n, dim=0, output_size=8)",
        "y = torch.where(x < y, 0, x)",
        "y = torch.where(x < 0, y, x)",
        "y = (x > 0).nonzero(), (x > 0).nonzero().size(0)",
        "y = torch.rand(n).to(x.device)",
        "y = x.cumsum(0)",
        "y = x.gather(2, i)",
        "y = x.bmm(y)",
        "y = F.one_hot(i, n)",
        "y = x[n]",
    ],
)
def test_look_alikes_are_not_even_mentioned(code: str) -> None:
    assert [(site.rule.id, site.code) for site in sites(code)] == []


def test_a_position_list_that_is_needed_elsewhere_stays() -> None:
    body = "i = (x > 0).nonzero().squeeze(1)\n    y = x[i].sum() + len(i)"
    assert [s.rule.id for s in sites(body) if s.rewrite is not None] == []


def test_a_column_that_is_squeezed_away_is_not_kept_before() -> None:
    code = (
        "import torch\n\n\ndef f(a: torch.Tensor, b: torch.Tensor):\n"
        "    a, b = a.float().view(-1, 4, 8), b.view(-1, 8, 1)\n"
        "    return torch.bmm(a, b).squeeze(-1)\n"
    )
    (site,) = find_sites(code, [batched_vector_product.RULE])
    assert site.rewrite is not None
    assert site.rewrite.text == "(a * b.transpose(-2, -1)).sum(-1)"


@pytest.mark.parametrize(
    ("dim", "moved", "count"),
    [
        (5, "frustum - by.view(b, 1, 1, 1, 1, 3)", 2),  # six dimensions at least (lift, splat)
        (6, "frustum - by.view(b, 1, 1, 1, 1, 3)", 1),  # two columns
        (5, "frustum - by", 1),  # nobody knows how many
        (5, "by.view(b, 3) * frustum", 2),  # matrices beside those of seven dimensions
    ],
)
def test_columns_of_points_that_are_joined_stay_one(dim: int, moved: str, count: int) -> None:
    code = HEADER + (
        "def f(frustum, by, rots, b):\n"
        f"    p = {moved}\n"
        "    p = torch.inverse(rots).view(b, 1, 1, 1, 1, 3, 3).matmul(p.unsqueeze(-1))\n"
        f"    p = torch.cat((p[:, :, :, :, :, :2] * 2, p[:, :, :, :, :, 2:3]), {dim})\n"
        "    return rots.view(b, 1, 1, 1, 1, 3, 3).matmul(p)\n"
    )
    sites = find_sites(code, [batched_vector_product.RULE])
    assert sum(site.safety in {Safety.SAFE, Safety.CONDITIONAL} for site in sites) == count
