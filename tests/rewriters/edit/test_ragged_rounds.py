"""Loops of which each round takes a part of its row: the same for all rows under a mask."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from npufix.rewriters.find import find_sites
from npufix.rules.substitutions.loop_over_rows import RULE

HEADER = "import torch\nfrom torch import Tensor, nn\n"
LENGTHS = torch.tensor([2, 4, 3])
# What rows do not have is NaN: it must show nowhere, neither in values nor in gradients.
KNOWN = torch.arange(4) < LENGTHS[:, None]
X = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
X = X.masked_fill(~KNOWN[..., None], float("nan"))

JOINED = (
    "x[i, :n[i]].mean(0)",
    "x[i, :n[i]].mean(dim=0, keepdim=True)",
    "x[i, :n[i], 1].sum()",
    "x[i, :n[i], 0].var()",
    "x[i, :n[i]].amax(0)",
    "x[i, :n[i]].min(dim=0).values",
    "x[i, :n[i], 1].argmax()",
    "(x[i, :n[i], 0].softmax(0) * x[i, :n[i], 1]).sum()",
    "x[i, :n[i], 2].exp().sum()",
    "(x[i, :n[i]] ** 2).sum(-1).mean()",
    "(x[i, : n[i].item(), 0] > c[i, 0]).any()",
    "torch.logsumexp(x[i, :n[i], 3], dim=0)",
    "(x[i, :n[i], 0] - c[i, 0]).abs().mean()",
    "(x[i, 1 : n[i], 0] * 2).sum()",
    "nn.functional.mse_loss(x[i, :n[i], 0], c[i, :n[i]])",
)
JOINS = (
    "torch.cat([x[i, :k] for i, k in enumerate(n)])",
    "torch.cat([x[i, :n[i]].exp() - 1 for i in range(len(n))], dim=0)",
)
STAYS = (
    "torch.stack([x[i, :n[i], 0].std() for i in range(len(n))])",
    "torch.stack([x[i, 1 : n[i], 0].argmin() for i in range(len(n))])",
    "torch.stack([x[i, n[i] :].max(0).indices for i in range(len(n))])",
    "torch.stack([x[i, torch.randperm(width)].sum(0) for i in range(len(n))])",
    "torch.stack([x[i, : int(torch.randint(3, ()))].sum(0) for i in range(len(n))])",
    "torch.stack([x[i, :n[i]].median(0).values for i in range(len(n))])",
    "torch.stack([x[i, :n[i]].cumsum(0)[-1] for i in range(len(n))])",
    "torch.stack([x[i, :n[i], 0].log().sum() for i in range(len(n))])",
    "torch.stack([(x[i, :n[i], 0] / c[i, :n[i]]).sum() for i in range(len(n))])",
    "torch.stack([(x[i, :n[i], 0] - c[i, 1 : n[i]]).sum() for i in range(len(n))])",
    "torch.stack([(x[i, :n[i], 0] - c[i]).sum() for i in range(len(n))])",
    "torch.stack([x[i, : -n[i]].sum(0) for i in range(len(n))])",
    "torch.stack([x[i, :n[i]][0] for i in range(len(n))])",
    "torch.cat([x[i, :n[i]] for i in range(len(n))], dim=1)",
    "torch.cat([x[i, :k] for i, k in enumerate(n.tolist())])",  # views, for which nothing waits
)


def _site(returned: str) -> Any:
    text = (
        f"{HEADER}def f(x: Tensor, n: Tensor, c: Tensor):\n"
        "    rows, width, channels = x.shape\n    assert c.dim() == 2\n"
        f"    return {returned}\n"
    )
    return text, next(iter(find_sites(text, [RULE])), None)


def _run(text: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    scope: dict[str, Any] = {}
    exec(text, scope)  # noqa: S102 - the text above
    x = X.clone().requires_grad_()
    found = scope["f"](x, LENGTHS, torch.arange(12.0, dtype=torch.float64).view(3, 4) / 9)
    if not found.requires_grad:
        return found, None
    found.square().sum().backward()
    return found, x.grad


@pytest.mark.parametrize(
    "returned", [f"torch.stack([{made} for i in range(len(n))])" for made in JOINED] + [*JOINS]
)
def test_parts_of_rows_are_computed_under_a_mask(returned: str) -> None:
    text, site = _site(returned)
    assert site is not None
    assert site.rewrite is not None
    assert " for " not in site.rewrite.direct
    old, new = _run(text), _run(site.rewrite.direct)
    torch.testing.assert_close(new, old)


@pytest.mark.parametrize("returned", STAYS)
def test_what_a_mask_does_not_say_stays(returned: str) -> None:
    _, site = _site(returned)
    assert site is None or site.rewrite is None


def test_a_list_of_views_that_is_joined_later_stays() -> None:
    text = (
        f"{HEADER}def f(x: Tensor, counts: list[int]):\n"
        "    parts = [row[:n] for row, n in zip(x, counts)]\n    return torch.cat(parts, dim=0)\n"
    )
    assert all(site.rewrite is None for site in find_sites(text, [RULE]))


def test_a_mean_or_variance_of_too_little_is_nan_as_before() -> None:
    for reduction, lacks in (("mean", [True, False, False]), ("var", [True, True, False])):
        _, site = _site(f"torch.stack([x[i, :n[i]].{reduction}(0) for i in range(len(n))])")
        assert {p.condition.name for p in site.proofs} >= {"sum-fits-dtype"}  # of float16
        scope: dict[str, Any] = {}
        exec(site.rewrite.direct, scope)  # noqa: S102 - the text above
        for lengths in (torch.tensor([0, 1, 3]), torch.tensor([[0], [1], [3]])):
            found = scope["f"](torch.ones(3, 3, 2), lengths, torch.ones(1, 1))
            assert found.isnan().tolist() == [[lack] * 2 for lack in lacks]


def _of_rounds(*lines: str) -> Any:
    body = "".join(f"        {line}\n" for line in lines)
    text = (
        f"{HEADER}def f(x: Tensor, n: Tensor, w: Tensor, flag: bool):\n"
        "    rows, width = x.shape\n    assert w.dim() == 2\n    out = x.new_zeros(rows)\n"
        f"    for i in range(rows):\n{body}    return out\n"
    )
    return text, next(iter(find_sites(text, [RULE])))


MEAN_OF_NONE = (
    ("if n[i] > 0:", "    out[i] = x[i, :n[i]].mean() * w[0, 0]"),
    ("m = x[i, :n[i]].mean()", "if n[i] > 0:", "    out[i] = m * w[i, 0]"),
)
LENGTH_OF_BEFORE = (("k = int(n[i])", "n[i] = 1", "out[i] = x[i, :k].sum()"),)


@pytest.mark.parametrize("lines", MEAN_OF_NONE + LENGTH_OF_BEFORE)
def test_what_a_mask_for_all_rounds_would_change_stays(lines: tuple[str, ...]) -> None:
    assert _of_rounds(*lines)[1].rewrite is None


MASKS = (
    (("out[i] = (x[i, :n[i]] * w[i, :n[i]]).sum()",), 1, True),
    (("p = x[i, :n[i]].sum()", "n[i] = 1", "out[i] = p + x[i, :n[i]].sum()"), 2, False),
    (("if flag:", "    out[i] = x[i, :n[i]].sum()", "out[i] += x[i, 1:].sum()"), 1, False),
    (("if flag:", "    w[i, 0] = x[i, :n[i]].sum()", "out[i] = x[i, :n[i]].sum()"), 2, False),
)


@pytest.mark.parametrize(("lines", "masks", "asks"), MASKS)
def test_a_mask_serves_all_parts_of_the_same_lengths(
    lines: tuple[str, ...],
    masks: int,
    asks: bool,  # noqa: FBT001
) -> None:
    text, site = _of_rounds(*lines)
    assert site.rewrite is not None
    assert site.rewrite.direct.count("known = ") == masks
    assert any(p.condition.name == "one-width" for p in site.proofs) is asks
    for flag in (True, False):
        found = []
        for code in (text, site.rewrite.direct):
            scope: dict[str, Any] = {}
            exec(code, scope)  # noqa: S102 - the text above
            x = torch.arange(12.0).view(3, 4)
            found.append(scope["f"](x, LENGTHS.clone(), x.clone() + 1, flag))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize(("index", "asks"), [("n", True), ("n.argsort(-1)", False)])
def test_picks_by_vectors_ask_for_integers(index: str, asks: bool) -> None:  # noqa: FBT001
    text = (
        f"{HEADER}def f(x: Tensor, n: Tensor):\n    rows, width, c = x.shape\n"
        f"    r, k = n.shape\n    at = {index}\n"
        "    return torch.stack([x[i, at[i]] for i in range(rows)])\n"
    )
    (site,) = find_sites(text, [RULE])
    assert site.rewrite is not None
    assert any(p.condition.name == "integer-index" for p in site.proofs) is asks
