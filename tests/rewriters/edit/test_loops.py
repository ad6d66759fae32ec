"""Loops over rows: what is written computes the same, and what must stay stays for its reason."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch

from npufix.rewriters.find import find_sites
from npufix.rules.substitutions.loop_over_rows import RULE

if TYPE_CHECKING:
    from npufix.rewriters.edit.site import Site

HEADER = """import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
"""


def only_site(text: str) -> Site:
    (site,) = find_sites(HEADER + text, [RULE])
    return site


def called(text: str, *args: Any) -> list[Any]:
    scope: dict[str, Any] = {}
    exec(text, scope)  # noqa: S102 - the examples below
    torch.manual_seed(0)
    made = scope["f"]() if isinstance(scope["f"], type) else scope["f"]
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    result = made(*copies)
    return [result, *(c for c in copies if isinstance(c, torch.Tensor))]


def flattened(results: list[Any]) -> list[torch.Tensor]:
    return [t for r in results for t in (r if isinstance(r, tuple) else (r,))]


def conditions(site: Site) -> set[str]:
    return {condition.name for condition in site.open_conditions}


X = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
LENGTHS = torch.tensor([0, 4, 2])
WRITTEN = {
    "the row itself": (
        (
            "def f(x: Tensor, p: Tensor):\n    x, p = x.view(4, 5), p.view(4, 5)\n"
            "    for i, row in enumerate(x):\n        row.copy_(p[0] - i)\n"
            "        row[:2] += 1\n        row *= 3\n    return x\n"
        ),
        (X[0], X[1]),
    ),
    "the row itself, which nobody counts": (
        (
            "def f(x: Tensor, p: Tensor):\n    x, p = x.view(4, 5), p.view(4, 5).clone()\n"
            "    for given, row in zip(x, p):\n        row[:] = given * 2\n    return p\n"
        ),
        (X[0], X[1]),
    ),
    "a mask in each row": (
        (
            "def f(x: Tensor, p: Tensor):\n"
            "    x, p = x.view(4, 5), p.view(4, 5)\n    gone = x > p\n"
            "    for i in range(x.shape[0]):\n        x[i, gone[i]] = 0.0\n    return x\n"
        ),
        (X[0], X[1]),
    ),
    "masks of columns, and numbers of them": (
        (
            "def f(x: Tensor, top: Tensor):\n    y = x.view(4, 5).clone()\n"
            "    for k in range(5):\n        near = abs(x[:, k]) < 0.5\n"
            "        y[near, k] = 2 * x[:, k][near] - 1\n"
            "        y[:, k][x[:, k] > top[k]] = top[k]\n        y[near, k] -= 0.25\n    return y\n"
        ),
        (X[0], X[1, 0]),
    ),
    "integers of the host": (
        (
            "def f(x: Tensor, ratios: list):\n    m = x.new_zeros(3, 4)\n    w = x.size(1)\n"
            "    for i, r in enumerate(ratios):\n        n = min(w, round(w * r))\n"
            "        m[i, : n] = 1\n        m[i, max(n // 2, 1) :] = 5\n    return m\n"
        ),
        (X, [0.2, 0.9, 0.5]),
    ),
    "sizes out of a list": (
        (
            "def f(x: Tensor, metas):\n    m = x.new_ones(len(metas), 4, 5)\n"
            "    for i in range(len(metas)):\n        h, w, _ = metas[i]['shape']\n"
            "        m[i, :h, : w // 2] = 0\n    return m\n"
        ),
        (X, [{"shape": (2, 5, 3)}, {"shape": (4, 1, 3)}, {"shape": (0, 4, 3)}]),
    ),
    "sizes in tuples": (
        (
            "def f(x: Tensor, sizes: list):\n    m = x.new_ones(3, 4, 5)\n"
            "    for i, (h, w) in enumerate(sizes):\n        m[i, :h, w:] = 0\n    return m\n"
        ),
        (X, [(2, 5), (4, 1)]),
    ),
    "sizes beside rows": (
        (
            "def f(x: Tensor, sizes: list):\n    m = x.new_ones(2, 4, 5)\n"
            "    for row, (h, w) in zip(m, sizes):\n        row[:h, :w] = 7\n    return m\n"
        ),
        (X, [(2, 5), (4, 1)]),
    ),
    "one image of a batch after the other": (
        (
            "def f(x: Tensor, at: Tensor):\n    x, at = x.view(3, 1, 4, 5), at.view(3, 2, 5, 2)\n"
            "    y = x.new_zeros(3, 1, 2, 5)\n    for i in range(x.size(0)):\n"
            "        y[i] = F.grid_sample(x[i : i + 1], at[i : i + 1], align_corners=False)[0]\n"
            "    return y\n"
        ),
        (X, X.view(3, 20)),
    ),
    "one image after the other, as a batch": (
        (
            "def f(x: Tensor):\n    b, h, w = x.shape\n    x = x.unsqueeze(1)\n"
            "    return torch.stack([F.interpolate(x[i][None], size=(3, 7)).squeeze(0)"
            " for i in range(b)])\n"
        ),
        (X,),
    ),
    "batches of images": (
        (
            "def f(x: Tensor, w: Tensor):\n    x = x.view(2, 3, 1, 2, 5)\n"
            "    return torch.stack([F.interpolate(x[:, i], scale_factor=2) * i"
            " for i in range(3)], dim=1)\n"
        ),
        (X, X),
    ),
    "images that are no batch": (
        (
            "def f(x: Tensor):\n    x = x.view(3, 1, 4, 5)\n    y = x.new_zeros(3, 1, 2, 2)\n"
            "    for i in range(3):\n        y[i] = F.max_pool2d(x[i], 2)\n    return y\n"
        ),
        (X,),
    ),
    "two terms of a loss in each round": (
        (
            "def f(x: Tensor, y: Tensor):\n    loss = 0.0\n    for k in range(x.size(1)):\n"
            "        d = x[:, k] - y[:, k]\n        loss += F.mse_loss(x[:, k], y[:, k])\n"
            "        loss -= 0.5 * d.abs().mean()\n    return loss\n"
        ),
        (X, X.flip(1)),
    ),
    "as many of the smallest of a column as a number says": (
        (
            "def f(x: Tensor, n: int, k: Tensor):\n    cost = x.flatten(1)\n"
            "    m = torch.zeros_like(cost, dtype=torch.uint8)\n    for g in range(n):\n"
            "        _, at = torch.topk(cost[:, g], k=k[g], largest=False)\n"
            "        m[:, g][at] = 1\n    del k, at\n    return m\n"
        ),
        (X, 2, torch.tensor([2, 0, 3])),
    ),
    "as many of the largest of a row as a list says": (
        (
            "def f(x: Tensor, k: Tensor):\n    x = x.flatten(1)\n    k = k.tolist()\n"
            "    m = torch.ones_like(x)\n    for g in range(x.shape[0]):\n"
            "        at = x[g].topk(k[g]).indices\n        m[g, at] = 0.5\n    return m\n"
        ),
        (X, torch.tensor([2, 0, 3])),
    ),
    "a number of each row, chosen by the host": (
        (
            "def f(x: Tensor, ratios: list):\n    last = []\n"
            "    for i, r in enumerate(ratios):\n        at = int(r * x.size(1)) - 1\n"
            "        last.append(x[i, at, :])\n    return torch.stack(last)\n"
        ),
        (X, [0.5, 0.9, 0.1]),
    ),
    "a list that is something else in the other arm": (
        (
            "def f(x: Tensor, ratios: list):\n    if len(ratios) > 1:\n        y = []\n"
            "        for i, r in enumerate(ratios):\n            y.append(x[i, int(r * 3)])\n"
            "        y = torch.stack(y)\n    else:\n        y = x[:, -1]\n    return y\n"
        ),
        (X, [0.5, 0.9, 0.1]),
    ),
    "lengths that are cut off": (
        (
            "def f(x: Tensor, n: Tensor):\n    m = torch.zeros(3, 4)\n"
            "    for i in range(3):\n        m[i, : int(n[i])] = 1\n    return m\n"
        ),
        (X, torch.tensor([0.9, 2.5, 3.99])),
    ),
    "lengths that are cut off by half": (
        (
            "def f(x: Tensor, n: Tensor):\n    m = torch.zeros(3, 4)\n"
            "    for i in range(3):\n        m[i, : int(n[i] * 0.5)] = 1\n    return m\n"
        ),
        (X, torch.tensor([1, 5, 7])),
    ),
    "graphs of a batch, each moved behind the others": (
        (
            "def f(edges: Tensor, n, num_nodes):\n    moved = []\n    for i in range(n):\n"
            "        offset = i * num_nodes\n        moved.append(edges + offset)\n"
            "    return torch.cat(moved, dim=1)\n"
        ),
        (torch.tensor([[0, 1, 2], [2, 1, 0]]), 4, 3),
    ),
    "columns of what a list became": (
        (
            "def f(x: Tensor, y: Tensor, n: int):\n"
            "    p = torch.cat([part.long() for part in (x, y)])\n"
            "    for i in range(n):\n        p[:, i] += i * n\n    return p\n"
        ),
        (X[0], X[1], 3),
    ),
    "a counter that starts at one": (
        (
            "def f(x: Tensor):\n    y = torch.zeros_like(x)\n"
            "    for t in range(1, x.shape[0]):\n        y[t - 1] = x[t].exp()\n    return y\n"
        ),
        (X,),
    ),
    "elements and their numbers": (
        (
            "def f(x: Tensor, n: Tensor):\n    y = x.clone()\n"
            "    for k, last in enumerate(n):\n        y[k, last:] = -1.5\n    return y\n"
        ),
        (X[..., 0], LENGTHS),
    ),
    "first elements, copied to large integers": (
        (
            "def f(ids: Tensor, x: Tensor, n: Tensor):\n    out = ids.clone()\n"
            "    for i in range(3):\n        out[i, : n[i]] = x[i, : n[i]]\n    return out\n"
        ),
        (torch.full((3, 4), 2**24 + 1), X[..., 0] * 9, LENGTHS),
    ),
    "lengths in a list": (
        (
            "def f(x: Tensor, n: list):\n    y = torch.ones(len(n), x.shape[1])\n"
            "    for k in range(len(n)):\n        y[k][:n[k]] = 0\n    return y\n"
        ),
        (X, LENGTHS.tolist()),
    ),
    "from one length to another": (
        (
            "def f(m: Tensor, a: Tensor, b: Tensor):\n"
            "    for r in range(m.size(0)):\n        m[r, a[r]:b[r]] = 7\n    return m\n"
        ),
        (X[..., 0], torch.tensor([0, 2, 1]), torch.tensor([4, 3, 1])),
    ),
    "numbers of a vector": (
        (
            "def f(x: Tensor, n: Tensor):\n    y = x.clone()\n"
            "    for k, last in enumerate(n.tolist()):\n        y[k, last:] = 0\n    return y\n"
        ),
        (X[..., 0], LENGTHS),
    ),
    "what all rounds add": (
        (
            "def f(x: Tensor, y: Tensor):\n    loss = torch.zeros(1)\n"
            "    for i in range(x.shape[0]):\n        loss += (x[i] - y[i]).abs().mean()\n"
            "    return loss\n"
        ),
        (X, X.flip(0)),
    ),
    "a start that is not written to": (
        (
            "def f(x: Tensor, start: Tensor):\n    total = start\n"
            "    for i in range(x.shape[0]):\n        total = total + x[i, 0]\n    return total\n"
        ),
        (X, X[0, 0]),
    ),
    "rows that are added to a tensor": (
        (
            "def f(x: Tensor):\n    b, n, d = x.shape\n    total = x.new_zeros(b, d)\n"
            "    for j in range(n):\n        total = total + x[:, j] * (j + 1)\n    return total\n"
        ),
        (X,),
    ),
    "numbers of pieces": (
        (
            "def f(c: Tensor, n: int):\n    ids = torch.full((n,), -1)\n"
            "    for i in range(len(c) - 1):\n        ids[c[i] : c[i + 1]] = i\n    return ids\n"
        ),
        (torch.tensor([1, 3, 3, 6]), 8),
    ),
    "blocks of pieces": (
        (
            "def f(c: Tensor, n: int):\n    m = torch.full([1, n, n + 2], -5.0)\n"
            "    for i in range(1, len(c)):\n"
            "        m[..., c[i - 1] : c[i], c[i - 1] : c[i]] = 0\n    return m\n"
        ),
        (torch.tensor([0, 2, 5, 7]), 6),
    ),
    "a triangle": (
        (
            "def f(x: Tensor):\n    m = torch.zeros(x.shape[1], x.shape[1])\n"
            "    for i in range(x.shape[1]):\n        m[i, :i + 1] = 1\n    return m\n"
        ),
        (X,),
    ),
    "columns": (
        (
            "def f(x: Tensor, n: Tensor):\n    m = torch.zeros(x.shape[1], x.shape[0])\n"
            "    for i in range(x.shape[0]):\n        m[:n[i], i] = True\n    return m\n"
        ),
        (X, LENGTHS),
    ),
    "a pick in the last place": (
        (
            "def f(x: Tensor, j: Tensor):\n"
            "    return torch.stack([x[i, j[i], 1:] * 2 for i in range(len(j))], dim=1)\n"
        ),
        (X, torch.tensor([3, -1, 0])),
    ),
    "a pick that is written": (
        (
            "def f(x: Tensor, j: Tensor):\n    y = torch.zeros(3, 4)\n"
            "    for i in range(3):\n        y[i, j[i]] += 1.0\n    return y\n"
        ),
        (X, torch.tensor([3, 1, 1])),
    ),
    "rows along the second dimension": (
        (
            "def f(x: Tensor):\n    b, n, d = x.shape\n"
            "    return torch.cat([F.softmax(x[:, k], dim=-1) for k in range(n)], dim=1)\n"
        ),
        (X,),
    ),
    "a list that is filled": (
        (
            "def f(x: Tensor):\n    found = []\n    for part in range(x.shape[1]):\n"
            "        one = x[:, part].sum(1)\n        found.append(one.clamp(min=0) / 2)\n"
            "    return torch.stack(found)\n"
        ),
        (X,),
    ),
    "numbers of the round": (
        (
            "def f(x: Tensor):\n    y = torch.zeros(x.shape[0], x.shape[2])\n"
            "    for i in range(x.shape[0]):\n        w = (i + 1) / 3\n"
            "        y[i] = x[i, 0] * w - (1 - w)\n    return y\n"
        ),
        (X,),
    ),
    "an inner loop that does not need the outer one": (
        (
            "def f(x: Tensor, where: list):\n    y = torch.zeros(x.shape[0], 2, 4, x.shape[2])\n"
            "    for b in range(x.shape[0]):\n        for c, at in enumerate(where):\n"
            "            y[b, c, :len(at)] = x[b, at]\n    return y\n"
        ),
        (X, [torch.tensor([0, 3]), torch.tensor([1, 2, 2])]),
    ),
    "the larger of two": (
        (
            "def f(x: Tensor):\n    area = torch.zeros(x.shape[0])\n    a, b, c = x.shape\n"
            "    for i in range(a):\n        w = x[i, 0, 0] - x[i, 1, 0]\n"
            "        area[i] = max(w, 0.0) + torch.maximum(x[i, 2, 2], x[i, 0, 1])\n"
            "    return area\n"
        ),
        (X,),
    ),
    "products of two rows, and with one matrix": (
        (
            "def f(x: Tensor, w: Tensor):\n    b, n, d = x.shape\n    e, k = w.shape\n"
            "    y, z = torch.zeros(b, k, d), torch.zeros(b, n)\n"
            "    for i in range(b):\n        y[i] = w.t() @ (x[i] @ torch.matmul(x[i].t(), x[i]))\n"
            "        z[i] = torch.mv(x[i], x[i, 0])\n    return y, z\n"
        ),
        (X, torch.ones(4, 2)),
    ),
    "what a round has in all": (
        (
            "def f(x: Tensor):\n    b, n, d = x.shape\n"
            "    y, z = torch.zeros(n), torch.zeros(n)\n"
            "    for i in range(n):\n        y[i] = (x[:, i] - x[:, i].max()).sum()\n"
            "        z[i] = x[:, i].std()\n    return y, z\n"
        ),
        (X,),
    ),
    "the larger of two tensors": (
        (
            "def f(x: Tensor):\n    b, n, d = x.shape\n"
            "    return torch.stack([torch.max(x[i], -x[i]) for i in range(b)])\n"
        ),
        (X,),
    ),
    "values and positions": (
        (
            "def f(x: Tensor):\n    b, n, d = x.shape\n    y = torch.zeros(b, d)\n"
            "    at = torch.zeros(b, d, dtype=torch.long)\n"
            "    for i in range(b):\n        best, where = x[i].max(dim=0)\n"
            "        y[i] = best\n        at[i] = where\n"
            "    return y, at\n"
        ),
        (X,),
    ),
    "rows that are turned": (
        (
            "def f(x: Tensor):\n    b, n, d = x.shape\n    found = []\n"
            "    for i in range(b):\n        row = x[i].unsqueeze(0).transpose(-1, 1) * 2\n"
            "        found.append(row.flatten(1))\n"
            "    found = torch.cat(found)\n    return found.exp()\n"
        ),
        (X,),
    ),
    "sorted columns": (
        (
            "def f(x: Tensor):\n    b, n, d = x.shape\n"
            "    return torch.stack([torch.sort(x[:, j], 0)[0] for j in range(n)], dim=1)\n"
        ),
        (X,),
    ),
    "parts and pairs": (
        (
            "def f(x: Tensor):\n    b, n, d = x.shape\n    y = torch.zeros(b, 2, d)\n"
            "    for i in range(b):\n        first, last = x[i].chunk(2, dim=0)\n"
            "        low, high = first * 2, last.exp()\n        y[i] = low + high\n    return y\n"
        ),
        (X,),
    ),
    "the other way round, in the last dimension": (
        (
            "def f(x: Tensor):\n    b, n, d = x.shape\n    y = torch.zeros_like(x)\n"
            "    for i in range(d):\n        y[..., i] = x[:, :, d - 1 - i] * x[..., i]\n"
            "    return y\n"
        ),
        (X,),
    ),
    "rows from the second on, picked": (
        (
            "def f(x: Tensor, j: Tensor):\n    b, n, d = x.shape\n"
            "    y = torch.zeros(b, d)\n"
            "    for i in range(1, b):\n        row = x[i]\n        y[i] = row[j[i]]\n"
            "    return y\n"
        ),
        (X, torch.tensor([3, 1, 1])),
    ),
    "several lists": (
        (
            "def f(x: Tensor):\n    b, n, d = x.shape\n    means, rows = [], []\n"
            "    tops: list = []\n"
            "    for i in range(n):\n        row = x[:, i]\n"
            "        means.append(row.mean(dim=-1))\n"
            "        rows.append(row)\n        tops.append(row.amax(1) * 2)\n"
            "    total = x.sum()\n    means = torch.stack(means, 1)\n"
            "    return means, torch.cat(rows, dim=-1).mul_(2), torch.stack(tops) + total\n"
        ),
        (X,),
    ),
    "lists whose names are those of the results": (
        (
            "class f(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.score = nn.Linear(5, 1)\n    def forward(self, x: Tensor):\n"
            "        b, n, t, d = x.shape\n        scores, tops = [], []\n"
            "        for i in range(n):\n            top, at = x[:, i].topk(2)\n"
            "            scores.append(self.score(x[:, i]).squeeze(-1))\n"
            "            tops.append(top)\n"
            "        scores = torch.cat(scores, dim=1)\n        tops = torch.stack(tops, dim=1)\n"
            "        return scores, tops\n"
        ),
        (X[None].repeat(2, 1, 1, 1),),
    ),
    "a list that is joined later on": (
        (
            "def f(x: Tensor):\n    b, n, d = x.shape\n    found = []\n"
            "    for i in range(b):\n        found.append(x[i, 0])\n"
            "    x.zero_()\n    return torch.stack(found)\n"
        ),
        (X,),
    ),
    "a recurrent module of batches": (
        (
            "class f(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.enc = Enc()\n    def forward(self, x: Tensor):\n"
            "        b, n, t, d = x.shape\n"
            "        return torch.stack([self.enc(x[:, i]) for i in range(n)], dim=1)\n"
            "class Enc(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.run = nn.LSTM(5, 6, batch_first=True)\n"
            "        self.out = nn.Linear(6, 2)\n"
            "    def forward(self, seen):\n        states, _ = self.run(seen)\n"
            "        return self.out(states[:, -1])\n"
        ),
        (X[None].repeat(2, 1, 1, 1),),
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_computes_the_same(name: str) -> None:
    text, args = WRITTEN[name]
    site = only_site(text)
    assert site.rewrite is not None, site.problem
    assert "is-tensor" not in conditions(site)
    results = called(HEADER + text, *args), called(site.rewrite.direct, *args)
    for old, new in zip(*map(flattened, results), strict=True):
        torch.testing.assert_close(new, old)
        assert new.stride() == old.stride()


STAYS = {
    "rows of what the round before has written to": (
        "def f(x: Tensor):\n    for i, row in enumerate(x[:-1]):\n"
        "        x[i + 1] = row * 2\n    return x\n"
    ),
    "rows of the same by another name": (
        "def f(x: Tensor):\n    y = x[1:]\n    for i, row in enumerate(x[:-1]):\n"
        "        y[i] = row * 2\n    return x\n"
    ),
    "the row itself, of the row before": (
        "def f(x: Tensor):\n    for before, row in zip(x, x[1:]):\n"
        "        row.copy_(before)\n    return x\n"
    ),
    "parts that are no rows of what is written to": (
        "def f(x: Tensor):\n    x = x.view(4, 5)\n    for i, part in enumerate(x.chunk(2, 0)):\n"
        "        x[i] = part.sum(0)\n    return x\n"
    ),
    "first elements of a row that the round before has changed": (
        "def f(x: Tensor, n: Tensor):\n    y = x.new_zeros(x.shape)\n"
        "    for i in range(x.shape[0] - 1):\n        y[i, : n[i]] = x[i, : n[i]]\n"
        "        x[i + 1] = 7.0\n    return y\n"
    ),
    "first elements of tensors in a list": (
        "def f(y: Tensor, x: list, n: Tensor):\n"
        "    for i in range(len(x)):\n        y[i, : n[i]] = x[i][: n[i]]\n    return y\n"
    ),
    "first elements, copied to rows of a list": (
        "def f(y: list, x: Tensor, n: Tensor):\n"
        "    for i in range(x.shape[0]):\n        y[i][: n[i]] = x[i][: n[i]]\n    return y\n"
    ),
    "numbers out of a list that learn": (
        "def f(x: Tensor, pairs: list[tuple[Tensor, Tensor]]):\n    y = x.new_zeros(3)\n"
        "    for i in range(3):\n        a, n = pairs[i]\n        y[i] = a\n"
        "        x[i, :n] = 0\n    return y\n"
    ),
    "sizes that the rounds change": (
        "def f(x: Tensor, sizes: dict):\n    for i in range(x.shape[0]):\n"
        "        n, m = sizes['all'][i]\n        x[i, :n] = 0\n        sizes.pop('all')\n"
    ),
    "images with weights of their own": (
        "def f(x: Tensor, w: Tensor):\n    x, w = x.view(3, 1, 1, 4, 5), w.view(3, 1, 1, 2, 2)\n"
        "    return torch.stack([F.conv2d(x[i], w[i]) for i in range(3)])\n"
    ),
    "images of which positions are asked": (
        "def f(x: Tensor):\n    x = x.view(3, 1, 4, 5)\n"
        "    return torch.stack([F.adaptive_max_pool2d(x[i], 2, True)[1] for i in range(3)])\n"
    ),
    "images at places that all share": (
        "def f(x: Tensor, at: Tensor):\n    x, at = x.view(3, 1, 1, 4, 5), at.view(1, 2, 5, 2)\n"
        "    return torch.cat([F.grid_sample(x[i], at) for i in range(3)])\n"
    ),
    "rows that are no images": (
        "def f(x: Tensor):\n    x = x.view(3, 4, 5)\n"
        "    return torch.stack([F.interpolate(x[i], size=3) for i in range(3)])\n"
    ),
    "a loss that a round reads between its terms": (
        "def f(x: Tensor, y: Tensor):\n    loss = x.new_zeros(())\n"
        "    for k in range(x.size(1)):\n        loss += x[:, k].mean()\n"
        "        y[:, k] = loss\n        loss += x[:, k].std()\n    return loss\n"
    ),
    "the smallest of a row, which are marked in a column": (
        "def f(x: Tensor, k: Tensor):\n    m = torch.zeros_like(x)\n    for g in range(3):\n"
        "        at = x[g].topk(k[g])[1]\n        m[:, g][at] = 1\n    return m\n"
    ),
    "the smallest of a row, which are read behind the loop": (
        "def f(x: Tensor, k: Tensor):\n    m = torch.zeros_like(x)\n    for g in range(3):\n"
        "        at = x[g].topk(k[g])[1]\n        m[g, at] = 1\n    return m, at\n"
    ),
    "the smallest of a row, marked in itself": (
        "def f(x: Tensor, k: Tensor):\n    for g in range(3):\n"
        "        at = x[g].topk(k[g])[1]\n        x[g, at] = 1\n    return x\n"
    ),
    "the smallest of a row, marked in a table of another size": (
        "def f(x: Tensor, k: Tensor):\n    m = torch.zeros(9, 9)\n    for g in range(3):\n"
        "        at = x[g].topk(k[g])[1]\n        m[g, at] = 1\n    return m\n"
    ),
    "as many of the smallest as the round before has left": (
        "def f(x: Tensor, k: Tensor):\n    m = torch.zeros_like(x)\n    for g in range(3):\n"
        "        at = x[g].topk(k[g - 1])[1]\n        m[g, at] = 1\n    return m\n"
    ),
    "which may meet": (
        "def f(y: Tensor, j: Tensor, x: Tensor):\n"
        "    for i in range(x.shape[0]):\n        y[j[i]] *= x[i]\n"
    ),
    "dictionaries": "def f(rows):\n    return torch.stack([row['x'] for row in rows])\n",
    "tensors out of a call": (
        "def f(x: Tensor, net):\n    hidden, layers = net(x)\n    hidden.size()\n"
        "    return torch.cat([h[:3] for h in layers])\n"
    ),
    "a mask in each row that is read again": (
        "def f(x: Tensor, p: Tensor):\n    gone = x > p\n"
        "    for i in range(1, x.shape[0]):\n        x[i, gone[i]] = x[i - 1, 0]\n    return x\n"
    ),
    "as many numbers as a mask picks": (
        "def f(x: Tensor, p: Tensor, y: Tensor):\n    gone = x > p\n"
        "    for i in range(x.shape[0]):\n        x[i, gone[i]] = y[:1]\n    return x\n"
    ),
    "what divides under a mask": (
        "def f(x: Tensor, n: Tensor):\n    y = torch.zeros_like(x)\n"
        "    for i in range(x.shape[0]):\n        some = n[i, :] > 0\n"
        "        y[i, some] = x[i][some] / n[i][some]\n    return y\n"
    ),
    "integers of a device, one by one": (
        "def f(x: Tensor, n: Tensor):\n    return torch.stack([x[i, int(n[i]) // 2 :].median()"
        " for i in range(x.shape[0])])\n"
    ),
    "rows of the batch mixed": (
        "class f(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.enc = Enc()\n    def forward(self, x: Tensor):\n"
        "        b, n, t, d = x.shape\n"
        "        return torch.stack([self.enc(x[:, i]) for i in range(n)], dim=1)\n"
        "class Enc(nn.Module):\n    def forward(self, seen):\n        return seen - seen.mean(0)\n"
    ),
    "features mixed": (
        "class f(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.enc = nn.LSTM(5, 6)\n    def forward(self, x: Tensor):\n"
        "        b, n, t, d = x.shape\n"
        "        return torch.stack([self.enc(x[:, i])[0] for i in range(n)], dim=1)\n"
    ),
    "a name that is read after it": (
        "def f(x: Tensor):\n    y = torch.zeros_like(x)\n    for i in range(x.shape[0]):\n"
        "        y[i] = x[i] * 2\n    return y, i\n"
    ),
    "a total that grows": (
        "def f(x: Tensor):\n    total = 0\n    y = torch.zeros_like(x)\n"
        "    for i in range(x.shape[0]):\n        total = total + x[i]\n        y[i] = total\n"
        "    return y\n"
    ),
    "results that are not told apart": (
        "def f(x: Tensor):\n    b, n, d = x.shape\n    y = torch.zeros(b, d)\n"
        "    for i in range(b):\n        both = x[i].max(dim=0)\n        y[i] = both[0]\n"
        "    return y\n"
    ),
    "a list that somebody else reads": (
        "def f(x: Tensor, kept: list):\n    a, b = [], []\n    for i in range(x.shape[0]):\n"
        "        a.append(x[i] * 2)\n        b.append(x[i] * 3)\n"
        "    kept += a\n    return torch.stack(a), torch.stack(b)\n"
    ),
    "two names that change places": (
        "def f(x: Tensor):\n    y = torch.zeros_like(x)\n    for i in range(x.shape[0]):\n"
        "        a, b = x[i], x[i] * 2\n        a, b = b, a\n        y[i] = a - b\n    return y\n"
    ),
    "an index that is a row of several": (
        "def f(x: Tensor, k: int):\n    y = torch.zeros_like(x)\n    at = x.topk(k, 2)[1]\n"
        "    for i in range(x.shape[0]):\n        y[i, at[i]] = 1\n    return y\n"
    ),
    "what may be a number that is counted on": (
        "def f(x: Tensor, c, n: int):\n    return torch.stack([x * (c + i) for i in range(n)])\n"
    ),
    "numbers that are added up": (
        "def f(x: Tensor, c, n: int):\n    total = 0\n    for i in range(n):\n"
        "        total += c + i\n    return x[0] * total\n"
    ),
    "a generator": ("def f(x: Tensor):\n    for i in range(x.shape[0]):\n        yield x[i] * 2\n"),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_must_stay_stays(name: str) -> None:
    assert [s.rewrite for s in find_sites(HEADER + STAYS[name], [RULE]) if s.rewrite] == []


def test_one_round_is_no_loop() -> None:
    text = (
        "def f(x: Tensor, n: int):\n    lengths = {}\n    for i, l in enumerate(lengths):\n"
        "        if l < n:\n            x[i, l:] = 0\n"
    )
    assert len(list(find_sites(HEADER + text.format("[x.size(1), n]"), [RULE]))) == 1
    assert list(find_sites(HEADER + text.format("[x.size(1)]"), [RULE])) == []


def test_a_number_without_dimensions_promotes_another_way() -> None:
    text = (
        "def f(x: Tensor, s: Tensor):\n    b, d = x.shape\n    assert s.size(0)\n"
        "    y = torch.zeros(b, d)\n    for i in range(b):\n"
        "        y[i] = x[i] * s[i, 0].abs()\n    return y\n"
    )
    for site in find_sites(HEADER + text, [RULE]):
        assert site.rewrite is None or "same-dtype" in conditions(site)


def test_one_dtype_is_asked_of_all_that_the_counter_meets() -> None:
    site = only_site(
        """
