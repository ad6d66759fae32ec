"""Loops over the rows of a batch: what is said of them, and of loops that only look like them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from npufix.rewriters.edit.loops.advice.batches import (
    BATCHED,
    DRAWN,
    NEIGHBOURS,
    OF_BATCHES,
    PAIRS,
    PREFIXES,
    REPEATED,
    SELECTED,
)
from npufix.rewriters.edit.loops.advice.independent import OF_ROUNDS, RAGGED
from npufix.rewriters.edit.loops.advice.ragged import MERGED, SEGMENTS
from npufix.rewriters.edit.loops.advice.rows import BY_HAND
from npufix.rewriters.find import find_sites
from npufix.rules.substitutions.loop_over_rows import RULE

HEADER = "import numpy as np\nimport torch\nfrom torch import nn\n"
POOLS = """
class Pool(nn.Module):
    def forward(self, xs, lengths):
        means = []
        for x, n in zip(xs, lengths):
            means.append(torch.cat((x[:n].mean(0), x[:n].std(0)), dim=-1))
        return torch.stack(means)
"""
OFFSETS = """
class Turns(nn.Module):
    def forward(self, x: torch.Tensor, counts):
        out = x.new_zeros(len(counts), x.shape[1])
        at = 0
        for i, n in enumerate(counts):
            out[i] = x[at : at + n].sum(0)
            at += n
        return out
"""
IMAGES = """
class Head(nn.Module):
    def forward(self, x, metas):
        masks = x.new_ones(len(metas), 64, 64)
        for i in range(len(metas)):
            height, width = self.size_of(metas[i])
            masks[i, :height, :width] = 0
        return masks
"""
VIEWS = """
class Tokens(nn.Module):
    def forward(self, x: torch.Tensor):
        rows = [{} for i in range(x.shape[1])]
        rows.append(self.embed(x))
        return torch.cat(rows, dim=1)
"""
SPEEDS = """
class Cost(nn.Module):
    def forward(self, track: torch.Tensor):
        speed = torch.zeros(track.shape[:-1], device=track.device)
        for i in range(track.shape[1]):
            if i == 0:
                speed[:, i] = track[:, i].norm(dim=-1)
            else:
                speed[:, i] = (track[:, i] - track[:, i - 1]).norm(dim=-1)
        return speed
"""
REPELS = """
def repulsion_loss(points: torch.Tensor, radius: float):
    loss = 0
    for i in range(points.shape[1]):
        others = torch.cat([points[:, :i], points[:, i + 1 :]], dim=1).detach()
        away = (others - points[:, i : i + 1]).norm(dim=-1)
        loss += torch.relu(radius - away).sum(1).mean()
    return loss
"""
DRAWS = """
class Augment(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor):
        starts = []
        for i in range(x.shape[0]):
            starts.append(torch.randint(0, max(1, lengths[i] - 9), [1, 2], device=x.device))
        return torch.cat(starts)
"""
REPEATS = """
class Answers(nn.Module):
    def loss(self, states: torch.Tensor, counts):
        rows = []
        for i, n in enumerate(counts):
            rows += [states[i]] * n
        return torch.stack(rows).mean()
"""
FIRES = """
class Predictor(nn.Module):
    def forward(self, frames: torch.Tensor, fires: torch.Tensor):
        kept = []
        for b in range(frames.shape[0]):
            kept.append(frames[b, :][fires[b, :] >= 1.0].sum(0))
        return torch.stack(kept)
"""
CAMERAS = """
class Net(nn.Module):
    def forward(self, masks: torch.Tensor):
        found = []
        for i in range(masks.shape[1]):
            found.append(self.encoding(masks[:, i]).unsqueeze(1))
        return torch.cat(found, 1)
"""
TREES = """
class Tree(nn.Module):
    def forward(self, x: torch.Tensor):
        out = x.clone()
        for b in range(x.size(0)):
            lap = x[b].exp() + torch.diag(x[b].sum(0))
            out[b] = lap.inverse() * torch.trapz(lap)
        return out
