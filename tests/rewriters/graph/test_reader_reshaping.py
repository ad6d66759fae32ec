"""Tensors that get another shape in place: what is known of one holds for a moment only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rewriting_snippets import direct, sites, written

from npufix.rules.substitution import Safety

if TYPE_CHECKING:
    from npufix.rewriters.edit.site import Site


def function(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"def f(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor, w, n):\n{lines}"


def fits_any_shape(site: Site) -> bool:
    """Tell whether the new code asks for the numbers of dimensions when it runs."""
    return site.rewrite is not None and "dim() - " in site.rewrite.text


CHANGES = [
    "x.unsqueeze_(0)", "x.squeeze_()", "x.resize_(2, 3)", "x.t_()", "torch.add(y, y, out=x)",
    "x.data = y", "torch.resize_as_(x, y)", "x.set_(y)",
]  # fmt: skip
FOUND = {
    "a mask made afterwards": ("{}\nx[x < 0] = 0", "x.masked_fill_(x < 0, 0)"),
    "a mask made and used before": ("x[x < 0] = 0\n{}", "x.masked_fill_(x < 0, 0)"),
    "views made afterwards": (
        "{}\nv = x.view(-1)\nv[y.view(-1) > 0] = 0",
        "v.masked_fill_(y.view(-1) > 0, 0)",
    ),
    "an index made afterwards": (
        "{}\nreturn x.view(-1, 8).gather(1, i.view(-1, 1))",
        "index.squeeze(1)",
    ),
}
OPEN = {
    "a number of dimensions that was": (
        "a, b = x.shape\n{}\nreturn x.gather(1, i).squeeze(1)",
        {"one-column-index"},
    ),
    "a mask of the old shape": ("m = x < 0\n{}\nx[m] = 0", {"same-rank-mask"}),
    "a mask computed from one of the old shape": (
        "a = x.abs()\n{}\nx[a < 1] = 0",
        {"boolean-mask", "same-rank-mask"},
    ),
    "two masks, one of the old shape": (
        "m = x < 0\n{}\nx[m & (m | m)] = 0",
        {"same-rank-mask"},
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("body", "text"), FOUND.values(), ids=FOUND.keys())
def test_what_is_proven_at_the_moment_is_written(change: str, body: str, text: str) -> None:
    code = function(body.format(change))
    (site,) = written(sites(code, "NPU201", "NPU202"))
    assert site.safety is Safety.SAFE, [c.name for c in site.open_conditions]
    assert text in direct(code, "NPU201", "NPU202")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("body", "names"), OPEN.values(), ids=OPEN.keys())
def test_what_was_proven_before_is_open(change: str, body: str, names: set[str]) -> None:
    found = written(sites(function(body.format(change)), "NPU201", "NPU202"))
    assert found
    for site in found:
        assert names & {c.name for c in site.open_conditions} or fits_any_shape(site)


NOT_PROVEN = {
    "a view with the old lengths": (
        "x = y.view(-1, 8)\nx.unsqueeze_(0)\nreturn x.gather(1, i)",
        "NPU202",
    ),
    "an index with a new dimension": (
        "x = x.view(-1, 8)\ni = i.view(-1, 1)\ni.unsqueeze_(-1)\nreturn x.gather(1, i)",
        "NPU202",
    ),
    "in the next round": (
        "m = x < 0\nfor _ in y:\n    x[m] = 0\n    x.unsqueeze_(0)",
        "NPU201",
    ),
    "by another name": ("z = x\nm = x < 0\nz.unsqueeze_(0)\nx[m] = 0", "NPU201"),
    "in one branch": ("m = x < 0\nif n:\n    x.unsqueeze_(0)\nx[m] = 0", "NPU201"),
    "in a context": ("m = x < 0\nwith n:\n    x.unsqueeze_(0)\nx[m] = 0", "NPU201"),
    "in finally": (
        "m = x < 0\ntry:\n    n()\nfinally:\n    x.unsqueeze_(0)\nx[m] = 0",
        "NPU201",
    ),
}


@pytest.mark.parametrize(("body", "rule"), NOT_PROVEN.values(), ids=NOT_PROVEN.keys())
def test_not_proven(body: str, rule: str) -> None:
    found = sites(function(body), rule)
    assert all(site.safety is not Safety.SAFE or fits_any_shape(site) for site in found)


NOT_MATCHED = {
    "a half by the old length": (
        "h = x.shape[-1] // 2\nx.unsqueeze_(-1)\nreturn F.silu(x[..., :h]) * x[..., h:]"
    ),
    "the last dimension as it was": (
        "d = x.ndim - 1\nx.unsqueeze_(0)\n"
        "return w * (x * torch.rsqrt(x.pow(2).mean(d, keepdim=True) + n))"
    ),
    "rows by the old length": (
        "a = x.size(1)\nx.resize_(8, 8)\nreturn x.gather(0, i.view(-1, 1).expand(-1, a))"
    ),
}


@pytest.mark.parametrize("body", NOT_MATCHED.values(), ids=NOT_MATCHED.keys())
def test_an_old_length_is_not_the_length(body: str) -> None:
    found = sites(function(body), "NPU101", "NPU103", "NPU202")
    assert all(site.safety is not Safety.SAFE for site in found)


@pytest.mark.parametrize(
    ("dim", "count"), [("x.ndim - 1", 1), ("x.dim() - 1", 1), ("y.ndim - 1", 0)]
)
def test_the_last_dimension_is_that_of_the_tensor_itself(dim: str, count: int) -> None:
    code = function(f"return w * (x * torch.rsqrt(x.pow(2).mean({dim}, keepdim=True) + n))")
    assert len(written(sites(code, "NPU101"))) == count


@pytest.mark.parametrize(
    ("known", "count"),
    [
        ("assert x.dim() == 3", 1),
        ("b, l, d = x.shape", 1),
        ("b, h, l, d = x.shape", 0),  # the dimension before the last one
        ("b = x.shape[0]", 0),
        ("assert x.dim() == 3\nif n:\n    x = x.float()", 1),
        ("assert x.dim() == 3\nif n:\n    x = x[0]", 0),
    ],
)
def test_the_third_of_three_dimensions_is_the_last_one(known: str, count: int) -> None:
    code = function(f"{known}\nreturn w * (x * torch.rsqrt(x.pow(2).mean(2, keepdim=True) + n))")
    assert len(written(sites(code, "NPU101"))) == count


@pytest.mark.parametrize(
    ("halves", "count"),
    [
        ("x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]", 1),
        ("x.chunk(2, dim=-1)", 1),
        ("x[0, ..., : x.shape[-1] // 2], x[0, ..., x.shape[-1] // 2 :]", 0),  # one dimension less
    ],
)
def test_a_range_has_as_many_dimensions_as_the_tensor_it_is_of(halves: str, count: int) -> None:
    code = function(f"a, b = {halves}\nreturn x * w + torch.cat((-b, a), dim=len(x.shape) - 1) * n")
    assert len(sites(code, "NPU102")) == count
