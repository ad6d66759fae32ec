"""Each operator that has a rule of its own for a batch of rows computes what its rounds did."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch

from npufix.rewriters.find import find_sites
from npufix.rules.substitutions.loop_over_rows import RULE

if TYPE_CHECKING:
    from npufix.rewriters.edit.site import Site

HEADER = "import torch\nimport torch.nn.functional as F\nfrom torch import Tensor\n"
SQUARES = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
WHOLE = torch.tensor([[2, 0, 1, 1], [3, 3, 0, 2], [0, 1, 2, 3]])
HEAD = "def f(x: Tensor, y: Tensor, k: Tensor):\n"
STACKED = HEAD + "    return torch.stack([{} for i in range(x.shape[0])])\n"
EXPRESSIONS = [
    "torch.tril(x[i])", "torch.inverse(x[i])", "torch.linalg.det(x[i])", "torch.trace(x[i])",
    "F.layer_norm(x[i], (4,))", "F.linear(x[i], y[0])", "F.one_hot(k[i], 4)",
    "x[i].gather(1, k[i].unsqueeze(1)).squeeze(1)", "torch.gather(x[i], -1, k[i].view(-1, 1))",
    "torch.index_select(x[i], 0, k[i])", "x[i].index_select(1, k[0])", "x[i].flip(0)",
    "x[i].roll(1, -1)", "x[i].repeat_interleave(2, dim=0)", "x[i].narrow(1, 1, 2)",
    "torch.cat([x[i], y[i]], dim=-1)", "torch.stack([x[i], y[i]], 1)",
    "torch.einsum('bd,de->be', x[i], y[0])", "torch.outer(x[i, 0], y[i, 0])",
    "torch.mm(x[i], y[i])", "torch.mv(x[i], y[i, 0])",
    "x[i].norm()", "x[i].norm(1, dim=-1)", "torch.norm(x[i] - y[i], dim=1, keepdim=True)",
    "F.cosine_similarity(x[i], y[i], dim=0)", "F.mse_loss(x[i], y[i])",
    "F.smooth_l1_loss(x[i], y[i], reduction='sum')", "x[i].argmax()", "(x[i] > 0).any()",
    "x[i].diagonal()", "x[i].flatten()", "x[i].reshape(-1)", "x[i].transpose(0, 1)",
    "x[i].flatten(start_dim=0)", "x[i].masked_fill(y[i] > 0, 0.0)", "x[i].scatter(1, k, 1.0)",
    "x[i].permute(1, 0).clone()", "x[i] - y[0]", "x[i] @ x[i].t()",
]  # fmt: skip
_FIRST = "        if i == 0:\n            out = "
_LATER = "        else:\n            "
STATEMENTS = [
    (
        "    out = torch.ones(3, 4, 2)\n    for i in range(x.shape[0]):\n"
        "        if k[i, 0] > 1:\n            out[i, k[i, 1] :] = 0.5\n"
        "            out[i, : k[i, 2], 0] = 7\n    return out\n"
    ),
    (
        "    a = torch.zeros(1)\n    b = 0.0\n    for i in range(x.shape[0]):\n"
        "        one = x[i].sum()\n        a += one\n        b -= y[i, 0].sum() * one\n"
        "    return a, b\n"
    ),
    (
        "    at = x[:, :, 0].argsort(dim=1)[:, :2]\n"
        "    return torch.stack([x[i, row] for i, row in enumerate(at)])\n"
    ),
    (
        "    out = torch.zeros_like(x)\n    for i in range(x.shape[0]):\n"
        "        w = x[i].exp().contiguous()\n"
        "        out[i] = w.to(y.device) * y[i] / w.shape[0] / len(x[i])\n    return out\n"
    ),
    (
        "    out = torch.zeros(4, 3, dtype=x.dtype)\n    for i in range(x.shape[0]):\n"
        "        out[:, i] = x[0, 1] if k[i, 0] > 1 else y[0, 1] * x[1, 2]\n    return out\n"
    ),
    (
        "    made = []\n    for i in range(x.shape[0]):\n        for j in range(x.shape[1]):\n"
        "            made.append((x[i, j] * y[i, j]).sum())\n"
        "    return torch.stack(made).view(3, 4)\n"
    ),
    "    return torch.stack([torch.cat([x[i], y[0].exp()], dim=1) for i in range(x.shape[0])])\n",
    "    return torch.stack([m.exp() for m in x.unbind(2)])\n",
    "    parts = x.unbind(dim=1)\n    return torch.stack([m.t() for m in parts])\n",
    "    return torch.stack([m.mean(0) for m in x.chunk(2, dim=1)])\n",
    "    return torch.cat([m.exp() for m in x.split(1, dim=1)], dim=1)\n",
    "    return torch.stack([a * b for a, b in zip(x.unbind(0), y.unbind(0))])\n",
    "    return torch.stack([r.softmax(-1) for r in x.transpose(0, 1)])\n",
    (
        "    for i in range(x.shape[0]):\n        n = torch.sqrt(x[i] ** 2 + y[i] ** 2) + 0.1\n"
        "        x[i] /= n\n        y[i] /= n\n    return x, y\n"
    ),
    (
        "    out = []\n    for i in range(k.shape[0]):\n        a, b, c, d = k[i]\n"
        "        out.append(a * d - b * c)\n    return torch.stack(out)\n"
    ),
    (
        "    out = torch.zeros_like(x)\n    for i in range(x.shape[0]):\n"
        "        if k[i, 0] > 0:\n            out[i] = x[i] * 2\n    return out\n"
    ),
    "    return sum(x[:, i] * y[:, i] for i in range(x.shape[1]))\n",
    (
        "    total = 0.0\n    for c in range(4):\n"
        "        p = x[:, c]\n        g = (k == c).float()\n"
        "        total += 1 - 2 * (p * g).sum() / (p.abs().sum() + g.sum() + 1e-6)\n"
        "    return total\n"
    ),
    (
        "    total = 0.0\n    for c in range(1, x.shape[1]):\n"
        "        total = total + ((x[:, c] - y[:, c]) * (k == c)).sum()\n    return total\n"
    ),
    (
        "    n, w, _ = x.shape\n"
        "    at = torch.cat([torch.full((w // 2, 1), i + 1, dtype=torch.long) for i in range(n)])\n"
        "    return at, torch.stack([x.new_full([2], i) for i in range(1, n)])\n"
    ),
    (
        "    out = []\n    for i in range(x.shape[0]):\n"
        "        out.append(torch.full((2, 1), i, device=x.device))\n    return torch.cat(out, 1)\n"
    ),
    "    return torch.stack([r.exp() for r in x + y])\n",
    "    return torch.stack([x + (1 - 2 * x) / 3 * i for i in range(4)], -1)\n",
    "    for i in range(x.shape[0]):\n        x[i].mul_(y[i])\n    return x\n",
    "    return torch.stack([((k > 0) == i).float().flatten(start_dim=1) for i in range(3)])\n",
    (
        "    out = torch.zeros(0, 4, dtype=x.dtype)\n    for i in range(x.shape[0]):\n"
        "        out = torch.cat((out, x[i] * y[i]), dim=0)\n    return out\n"
    ),
    (
        "    total = 0.0\n    for i in range(x.shape[0]):\n        if k[i, 0] == 0:\n"
        "            continue\n        total = total + x[i].sum()\n    return total\n"
    ),
    (
        "    total = x.new_zeros(())\n    for i in range(x.shape[0]):\n"
        "        if k[i, 0] > 1:\n            total += (x[i] * y[i]).mean()\n    return total\n"
    ),
    (
        "    total = 0.0\n    for i in range(x.shape[0]):\n        e = x[i].exp()\n"
        "        e *= y[i]\n        total = total + e\n    return total\n"
    ),
    (
        "    table = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0]])\n    best = k.min(1)[1]\n"
        "    return torch.stack([table[m] for m in best])\n"
    ),
    (
        "    for b in range(k.shape[0]):\n"
        "        x[b, :, 1][x[b, :, 1] >= k[b, 0]] = k[b, 0] - 1\n    return x\n"
    ),
    (
        "    out = torch.zeros(3, 4, 4).double()\n    for i in range(x.shape[1]):\n"
        "        out[:, i] = x[:, i].sigmoid() + 1\n    return out\n"
    ),
    # the first round makes what the others add to
    *(
        f"    for i in range(x.shape[0]):\n        row = x[i] * 2\n{begun}    return out\n"
        for begun in (
            f"{_FIRST}row * y[i]\n{_LATER}out += row * y[i]\n",
            "        out = row.exp() if not i else out + row.exp()\n",
            f"{_FIRST}row.exp()\n{_LATER}out = torch.cat([out, row.exp()], 1)\n",
        )
    ),
]


def _written(code: str) -> Site | None:
    sites = [s for s in find_sites(HEADER + code, [RULE]) if s.rewrite]
    return sites[0] if sites else None


def _run(code: str, args: tuple[Any, ...]) -> Any:
    scope: dict[str, Any] = {}
    exec(code, scope)  # noqa: S102 - code of this file
    return scope["f"](*copy.deepcopy(args))


def _check(code: str) -> None:
    site = _written(code)
    assert site is not None, code
    args = SQUARES, SQUARES.flip(0).transpose(1, 2).contiguous(), WHOLE
    torch.testing.assert_close(
        _run(site.rewrite.direct, args), _run(HEADER + code, args), check_stride=False
    )


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_of_rows(expression: str) -> None:
    _check(STACKED.format(expression))


@pytest.mark.parametrize("body", STATEMENTS)
def test_what_a_loop_runs_over_and_binds(body: str) -> None:
    _check(HEAD + body)


@pytest.mark.parametrize(
    "expression",
    [
        "F.one_hot(k[i])",  # as many classes as the largest of the row
        "x[i].roll(1)",  # of the flat tensor
        "torch.einsum('...d,de->...e', x[i], y[0])",
        "F.kl_div(x[i], y[i], reduction='batchmean')",
        "x[i].repeat_interleave(k[i], dim=0)",  # rows of different lengths
        "F.linear(x[i], y[i])",
        "F.dropout(x[i], 0.5)",
        "torch.full((k[i, 0], 1), i)",
        "torch.full((2, 1), i, dtype=torch.bool)",  # ``True`` of all but the first
        "torch.full((2, 1), i / 2)",
        "torch.full((2, 1), i, pin_memory=True)",
    ],
)
def test_what_treats_rows_in_another_way_stays(expression: str) -> None:
    assert _written(STACKED.format(expression)) is None


@pytest.mark.parametrize(
    "body",
    [
        "        x[i] = x[i - 1] + y[i]\n",
        "        x[i] = x[:, i] + y[i]\n",
        "        x[k[0, i], i] = x[k[0, i], 0] + 1\n",
        "        row = x[i]\n        row *= y[i]\n        y[i] = row\n",  # a view
    ],
)
def test_rows_that_another_round_writes_stay(body: str) -> None:
    code = (
        f"def f(x: Tensor, y: Tensor, k: Tensor):\n    for i in range(1, 3):\n{body}    return x\n"
    )
    assert _written(code) is None


@pytest.mark.parametrize(
    "body",
    [
        "    for i in range(3):\n        made.append(x[i] * 2)\n    return made\n",
        (
            "    for i in range(3):\n        made.append(x[i])\n        made.append(y[i])\n"
            "    return torch.stack(made)\n"
        ),
        (
            "    for i in range(3):\n        for j in range(2):\n"
            "            made.append(x[i].exp() * j)\n"
            "    return torch.stack(made)\n"
        ),
        (
            "    for i in range(3):\n        made.append(x[i].log() if k[i, 0] > 0 else y[i])\n"
            "    return torch.stack(made)\n"
        ),
    ],
)
def test_lists_of_rows_in_another_order_stay(body: str) -> None:
    assert _written(HEAD + "    made = []\n" + body) is None


@pytest.mark.parametrize(
    ("rounds", "test", "first"),
    [
        ("range(3)", "i == 1", "x[i] * 2"),
        ("range(1, 3)", "i == 0", "x[i] * 2"),
        ("range(3)", "i == 0", "x[i] * 3"),
        ("range(3)", "k[i, 0] == 0", "x[i] * 2"),
    ],
)
def test_totals_that_begin_otherwise_stay(rounds: str, test: str, first: str) -> None:
    last = f"        out = {first} if {test} else out + x[i] * 2\n    return out\n"
    assert _written(f"{HEAD}    for i in {rounds}:\n{last}") is None
    view = "        if i == 0:\n            out = x[i]\n        else:\n            out += x[i]\n"
    assert _written(f"{HEAD}    for i in range(3):\n{view}    return out\n") is None
    before = "        out = x[i] * 2 if i == 0 else out + x[i] * 2\n    return out\n"
    assert _written(f"{HEAD}    out = y\n    for i in range(len(x)):\n{before}") is None


@pytest.mark.parametrize("made", ["x[i] / k[i, 0]", "x[i].log()", "y[k[i, 0]]"])
def test_what_may_fail_in_a_round_that_is_left_out_stays(made: str) -> None:
    body = f"        if k[i, 0] > 0:\n            total = total + ({made}).sum()\n"
    loop = f"    total = 0.0\n    for i in range(x.shape[0]):\n{body}    return total\n"
    assert _written(HEAD + loop) is None


@pytest.mark.parametrize(
    "total",
    [
        "total = total * 0.9 + (x[:, c] * (k == c)).sum()",
        "total += (x[:, c] * (k == total)).sum()",
        "total += (x[:, c] * y.mul_(2)[:, c]).sum()",
        "total += (x[:, c] * (k == c))[k == c].mean()",
    ],
)
def test_columns_of_classes_that_rounds_pass_on_stay(total: str) -> None:
    loop = f"    total = 0.0\n    for c in range(4):\n        {total}\n    return total\n"
    assert _written(HEAD + loop) is None


def test_columns_that_meet_other_tensors_ask_for_their_dimensions() -> None:
    site = _written(HEAD + "    return sum((x[:, c] * (k == c)).sum() for c in range(4))\n")
    assert site is not None
    assert "same-dimensions" in {condition.name for condition in site.open_conditions}


@pytest.mark.parametrize(
    ("begun", "added", "sum_of", "is_asked"),
    [
        ("0.0", "total += x[i]", "x.sum(0)", False),
        ("torch.zeros(4, 4)", "total += x[i]", "x.sum(0, dtype=total.dtype)", False),
        ("x[0].float()", "total += y[i]", "].sum(0, dtype=total.dtype)", False),
        ("torch.zeros(4, 4)", "total = total + x[i]", "x.sum(0)", True),
        (
            "torch.zeros(4, 4)",
            "total += x[i].float()",
            "x.float().sum(0, dtype=total.dtype)",
            False,
        ),
        ("torch.zeros_like(x[0])", "total = total + x[i] * 2", "(x * 2).sum(0)", False),
        ("torch.zeros_like(y[0])", "total += x[i]", "x.sum(0)", True),
        ("torch.zeros(4, 4, dtype=x.dtype)", "total += x[i]", "x.sum(0)", False),
        ("torch.zeros(4, 4, dtype=x.dtype)", "total += x[i].half()", "x.half().sum(0)", True),
        ("k", "total += x[i]", "x.sum(0)", True),
    ],
)
def test_rows_are_added_up_in_no_narrower_dtype(
    begun: str, added: str, sum_of: str, *, is_asked: bool
) -> None:
    loop = f"    for i in range(x.shape[0]):\n        {added}\n    return total\n"
    site = _written(f"{HEAD}    total = {begun}\n{loop}")
    assert site is not None
    assert site.rewrite is not None
    assert site.rewrite.text.endswith(sum_of)
    assert ("same-dtype" in {c.name for c in site.open_conditions}) is is_asked


def test_what_stands_open_is_told() -> None:
    made = "torch.stack([(a - b).norm(dim=-1) for a, b in zip(x, y)])"
    site = _written(f"{HEAD}    return {made}\n")
    assert site is not None
    names = {condition.name for condition in site.open_conditions}
    assert {"as-many-of-both", "same-dimensions", "rows-of-several"} <= names


def test_rows_with_a_norm_along_a_dimension_are_taken_for_no_numbers() -> None:
    """``v[0, i]`` is a number as far as its index tells, but for the norm of its second axis."""
    code = (
        "def f(self, m: torch.Tensor, n: int):\n    for i in range(n):\n"
        "        m[0, i] = m[0, i] * self.v[0, i].norm(dim=1)\n    return m\n"
    )
    assert _written(code) is None


@pytest.mark.parametrize(("second", "is_asked"), [("x.split(2)", False), ("x.split(3)", True)])
def test_parts_of_other_sizes_are_no_more_rounds(second: str, *, is_asked: bool) -> None:
    made = f"torch.stack([a.sum(0) * b.sum(0) for a, b in zip(x.split(2), {second})])"
    site = _written(f"{HEAD}    return {made}\n")
    assert site is not None
    assert ("as-many-of-both" in {c.name for c in site.open_conditions}) is is_asked


def test_parts_without_a_number_of_them_stay() -> None:
    assert _written(f"{HEAD}    return torch.stack([a for a in x.chunk(dim=0)])\n") is None


def test_totals_that_rounds_read_stay() -> None:
    body = "        a += x[i].sum()\n        b += a * x[i].mean()\n"
    loop = f"    a = b = 0.0\n    for i in range(x.shape[0]):\n{body}    return b\n"
    assert _written(HEAD + loop) is None


@pytest.mark.parametrize(
    ("rounds", "made", "is_written"),
    [
        ("a in x.unbind(1)", "a.relu() * 2", True),
        ("a, b in zip(x.unbind(0), y.unbind(0))", "(a - b).abs().sum()", True),
        # each round needs the one before it; anything may have chunks
        ("a in x.unbind(1)", "out[-1] + a if out else a", False),
        ("a in x.chunk(2)", "a.relu() * 2", False),
    ],
)
def test_only_tensors_are_taken_apart_by_unbind(
    rounds: str, made: str, *, is_written: bool
) -> None:
    loop = f"    out = []\n    for {rounds}:\n        out.append({made})\n"
    code = f"def f(x, y):\n{loop}    return torch.stack(out)\n"
    sites = [s for s in find_sites(HEADER + code, [RULE]) if s.rewrite is not None]
    assert bool(sites) == is_written
    for site in sites:
        assert site.rewrite is not None
        assert "is-tensor" in {c.name for c in site.open_conditions}
        args = (SQUARES, SQUARES.flip(0))
        torch.testing.assert_close(_run(site.rewrite.direct, args), _run(HEADER + code, args))


@pytest.mark.parametrize(("put", "is_written"), [("int(k[0, 0])", True), ("", False)])
def test_what_others_have_put_into_a_list_may_be_rows(put: str, *, is_written: bool) -> None:
    """``places`` of one branch is empty, and in the other nobody sees whether it holds numbers."""
    put = f"        places.append({put})\n" if put else ""
    code = (
        "def f(x: Tensor, out: Tensor, k: Tensor, chosen):\n    places = []\n"
        f"    for _ in x:\n        pass\n{put}"
        "    if chosen is not None:\n        places = chosen(k)\n"
        "    for i, (row, place) in enumerate(zip(x, places)):\n"
        "        out[i, place] = row\n    return out\n"
    )
    assert (_written(code) is not None) is is_written