"""

SCORES = """
class Scores(nn.Module):
    def forward(self, x, labels):
        x, n = x.sigmoid(), x.shape[0]
        found = []
        for i in range(x.shape[0]):
            found.append(x[i].log()[:, labels[i]] if len(labels[i]) else None)
        return found
"""
TABLES = """
class Tiles(nn.Module):
    def forward(self, x: torch.Tensor, sizes: torch.Tensor):
        for i, (h, w) in enumerate(sizes):
            x[i, : h * w] += self.table[:h, :w].reshape(h * w, -1)
        return x
"""
ENDS = """
class Packing(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor):
        ends = [0]
        for b in range(lengths.shape[0]):
            n = lengths[b].item()
            ends.append(ends[-1] + n)
        return self.attend(x, ends)
"""


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (POOLS, PREFIXES),
        (OFFSETS, SEGMENTS),
        (IMAGES, PREFIXES),
        (SPEEDS, NEIGHBOURS),
        (REPELS, PAIRS),
        (DRAWS, DRAWN),
        (REPEATS, REPEATED),
        (FIRES, SELECTED),
        (CAMERAS, MERGED),
        (SCORES, BATCHED),
        (TREES, BATCHED),
    ],
)
def test_the_form_of_a_loop_over_a_batch_is_told(text: str, form: str) -> None:
    (site,) = find_sites(HEADER + text, [RULE])
    assert (site.problem, site.rewrite) == (form, None)


@pytest.mark.parametrize(
    "text",
    [
        POOLS.replace("forward", "build_table"),  # once
        POOLS.replace("zip(xs, lengths)", "zip(self.layers, lengths)"),
        OFFSETS.replace("x[at : at + n].sum(0)", "self.decode(x[at : at + n])"),
        OFFSETS.replace("at += n", "at = self.next(at, n)"),  # each round needs the one before
        IMAGES.replace("x.new_ones(", "np.ones("),  # of the host
        SPEEDS.replace("track[:, i - 1]", "speed[:, i - 1]"),  # a recurrence
        SPEEDS.replace("range(track.shape[1])", "range(3)"),  # three rounds
        VIEWS.format("x[:, :, i]"),  # for which no kernel runs
        VIEWS.format("x[:, i : i + 4]"),
        SPEEDS.replace("range(track.shape[1])", "range(self.num_layers)"),
        REPELS.replace("loss += ", "radius = 0.5 * radius + "),  # a state
        DRAWS.replace("torch.randint", "np.random.randint"),
        FIRES.replace("frames[b, :][", "print(frames[b, :])["),
        TREES.replace("x[b].exp()", "out[b - 1].exp()"),
        TREES.replace("x[b].exp()", "out.exp()"),  # what other rounds have written
        TREES.replace("out[b] =", "self.log(b)\n            out[b] ="),  # an effect
        TREES.replace("lap.inverse()", "nms(lap)"),  # one image after the other
        TREES.replace("lap.inverse()", "self.audio.load(lap)"),
        TREES.replace("range(x.size(0))", "range(0, x.size(0), 8)"),  # windows
        CAMERAS.replace("self.encoding(", "self.encodings[i]("),  # a module of its own each
        CAMERAS.replace("self.encoding(", "self.focal_loss("),  # one number for each row
        TABLES,  # windows, each as high and wide as its image
        ENDS,  # what is read in each round is told by itself
    ],
)
def test_loops_that_only_look_like_it_are_left_alone(text: str) -> None:
    sites = find_sites(HEADER + text, [RULE])
    assert not {site.problem for site in sites} & {*OF_BATCHES, MERGED, RAGGED}


def test_the_forms_compute_the_same() -> None:
    draw = torch.Generator().manual_seed(2)
    x, lengths = torch.randn(3, 5, 2, generator=draw), torch.tensor([5, 1, 3])
    known = torch.arange(5) < lengths[:, None]
    means = torch.stack([row[:n].mean(0) for row, n in zip(x, lengths, strict=True)])
    torch.testing.assert_close((x * known[..., None]).sum(1) / lengths[:, None], means)

    parts = [row[:n] for row, n in zip(x, lengths, strict=True)]
    out = torch.zeros_like(x)
    out[known] = torch.cat(parts)
    assert out.equal(torch.nn.utils.rnn.pad_sequence(parts, batch_first=True))

    mask = torch.tensor([[1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [0, 1, 1, 0, 0]]).bool()
    place = mask.cumsum(1) - 1
    rows, columns = mask.nonzero(as_tuple=True)
    out = torch.zeros_like(x)
    out[rows, place[rows, columns]] = x[rows, columns]
    chosen = [row[m] for row, m in zip(x, mask, strict=True)]
    assert out[:, :3].equal(torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True))

    starts = torch.tensor([0, 2, 1])
    windows = x[torch.arange(3)[:, None], starts[:, None] + torch.arange(3)]
    assert windows.equal(torch.stack([row[s : s + 3] for row, s in zip(x, starts, strict=True)]))

    away = (x[:, :, None] - x[:, None]).norm(dim=-1)
    torch.testing.assert_close(
        away[:, 1, [0, 2, 3, 4]], (x[:, [0, 2, 3, 4]] - x[:, 1:2]).norm(dim=-1)
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [("self.theta", True), ("self.axes_dim[i], self.theta", False), ("n=self.sizes[i]", False)],
)
def test_rows_that_become_of_several_widths_stay_rows(given: str, *, told: bool) -> None:
    text = f"""
