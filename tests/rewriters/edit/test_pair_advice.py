"""Loops whose rounds pair things: what is said of them, and of loops that only look like them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from npufix.rewriters.edit.loops.advice.pairings import (
    CLASSES,
    MATCHED,
    MEMBERS,
    OF_PAIRS,
    STACKED,
    UPPER,
)
from npufix.rewriters.find import find_sites
from npufix.rules.substitutions.loop_over_rows import RULE

HEADER = "import numpy as np\nimport torch\nfrom torch import nn\n"
MATCHES = """
class Criterion(nn.Module):
    def forward(self, out: torch.Tensor, indices, targets):
        weight = torch.zeros_like(out)
        for i, (place, which) in enumerate(indices):
            if len(targets[i]) == 0:
                continue
            weight[i, place] = targets[i][which]
        return weight
"""
FIELDS = """
class Cross(nn.Module):
    def forward(self, x: torch.Tensor, n: int):
        found = []
        for i in range(n - 1):
            for j in range(i + 1, n):
                found.append(x[:, i] * x[:, j])
        return torch.stack(found, dim=1)
"""
LOVASZ = """
def lovasz_loss(probas: torch.Tensor, labels: torch.Tensor, classes):
    losses = []
    for c in classes:
        fg = (labels == c).float()
        if fg.sum() == 0:
            continue
        if probas.dim() < 2:
            raise ValueError
        errors, order = torch.sort((fg - probas[:, c]).abs(), 0, descending=True)
        losses.append(torch.dot(errors, fg[order].cumsum(0)))
    return sum(losses)
"""
BASES = """
class Bases(nn.Module):
    def forward(self, users: torch.Tensor, items: torch.Tensor):
        found = []
        for i in range(self.n):
            scores = torch.mm(users, self.weights[i])
            found.append((scores * items).sum(dim=1))
        return torch.stack(found, dim=1)
"""
THINGS = """
class Panoptic(nn.Module):
    def forward(self, labels: torch.Tensor):
        keep = torch.zeros_like(labels).bool()
        for i, label in enumerate(labels):
            keep[i] = label in self.things.values()
        return labels[keep]
"""


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (MATCHES, MATCHED),
        (FIELDS, UPPER),
        (FIELDS.replace("x[:, i] * x[:, j]", "self.pair(x[i], x[j])"), UPPER),
        (LOVASZ, CLASSES),
        (BASES, STACKED),
        (THINGS, MEMBERS),
    ],
)
def test_the_form_of_a_loop_that_pairs_is_told(text: str, form: str) -> None:
    (site,) = find_sites(HEADER + text, [RULE])
    assert (site.problem, site.rewrite) == (form, None)


@pytest.mark.parametrize(
    "text",
    [
        MATCHES.replace("forward", "build_table"),  # once
        MATCHES.replace("torch.zeros_like(out)", "np.zeros(out.shape)"),  # of the host
        MATCHES.replace("weight[i, place]", "weight[i, 0]"),
        FIELDS.replace("range(i + 1, n)", "range(n)"),  # all pairs, or grids
        FIELDS.replace("found.append(x[:, i] * x[:, j])", "x[:, j] = x[:, i] * x[:, j]"),
        LOVASZ.replace("fg.sum() == 0", "fg.sum().item() == 0"),  # told as a wait
        LOVASZ.replace("probas[:, c]", "probas"),
        LOVASZ.replace("if fg", "probas = step(probas)\n        if fg"),  # of the round before
        BASES.replace("torch.mm(users", "users = torch.mm(users").replace("scores = ", "", 1),
        BASES.replace("self.weights[i]", "self.weights"),
        THINGS.replace("torch.zeros_like(labels).bool()", "[0] * len(labels)"),
    ],
)
def test_loops_that_only_look_like_it_are_left_alone(text: str) -> None:
    assert not {site.problem for site in find_sites(HEADER + text, [RULE])} & {*OF_PAIRS}


def test_the_forms_compute_the_same() -> None:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(3, 5, generator=draw)
    matches = [(torch.tensor([4, 1]), torch.tensor([0, 1])), (torch.tensor([2]), torch.tensor([0]))]
    rows = torch.cat([torch.full_like(p, i) for i, (p, _) in enumerate(matches)])
    out, told = torch.zeros(2, 5), torch.zeros(2, 5)
    for i, (place, which) in enumerate(matches):
        out[i, place] = x[i][which]
    columns = torch.cat([p for p, _ in matches])
    told[rows, columns] = torch.cat([y[t] for y, (_, t) in zip(x[:2], matches, strict=True)])
    assert torch.equal(out, told)
    first, second = torch.triu_indices(5, 5, 1)
    pairs = [x[:, i] * x[:, j] for i in range(5) for j in range(i + 1, 5)]
    assert torch.equal(torch.stack(pairs, 1), x[:, first] * x[:, second])
    weights = [torch.randn(5, 4, generator=draw) for _ in range(3)]
    each = torch.stack([x @ weight for weight in weights])
    assert torch.allclose(each, torch.matmul(x, torch.stack(weights)))
    labels = torch.tensor([1, 3, 1])
    of_each = torch.stack([(labels == c).float().cumsum(0) for c in range(5)], 1)
    assert torch.equal(of_each, torch.nn.functional.one_hot(labels, 5).float().cumsum(0))
    assert torch.isin(labels, torch.tensor([1])).tolist() == [True, False, True]
