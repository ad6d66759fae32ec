"""Two tensors of one value are two tensors once something is written to one of them."""

from __future__ import annotations

import pytest
from rewriting_snippets import assert_same_behaviour, direct, program, sites, written

NORM = "return w * (a * torch.rsqrt(b.pow(2).mean(-1, keepdim=True) + eps))"
PICK = "return b.gather(1, i.view(-1, 1))"
FILL = "b[b < 0] = 0\nreturn a, b"


def function(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"def f(x: torch.Tensor, w, eps, i: torch.Tensor, other):\n{lines}"


LEFT_ALONE = {
    "one of two is changed": f"a = x + 1\nb = x + 1\na.relu_()\n{NORM}",
    "one of two is picked from": f"a = x + 1\nb = x + 1\na.relu_()\n{PICK}",
    "a view of one is changed": f"a = x + 1\nb = x + 1\nv = a.view(-1)\nv[0] = 1\n{PICK}",
    "one is passed on": f"a = x + 1\nb = x + 1\nother(a)\n{PICK}",
    "one is kept": f"a = x + 1\nb = x + 1\nother.a = a\nother()\n{PICK}",
    "one is kept in a list": f"a = x + 1\nb = x + 1\nkept = [a]\nother(kept)\n{PICK}",
    "one may be another": f"a = x + 1\nb = x + 1\nc = a if i else x\nc[0] = 1\n{PICK}",
    "both at once": f"a, b = x + 1, x + 1\na += 1\n{PICK}",
    "one by assigning to its places": f"a = x.float()\nb = x.float()\na[0] = 1\n{PICK}",
    "one of two copies of rows": f"a = x[i]\nb = x[i]\na[0] = 1\n{PICK}",
    "one in a loop": f"a = x + 1\nb = x + 1\nfor _ in i:\n    a.relu_()\n{PICK}",
    "one carried by a loop": (
        f"a = x + 1\nb = x + 1\nfor _ in i:\n    a.relu_()\n    a = a.view(-1)\n{PICK}"
    ),
    "one of two is what the rule writes to": f"a = x + 1\nb = x + 1\n{FILL}",
    "two casts": f"a = x.float()\nb = x.float()\n{FILL}",
    "two parts": f"a = x[i]\nb = x[i]\n{FILL}",
    "two equal stacks": "a = torch.stack(w)\nb = torch.stack(w)\nb[0][b[0] < 0] = 0\nreturn a, b",
    "an element of a tuple": "t = (x + 1, w)\nt[0][t[0] < 0] = 0\nreturn t",
}


@pytest.mark.parametrize("body", LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_left_alone(body: str) -> None:
    assert written(sites(function(body), "NPU101", "NPU201", "NPU202")) == []


_AT_ANY_RANK = "b[0].masked_fill_({} < 0, 0)"
CHANGED = {
    "nothing was written": (
        f"a = x.float().abs()\nb = x.float().abs()\n{PICK}",
        "return b[",
    ),
    "something else was": (
        "a = x + 1\nb = x + 1\nw = w.clone()\nw[0] = 1\nreturn b.gather(1, i.view(-1, 1)), w",
        "return b[",
    ),
    "two views": ("a = x.view(-1)\nb = x.view(-1)\nb[b < 0] = 0", "b.masked_fill_(b < 0, 0)"),
    "two new tensors": (
        "a = torch.zeros_like(x)\nb = torch.zeros_like(x)\nb[x < 0] = 1\nreturn a, b",
        "b.masked_fill_(x < 0, 1)",
    ),
    "two equal lists": (
        "a = [x, w]\nb = [x, w]\ny = a[0] + 1\nb[0][a[0] < 0] = 0\nreturn a, b, y",
        _AT_ANY_RANK.format("a[0]"),
    ),
    "two empty lists": (
        "a = []\nb = []\nother(a, b)\nv = a[0]\nb[0][v < 0] = 0\nreturn a, b",
        _AT_ANY_RANK.format("v"),
    ),
    "two empty lists at once": (
        "a, b = [], []\nother(a, b)\nv = a[0]\nb[0][v < 0] = 0\nreturn a, b",
        _AT_ANY_RANK.format("v"),
    ),
    "an element of a list": (
        "for k, v in enumerate(w):\n    w[k][w[k] < 0] = 0",
        "w[k].masked_fill_(w[k] < 0, 0)",
    ),
    "equal lengths": (
        "n = i.size(0) - 1\na = other(x[:n + 1], n + 1)\na[a < 0] = 0",
        "a.masked_fill_(a < 0, 0)",
    ),
    "an attribute": ("w.v = x + 1\nw.v[w.v < 0] = 0", "w.v.masked_fill_(w.v < 0, 0)"),
    "a new tensor kept as an attribute": (
        "w.v = torch.ones(3, 4)\nw.v[w.v > 0] = 0",
        "w.v.masked_fill_(w.v > 0, 0)",
    ),
}


@pytest.mark.parametrize(("body", "text"), CHANGED.values(), ids=CHANGED.keys())
def test_changed(body: str, text: str) -> None:
    assert text in direct(function(body), "NPU201", "NPU202")


def test_the_tensor_that_was_written_to_is_the_one_that_is() -> None:
    import torch

    code = """
    def f(x: torch.Tensor):
        a = torch.zeros_like(x)
        b = torch.zeros_like(x)
        b[x < 0] = 1
        return a, b
    """
    assert_same_behaviour(program(code), program(direct(code, "NPU201")), {"x": torch.randn(3, 4)})