class Embed(nn.Module):
    def forward(self, ids):
        return torch.cat([rope(ids[..., i], {given}) for i in range(ids.shape[-1])], dim=-3)
"""
    assert (BATCHED in [site.problem for site in find_sites(HEADER + text, [RULE])]) is told


SWAPPED = """for i in range(n):
            kept = y[:, starts[i]]
            y[:, starts[i]] = {} * 2
            out.append(kept)"""
PIECES = """for i in range({}):
            out.append(F.relu(y[i * n : (i + 1) * n]).sum(0))"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("for i in range(1, len(x)):\n            if n > i:\n                x[i][:] = 0", False),
        (
            "for i in range(len(x)):\n            if n > y[i, 0]:\n                x[i, 1:] = n[i]",
            True,
        ),
        ("for k in y:\n            y[k] = y[k].to(self.device)", False),
        # taps of a convolution, and layers that are called by their forward
        ("for i in range(n):\n            y[:, i:] += x[i] * y[:, : n - i]", False),
        ("out = torch.cat([self.wo[i].forward(y[:, i]) for i in range(n)])", False),
        # columns that change places one after the other, and those that stay
        (SWAPPED.format("y[:, x[i]]"), False),
        (SWAPPED.format("y[:, starts[i]]"), True),
        # a product of reflections, each of them of the one before
        ("for i in range(n):\n            y = y - 2 * y @ x[:, i, None] @ x[None, :, i]", False),
        # as many at once as there is memory for
        (PIECES.format("math.ceil(len(y) / n)"), False),
        (PIECES.format("2 * n"), True),
        (
            (
                "for i in range(n):\n            a, b = i * 8, min((i + 1) * 8, len(y))\n"
                "            out.append(F.relu(y[a:b]).sum(0))"
            ),
            False,
        ),
        # two that have names
        (
            "for z in (x, y):\n            k = (z[n] == 1).nonzero()\n            out.append(k)",
            False,
        ),
        # windows of one size, and a table of the settings that decides
        ("for i in starts:\n            out.append([f(w[i : i + self.size]) for w in x])", False),
        (
            "for i in range(4):\n            if n < self.ends[i]:\n                x[0, i] = 0",
            False,
        ),
    ],
)
def test_what_has_no_rows_of_its_own_is_no_batch(body: str, *, told: bool) -> None:
    text = f"""
class Net(nn.Module):
    def forward(self, x, y: torch.Tensor, n, starts):
        out = []
        {body}
        return out
"""
    said = {site.problem for site in find_sites(HEADER + text, [RULE])}
    assert bool(said & {*OF_BATCHES, *BY_HAND, *OF_ROUNDS}) is told