def f(start, end, count):
    res = torch.zeros((count, 2), dtype=start.dtype, device=start.device)
    total = count + 1
    for i in range(1, total):
        ratio = i / total
        res[i - 1] = (1 - ratio) * start + ratio * end
    return res
"""
    )
    assert site.rewrite is not None
    (asked,) = re.findall(r"npufix_operands_\((.*)\)", site.rewrite.probe)
    assert {"start", "end"} <= {given.partition("=")[2] for given in asked.split(", ")}


def test_a_loop_whose_body_has_comments_keeps_them() -> None:
    text = (
        "def f(x: Tensor):\n    y = torch.zeros_like(x)\n    for i in range(x.shape[0]):\n"
        "        # as in the paper\n        y[i] = x[i] * 2  # twice\n    return y\n"
    )
    rewrite = only_site(text).rewrite
    assert rewrite is not None
    assert "    # as in the paper\n    # twice\n    y[:] = x * 2\n" in rewrite.direct


def test_functions_that_run_once_are_left_alone() -> None:
    text, _ = WRITTEN["a triangle"]
    assert list(find_sites(HEADER + text.replace("def f", "def init_weights"), [RULE])) == []


def test_what_is_joined_beside_numbers_is_asked_to_be_a_tensor() -> None:
    text = "def f(c, n, s):\n    return torch.cat([c + i * {} for i in range(n)], dim=1)\n"
    assert conditions(only_site(text.format("3"))) == {"is-tensor"}
    named = conditions(only_site(text.format("s.num_nodes")))
    assert named == {"is-tensor", "counts-are-numbers"}
    sites = find_sites(HEADER + text.format("s"), [RULE])
    assert [s for s in sites if s.rewrite] == []


def test_an_annotation_alone_does_not_make_a_tensor_of_what_is_joined() -> None:
    text = "def f(rows: Tensor):\n    return torch.cat([row[:3] for row in rows], dim=-1)\n"
    assert "is-tensor" in conditions(only_site(text))


@pytest.mark.parametrize("known", ["b, n, _ = x.shape", "b = x.shape[0]"])
def test_what_nobody_knows_of_dimensions_is_asked(known: str) -> None:
    text = (
        f"def f(x: Tensor, sizes: Tensor):\n    {known}\n    y = torch.zeros_like(x)\n"
        "    for i in range(b):\n        y[i, :, 0] = torch.minimum(x[i, :, 0], sizes[i, 0])\n"
        "    return y\n"
    )
    site = only_site(text)
    assert site.rewrite is not None
    assert "known-dimensions" in conditions(site)
    assert "same-dimensions" not in conditions(site)
    assert re.search(r"dims2_\d=sizes", site.rewrite.probe)
    single = text.replace("sizes[i, 0]", "sizes[i]")  # which may be a number or a row of numbers
    rewritten = only_site(single)
    assert rewritten.rewrite is None or "same-dimensions" in conditions(rewritten)


def test_a_length_counted_from_the_end_is_no_negative_one() -> None:
    text = (
        "def f(x: Tensor, n: Tensor):\n    b, t = x.shape\n    x = x * 1\n"
        "    for i in range(b):\n        x[i, -n[i]:] = 0\n    return x\n"
    )
    site = only_site(text)
    assert site.rewrite is not None
    assert conditions(site) == {"positive-lengths"}
    given = torch.randn(3, 4), torch.tensor([1, 4, 7])
    old, new = called(HEADER + text, *given), called(site.rewrite.direct, *given)
    torch.testing.assert_close(new, old)


def test_numbers_and_texts_are_spelled_as_before() -> None:
    text = (
        "def f(x: Tensor):\n    y = torch.zeros_like(x)\n    for i in range(x.shape[0]):\n"
        '        y[i] = (x[i] + 1e-6).clamp(max=float("inf"))\n    return y\n'
    )
    rewrite = only_site(text).rewrite
    assert rewrite is not None
    assert '(x + 1e-6).clamp(max=float("inf"))' in rewrite.direct
