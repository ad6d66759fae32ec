"""Loops whose rounds choose, count by hand, or write one number: the same for all rows at once."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from npufix.rewriters.find import find_sites
from npufix.rules.substitutions.loop_over_rows import RULE

HEADER = "import torch\nimport torch.nn.functional as F\nfrom torch import Tensor\n"
X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
N = torch.tensor([0, 5, 2, 7])

WRITTEN: dict[str, tuple[str, tuple[Any, ...]]] = {
    "a bound": (
        (
            "def f(n: Tensor, most: int):\n    for i, one in enumerate(n):\n"
            "        if one > most:\n            n[i] = most\n    return n\n"
        ),
        (N, 3),
    ),
    "rows of the other arm stay": (
        (
            "def f(x: Tensor, n: Tensor):\n    y = torch.ones(x.shape[0], x.shape[1])\n"
            "    for i in range(x.shape[0]):\n        if n[i] > 1 and not n[i] > 6:\n"
            "            y[i, :2] += x[i, :2]\n        else:\n            y[i] = 0\n    return y\n"
        ),
        (X, N),
    ),
    "one of two values": (
        (
            "def f(x: Tensor, n: Tensor):\n    found = []\n    for i in range(n.shape[0]):\n"
            "        if n[i] >= 2:\n            a = x[i, 0] * 2\n"
            "        else:\n            a = x[i, 1]\n"
            "        found.append(a)\n    return torch.stack(found)\n"
        ),
        (X, N),
    ),
    "what is in a row, counted by hand": (
        (
            "def f(seq: Tensor, one: Tensor):\n    hit = torch.zeros(seq.shape[0])\n    k = 0\n"
            "    for a, b in zip(seq, one):\n        if b in a:\n            hit[k] = 1\n"
            "        k += 1\n    return hit\n"
        ),
        (torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.tensor([2, 2, 5])),
    ),
    "one number in two places": (
        (
            "def f(n: int):\n    m = torch.ones(2 * n, 2 * n)\n    for i in range(n):\n"
            "        m[i, n + i] = 0\n        m[n + i, i] = 0\n    return m\n"
        ),
        (3,),
    ),
    "pieces that are written": (
        (
            "def f(n: int, k: int):\n    m = torch.ones(2, 8, 3)\n    for i in range(k):\n"
            "        m[:, i * n : (i + 1) * n, -1] = i * 0.5\n    return m\n"
        ),
        (2, 3),
    ),
    "pieces that are computed of themselves": (
        (
            "def f(x: Tensor, n: int, k: int):\n    for i in range(k):\n"
            "        a = x[:, i * n : i * n + n]\n"
            "        x[:, n * i : n * (i + 1)] = a - a.amax(dim=1, keepdim=True)\n    return x\n"
        ),
        (torch.arange(14.0).view(2, 7), 2, 3),
    ),
    "a diagonal of pieces": (
        (
            "def f(n: int, w: int):\n    m = torch.zeros(9, 4)\n    for i in range(n):\n"
            "        m[w * i : w * (i + 1), i] = 1.0\n    return m\n"
        ),
        (3, 2),
    ),
    "every n-th": (
        (
            "def f(x: Tensor, w: int):\n    b, t, d = x.shape\n    out = []\n"
            "    for i in range(w):\n        out.append(x[:, i::w, :])\n"
            "    return torch.cat(out, -1)\n"
        ),
        (torch.arange(48.0).reshape(2, 4, 6), 2),
    ),
    "pieces of what a call returns": (
        (
            "def f(x: Tensor, n: int):\n    m = x.abs()\n    size = len(m) // n\n"
            "    return torch.cat([m[i * size : (i + 1) * size] for i in range(n)], dim=1)\n"
        ),
        (X, 2),
    ),
    "a head at a time": (
        (
            "def f(x: Tensor, heads: int, d: int):\n    b, t, c = x.shape\n    outs = []\n"
            "    for h in range(heads):\n        start = h * d\n        end = start + d\n"
            "        q = x[:, :, start:end]\n        a = F.softmax(q @ q.transpose(1, 2), dim=-1)\n"
            "        outs.append(torch.bmm(a, q))\n    return torch.cat(outs, dim=-1)\n"
        ),
        (torch.arange(48.0).reshape(2, 4, 6).sin(), 2, 3),
    ),
    "numbers of some rows": (
        (
            "def f(x: Tensor, n: Tensor):\n    kept = []\n    for i in range(1, n.shape[0]):\n"
            "        if n[i] > 2:\n            kept.append(i)\n    return x[kept]\n"
        ),
        (X, N),
    ),
    "rows as often as they say": (
        (
            "def f(x: Tensor, n: Tensor):\n    out = list()\n    for i, row in enumerate(x):\n"
            "        out.append(row.expand(max(int(n[i]), 0), -1))\n"
            "    return torch.cat(out, 0)\n"
        ),
        (X, N.float() - 0.5),
    ),
    "rows as often as a list says": (
        (
            "def f(x: Tensor, n: list):\n    out = []\n    for i in range(len(x)):\n"
            "        out.append(x[i : i + 1].repeat(n[i], 1))\n    return torch.cat(out)\n"
        ),
        (X, [2, 0, 1, 3]),
    ),
    "a list that is joined later on, and each column by itself": (
        (
            "def f(x: Tensor):\n    cols = [x[:, i].exp() for i in range(x.shape[1])]\n"
            "    y = x.sum()\n    return torch.cat([torch.stack(cols, dim=1), y + x], dim=1)\n"
        ),
        (X,),
    ),
    "a window of one": (
        (
            "def f(x: Tensor):\n    out = []\n    for j in range(x.shape[1]):\n"
            "        out.append(x[:, j : j + 1].exp())\n    return torch.stack(out, dim=1)\n"
        ),
        (X,),
    ),
    "every box with all others": (
        (
            "def f(a: Tensor):\n    b = a\n    y = torch.zeros(a.shape[0], b.shape[0])\n"
            "    for i in range(a.shape[0]):\n        y[i] = torch.max(a[i, 0], b[:, 0])\n"
            "    return y\n"
        ),
        (X,),
    ),
    "a total of several terms": (
        (
            "def f(x: Tensor):\n    total = torch.zeros(())\n    for i in range(x.shape[0]):\n"
            "        total = total + 1 - (x[i, 0] * 8).round()\n    return total\n"
        ),
        (X,),
    ),
    "what is taken off": (
        (
            "def f(x: Tensor, y: Tensor):\n    loss = 0\n    for i in range(x.shape[0]):\n"
            "        loss -= (x[i, 0] * 8).round() - (y[i, 1] * 8).round()\n    return loss\n"
        ),
        (X, X + 1),
    ),
    "how many there are of each, of whatever dimensions": (
        (
            "def f(labels: Tensor, n: int):\n    count = torch.zeros(n)\n    for c in range(n):\n"
            "        count[c] = (labels == c).sum()\n    return count\n"
        ),
        (torch.tensor([[0, 2, 2], [1, 0, 5]]), 3),
    ),
    "blocks of a mask": (
        (
            "def f(n: int, size: int):\n    m = torch.ones(2, n * size + 1, n * size)\n"
            "    for i in range(n):\n        start = size * i\n        end = start + size\n"
            "        m[:, start:end, start:end] = 0\n    return m\n"
        ),
        (5, 2),
    ),
    "documents one after the other": (
        (
            "def f(x: Tensor, lengths: list):\n    m = torch.full((9, 8), -1e4)\n    start = 0\n"
            "    for n in lengths:\n        m[start : start + n, start : start + n] = 0\n"
            "        start += n\n    return m\n"
        ),
        (X, [2, 0, 1, 3, 1]),
    ),
    "how long each takes": (
        (
            "def f(took: Tensor):\n    a = torch.zeros(took.shape[0], 12)\n    at = 1\n"
            "    for i in range(took.shape[0]):\n        a[i, at : at + int(took[i].data)] = 1\n"
            "        at += int(took[i].data)\n    return a\n"
        ),
        (torch.tensor([1.0, 3.7, 0.2, 2.0]),),
    ),
    "groups that do not see each other": (
        (
            "def f(size: int, n: int, width: int):\n    m = torch.ones(20, 20) < 0\n"
            "    for i in range(n):\n        if i == 0:\n"
            "            m[size * i : size * (i + 1), size * (i + 1) : width] = True\n"
            "        if i == n - 1:\n            m[size * i : size * (i + 1), : size * i] = True\n"
            "        else:\n"
            "            m[size * i : size * (i + 1), size * (i + 1) : width] = True\n"
            "            m[size * i : size * (i + 1), : size * i] = True\n    return m\n"
        ),
        (3, 5, 15),
    ),
    "borders of sequences": (
        (
            "def f(x: Tensor, ends: Tensor):\n    m = torch.zeros(1, 8, 8, dtype=torch.bool)\n"
            "    for i in range(1, len(ends)):\n        a, b = int(ends[i - 1]), int(ends[i])\n"
            "        m[..., a:b, max(a - 1, 0) : b] = True\n    return m\n"
        ),
        (X, torch.tensor([0, 2, 3, 3, 7])),
    ),
    "some are left out": (
        (
            "def f(lengths: Tensor, skip: int):\n    m = torch.zeros(9, 3)\n    start = 0\n"
            "    for i, n in enumerate(lengths):\n        end = start + n\n"
            "        if n == 1 or n > 4:\n            continue\n"
            "        m[start + skip : end] = 1\n        start = end\n    return m\n"
        ),
        (torch.tensor([3, 1, 0, 5, 4, 2]), 1),
    ),
    "windows of one width": (
        (
            "def f(x: Tensor, starts: Tensor, w: int = 2):\n    y = torch.zeros_like(x[:, :, :w])\n"
            "    for i in range(x.size(0)):\n        a = starts[i]\n        b = a + w\n"
            "        y[i] = x[i, :, a:b]\n    return y\n"
        ),
        (torch.arange(40.0).view(2, 4, 5), torch.tensor([3, 0], dtype=torch.int32)),
    ),
    "windows of vectors": (
        (
            "def f(x: Tensor, starts: list, w: int):\n    y = torch.zeros(3, w)\n"
            "    for i, a in enumerate(starts):\n        y[i] = x[i, a : a + w]\n    return y\n"
        ),
        (X, [1, 0, 1], 2),
    ),
    "rows of another shape": (
        (
            "def f(x: Tensor, y: Tensor):\n    a, b = [], []\n    n, k = x.shape[0], 2\n"
            "    x = x.view(4, 1, 3)\n    for i in range(n):\n        row = x[i].permute(1, 0)\n"
            "        a.append(row.reshape(-1, 1).exp())\n        b.append(y[i].view(k, 1, -1))\n"
            "    a = torch.cat(a, dim=1).T\n    b = torch.stack(b)\n"
            "    return a + b.sum() + b[0, 1, 0, 0]\n"
        ),
        (X, torch.arange(24.0).view(4, 6)),
    ),
    "a loop in one that stays": (
        (
            "def forward(ds: list, ns: Tensor, most: int):\n    total = 0\n"
            "    for d, n in zip(ds, ns):\n        m = torch.zeros_like(d)\n"
            "        for p in range(m.shape[0]):\n            m[p, : n[p]] = 1\n"
            "        total = total * 0.5 + (d[:most] * m[:most]).sum()\n"
            "    return total\nf = forward\n"
        ),
        ([X, X * 2], torch.stack((N, N + 1)), 3),
    ),
    "what a test has moved before": (
        (
            "def f(ns: list[int], cls: bool):\n    m = torch.ones(20, 3)\n    start = 0\n"
            "    if cls:\n        start = 1\n    for n in ns:\n"
            "        m[start : start + n] = 0\n        start += n\n    return m\n"
        ),
        ([2, 3, 4], True),
    ),
    "a number that is moved once before": (
        (
            "def f(ns: list[int]):\n    m = torch.ones(20)\n    at = 0\n    at += 1\n"
            "    for n in ns:\n        m[at : at + n] = 0\n        at += n + 1\n    return m\n"
        ),
        ([2, 0, 4],),
    ),
    "rounds that are counted from one": (
        (
            "def f(n: int):\n    m = torch.ones(40)\n    at = 0\n    for i in range(1, n):\n"
            "        m[at : at + 2] = 0\n        at += 3\n    return m\n"
        ),
        (5,),
    ),
    "two numbers of each round": (
        (
            "def f(n: int):\n    m = torch.ones(9, 9)\n    for k, i in enumerate(range(1, n)):\n"
            "        m[k : k + 1, i : i + 2] = 0\n    return m\n"
        ),
        (5,),
    ),
    "a dimension that is summed and put back": (
        (
            "def f(x: Tensor):\n    a, b, c = x.shape\n    y = torch.zeros(a)\n"
            "    for i in range(a):\n        y[i] = x[i].sum(0).unsqueeze(0).sum()\n    return y\n"
        ),
        (torch.arange(24.0).reshape(2, 3, 4),),
    ),
    "a width that the rounds bind": (
        (
            "def f(n: int, k: int):\n    m = torch.ones(9, 9)\n    for i in range(n):\n"
            "        c = k * 2\n        m[:c, i : i + 3] = 0\n    return m\n"
        ),
        (5, 2),
    ),
    "how many rows there are of each": (
        (
            "def f(points: Tensor, n: int):\n    of, xyz = points[:, 0], points[:, 1:]\n"
            "    count = xyz.new_zeros(n).int()\n    for k in range(n):\n"
            "        count[k] = (of == k).sum()\n    return count\n"
        ),
        (torch.tensor([[0.0, 3.0], [2.0, 1.0], [0.0, 0.0]]), 3),
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_all_rounds_at_once_compute_the_same(name: str) -> None:
    text, given = WRITTEN[name]
    site = next(s for s in find_sites(HEADER + text, [RULE]) if s.rewrite)
    assert site.rewrite is not None
    assert "for " not in site.rewrite.direct or "one that stays" in name
    results = []
    for version in (HEADER + text, site.rewrite.direct):
        scope: dict[str, Any] = {}
        exec(version, scope)  # noqa: S102 - the examples above
        results.append(scope["f"](*(g.clone() if isinstance(g, Tensor) else g for g in given)))
    assert results[0].dtype == results[1].dtype
    assert torch.equal(*results)


STAYS = {
    "a quotient has no gradient where it is not taken": (
        "def f(x: Tensor, n: Tensor):\n    y = torch.zeros_like(x)\n"
        "    for i in range(x.shape[0]):\n        if n[i] > 0:\n            y[i] = x[i] / n[i]\n"
        "    return y\n"
    ),
    "an index that only the test makes fit": (
        "def f(x: Tensor, n: Tensor):\n    y = torch.zeros(4)\n    for i in range(4):\n"
        "        if n[i] < 3:\n            y[i] = x[i, n[i]]\n    return y\n"
    ),
    "two numbers in one place": (
        "def f(n: int):\n    m = torch.ones(n, n)\n    for i in range(n):\n"
        "        m[i, 0] = 2\n        m[0, i] = 3\n    return m\n"
    ),
    "a row is read that another round writes": (
        "def f(n: int):\n    m, y = torch.ones(2 * n, n), torch.zeros(n)\n    for i in range(n):\n"
        "        m[i, 0] = 0\n        m[n + i, 0] = 0\n        y[i] = m[n - i, 0]\n    return y\n"
    ),
    "every n-th of fewer rounds": (
        "def f(x: Tensor, w: int):\n    return torch.cat([x[i::3] for i in range(w)])\n"
    ),
    "pieces of another length than the step": (
        "def f(x: Tensor, n: int):\n    y = torch.zeros(40)\n    for i in range(4):\n"
        "        y[i * n : i * n + 2] = i\n        y[i * n : (i + 2) * n] = i\n    return y\n"
    ),
    "a piece is read that another round writes": (
        "def f(y: Tensor, n: int):\n    for i in range(1, 3):\n"
        "        y[i * n : (i + 1) * n] = y[(i - 1) * n : i * n] * 2\n    return y\n"
    ),
    "pieces of two lengths": (
        "def f(x: Tensor, n: int, m: int):\n    for i in range(2):\n"
        "        x[:, i * n : (i + 1) * n] = x[:, i * m : (i + 1) * m] * 2\n"
    ),
    "pieces of two dimensions": (
        "def f(x: Tensor, n: int):\n    for i in range(2):\n"
        "        x[:, i * n : (i + 1) * n] = x[i * n : (i + 1) * n].T * 2\n"
    ),
    "pieces that are written twice": (
        "def f(x: Tensor, n: int, m: int):\n    for i in range(2):\n"
        "        x[i * n : (i + 1) * n] = 0\n        x[i * m : (i + 1) * m] = 1\n"
    ),
    "a list of numbers that somebody goes through": (
        "def f(x: Tensor, n: Tensor):\n    kept = []\n    for i in range(n.shape[0]):\n"
        "        if n[i] > 2:\n            kept.append(i)\n    return [x[k] for k in kept]\n"
    ),
    "rows one after the other, each as often as it says": (
        "def f(x: Tensor, n: Tensor):\n    out = []\n    for i in range(len(x)):\n"
        "        out.append(x[i].repeat(n[i], 1))\n    return torch.cat(out, 1)\n"
    ),
    "a list that is read besides": (
        "def f(x: Tensor):\n    cols = [x[:, i].exp() for i in range(x.shape[1])]\n"
        "    return torch.stack(cols), cols[0]\n"
    ),
    "a window that may be empty": (
        "def f(x: Tensor, n: int):\n"
        "    return torch.stack([x[:, j : j + 1].exp() for j in range(n)], dim=1)\n"
    ),
    "a list with as many entries as another one": (
        "def f(xs: list, ys: list):\n    y = torch.zeros(len(xs))\n    for i in range(len(xs)):\n"
        "        y[i] = ys[i].exp().sum()\n    return y\n"
    ),
    "how large rows are that may be none": (
        "def f(x: Tensor, y: Tensor):\n    for i in range(x.shape[0]):\n"
        "        y[i] = x[i].reshape(-1, 2)\n    return y\n"
    ),
    "windows of several widths": (
        "def f(x: Tensor, n: Tensor, w: Tensor):\n    y = torch.zeros(4, 1)\n"
        "    for i in range(4):\n        y[i] = x[i, n[i] : n[i] + w[i]]\n    return y\n"
    ),
    "windows of what is written": (
        "def f(x: Tensor, n: Tensor):\n    for i in range(4):\n"
        "        x[i] = x[i, n[i] : n[i] + 1]\n    return x\n"
    ),
    "windows of the other dimension": (
        "def f(x: Tensor, n: Tensor):\n    y = torch.zeros(4, 2, 3)\n    for i in range(4):\n"
        "        y[i] = x[i, n[i] : n[i] + 2, :]\n    return y\n"
    ),
    "ranges of another number in each round": (
        "def f(n: int, w: int):\n    m = torch.ones(9)\n    for i in range(n):\n"
        "        a = i * w + 1\n        m[a : a + w] = i\n    return m\n"
    ),
    "ranges of two numbers": (
        "def f(n: int, w: int):\n    m = torch.ones(9)\n    for i in range(n):\n"
        "        a = i + 1\n        m[a : a + w] = 2\n        m[i : a + w] = 3\n    return m\n"
    ),
    "where the last range ends is read afterwards": (
        "def f(n: list):\n    m = torch.ones(9)\n    at = 0\n    for k in n:\n"
        "        m[at : at + k] = 0\n        at += k\n    return m[:at]\n"
    ),
    "only some rounds move on": (
        "def f(n: list):\n    m = torch.ones(9)\n    at = 0\n    for k in n:\n"
        "        m[at : at + k] = 0\n        if k > 2:\n            at += k\n    return m\n"
    ),
    "it counts on over several calls of a loop": (
        "def f(ns: list, n: list):\n    m = torch.ones(9)\n    at = 0\n    for more in ns:\n"
        "        for k in n:\n            m[at : at + k] = 0\n            at += k\n    return m\n"
    ),
    "numbers with fractions": (
        "def f(n: int, r: float):\n    m = torch.ones(9)\n    for i in range(n):\n"
        "        a = int(i * r)\n        m[a : a + 2] = 0\n    return m\n"
    ),
    "a range is read that another round writes": (
        "def f(n: int, w: int):\n    m = torch.ones(9)\n    for i in range(n):\n"
        "        a = i * w\n        if m[a] > 0:\n            m[a + 1 : a + w] = 0\n    return m\n"
    ),
    "a list": (
        "def f(m: list, n: int, w: int):\n    for i in range(n):\n        a = i * w + 1\n"
        "        m[a : a + w] = 0\n    return m\n"
    ),
    "a total that decays": (
        "def f(x: Tensor):\n    total = torch.zeros(3)\n    for i in range(x.shape[0]):\n"
        "        total = 0.9 * total + x[i]\n    return total\n"
    ),
    "a test within a test ends a round": (
        "def f(n: int):\n    m = torch.ones(40)\n    for i in range(n):\n        lo = i * 4\n"
        "        if lo > 2:\n            if lo > 8:\n                continue\n"
        "            m[lo : lo + 1] = 0\n        m[lo + 2 : lo + 4] = 0\n    return m\n"
    ),
    "what a round counts decides whether it does": (
        "def f(n: int):\n    m = torch.ones(24)\n    at = 0\n    for i in range(1, n):\n"
        "        if at * i + at != 9:\n            continue\n        m[i : i + at] = 0\n"
        "        at += 1\n    return m\n"
    ),
    "rounds go over what they write": (
        "def f(x: Tensor):\n    at = 0\n    for n in x:\n        x[at : at + n] = 0\n"
        "        at += n\n    return x\n"
    ),
    "rounds go over a part of what they write": (
        "def f(m: Tensor):\n    lengths = m[:, 0]\n    at = 0\n    for n in lengths:\n"
        "        m[at : at + n] = 0\n        at += n\n    return m\n"
    ),
    "an element beside a name": (
        "def f(x: Tensor, n: int):\n    m = torch.ones(9)\n    for i in range(n):\n"
        "        x[i], k = 0, i\n        m[k : k + 1] = 0\n    return m, x\n"
    ),
    "a quotient by what is zero in rounds that do nothing": (
        "def f(total: int, ns: list[int]):\n    m = torch.ones(30)\n    for n in ns:\n"
        "        if n == 0:\n            continue\n        a = total // n\n"
        "        m[a : a + 2] = 0\n    return m\n"
    ),
    "rows that a list names": (
        "def f(index: list[int], ns: list[int]):\n    m = torch.ones(5, 20)\n    at = 0\n"
        "    for n in ns:\n        m[index, at : at + n] = 0\n        at += n\n    return m\n"
    ),
    "the counter is read afterwards": (
        "def f(x: Tensor):\n    y = torch.zeros_like(x)\n    k = 0\n    for row in x:\n"
        "        y[k] = row.exp()\n        k += 1\n    return y, k\n"
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_is_not_the_same_stays(name: str) -> None:
    assert not [s for s in find_sites(HEADER + STAYS[name], [RULE]) if s.rewrite]


@pytest.mark.parametrize(
    "line", ["import torch as th\n", "import torch.nn as nn\n", "import torch\n"]
)
def test_a_module_calls_torch_as_it_has_imported_it(line: str) -> None:
    text = (
        f"{line}\nfrom torch import Tensor\ndef f(x: Tensor):\n    y = x.new_zeros(3)\n"
        "    for i in range(3):\n        y[i] = i * 2\n    return y\n"
    )
    (site,) = find_sites(text, [RULE])
    assert site.rewrite is not None
    scope: dict[str, Any] = {}
    exec(site.rewrite.direct, scope)  # noqa: S102 - the text above
    assert scope["f"](torch.zeros(1)).tolist() == [0, 2, 4]
    assert site.rewrite.direct.splitlines()[site.rewrite.line - 1].startswith("    y[:] = ")


def test_joined_pieces_have_memory_of_their_own() -> None:
    text = (
        "def f(m: Tensor, n: int, s: int):\n"
        "    return torch.cat([m[i * s : (i + 1) * s] for i in range(n)], dim=1)\n"
    )
    (site,) = find_sites(HEADER + text, [RULE])
    assert site.rewrite is not None
    scope: dict[str, Any] = {}
    exec(site.rewrite.direct, scope)  # noqa: S102 - the text above
    given = torch.ones(2, 1)
    scope["f"](given, 1, 2).zero_()
    assert given.tolist() == [[1], [1]]
