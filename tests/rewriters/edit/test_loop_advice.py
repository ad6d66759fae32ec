"""Loops for which no text is written: what is said of them, and that the form computes the same."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from npufix.rewriters.edit.loops.advice.ragged import GROWING, SEGMENTS, UNPADDED
from npufix.rewriters.edit.loops.advice.ragged import OVERLAPS as OVERLAPPING
from npufix.rewriters.edit.loops.advice.rows import (
    BY_HAND,
    CALLED,
    COLUMNS,
    ELEMENTS,
    JOINED,
    KEYS,
    PADDED,
    PARTS,
    RANGES,
    ROWS,
    TRIANGLE,
)
from npufix.rewriters.edit.loops.advice.several import (
    EMBEDDED,
    EXPERTS,
    FREQUENCIES,
    OF_SEVERAL,
    PICTURES,
)
from npufix.rewriters.facts.steps.weights import WEIGHTS
from npufix.rewriters.find import find_sites
from npufix.rules.substitutions.loop_over_rows import RULE

HEADER = "import torch\nfrom torch import nn\n"
PADS = """
def forward(rows, width):
    out = torch.zeros(len(rows), 9, device=rows[0].device)
    for i, row in enumerate(rows):
        out[i, : row.shape[0]] = row
    return out
"""
AVERAGES = """
class Average:
    def update(self, model):
        for a, b in zip(self.model.parameters(), model.parameters()):
            a.data.mul_(self.decay).add_(b.data, alpha=1 - self.decay)
"""
SHADOWS = """
class Trainer:
    def momentum_step(self):
        weights = self.net.state_dict()
        for name, kept in self.kept.state_dict().items():
            if kept.dtype.is_floating_point:
                kept *= self.decay
                kept += (1 - self.decay) * weights[name].detach()
"""
TARGETS = """
class Agent(nn.Module):
    def training_step(self, batch):
        for p, target in zip(self.net.parameters(), self.target.parameters()):
            target.data.copy_(self.tau * p.data + (1 - self.tau) * target.data)
"""
TURNS = """
def table(x: torch.Tensor, width: int) -> torch.Tensor:
    return x[:, None] * torch.arange(width, device=x.device).exp()


class Positions(nn.Module):
    def forward(self, x: torch.Tensor):
        return torch.cat([table(x[i], 32) for i in range(3)], -1)
"""
FINDS = """
class Head(nn.Module):
    def forward(self, ids, x):
        found = []
        for i in range(ids.shape[0]):
            ends = (ids[i] == self.pad).nonzero()
            end = ends[0].item() if len(ends) > 0 else ids.shape[1]
            found.append(x[i, end - 1])
        return self.score(found)
"""
LIMITS = """
class Sampler(nn.Module):
    def forward(self, logits, made, least, end):
        for i in range(logits.shape[0]):
            if made[i] < least[i]:
                logits[i, end] = -1e9
        return logits
"""
STARTS = """
def forward(start: torch.Tensor, n: int):
    parts = []
    for i in range(n):
        parts.append(torch.arange(start[i], start[i] + 4, device=start.device))
    return torch.cat(parts)
"""
KEEPS = """
def forward(x: torch.Tensor, n: int):
    y = torch.ones(x.shape[0], n + 1, device=x.device)
    for k in range(n):
        y[:, k + 1] = y[:, k] * x[:, k]
    return y
"""
INVERTS = """
def forward(a: torch.Tensor, n: int):
    a = -a.tril(-1)
    for i in range(1, n):
        row = a[..., i, :i].clone()
        sub = a[..., :i, :i].clone()
        a[..., i, :i] = row + (row.unsqueeze(-1) * sub).sum(-2)
    return a
"""
KEYED = """
def compute_loss(x: torch.Tensor, key):
    groups, mean = {}, {}
    for i in range(x.shape[0]):
        groups[key[i]].append(x[i])
    for k in groups:
        mean[k] = torch.stack(groups[k]).mean()
    return mean
"""
OVERLAPS = """
class BoxLoss(nn.Module):
    def forward(self, x: torch.Tensor, boxes):
        total = x.new_zeros(1)
        for box in boxes:
            total += self.overlap(x[0], box)
        return total

    def overlap(self, a, b):
        low, high = max(a[0], b[0]), min(a[1], b[1])
        return max(high - low, 0)
"""
SCATTERS = """
class Scatter(nn.Module):
    def forward(self, coords: torch.Tensor, x: torch.Tensor, n):
        parts = []
        for i in range(n):
            mask = coords[:, 0] == i
            part = self.canvas(x)
            part[:, coords[mask, 1]] = x[mask, :].t()
            parts.append(part)
        return parts
"""
FUSES = """
class Fuse(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, n: torch.Tensor):
        out = torch.zeros_like(x)
        for k in range(len(x)):
            out[k] = torch.cat((x[k, : n[k]], y[k, : x.shape[1] - n[k]]), 0)
        return out
"""
UNPADS = """
def forward(self, x: torch.Tensor, rows: list):
    ys = [y[y != self.padding] for y in x]
    return self.pad(ys)
"""


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (UNPADS, UNPADDED),  # no other loop stands beside it
        (UNPADS.replace("in x]", "in rows[0]]"), UNPADDED),
        (SCATTERS, PARTS),
        (FUSES, JOINED),
        (PADS, PADDED),
        (PADS.replace("out[i, : row.shape[0]]", "out[i][: len(row)]"), PADDED),
        (PADS.replace("= row\n", "= rows[i]\n"), PADDED),
        (TURNS, CALLED),
        (FINDS, ROWS),
        (LIMITS, ROWS),
        (STARTS, RANGES),
        (KEEPS, COLUMNS),
        (INVERTS, TRIANGLE),
        (INVERTS.replace("a[..., :i, :i]", "a[..., :, :i]"), TRIANGLE),
        (KEYED, KEYS),
        (OVERLAPS, ELEMENTS),
        (AVERAGES, WEIGHTS),
        (SHADOWS, WEIGHTS),
        (TARGETS, WEIGHTS),
    ],
)
def test_what_a_person_writes_is_said(text: str, advice: str) -> None:
    assert advice in [site.problem for site in find_sites(HEADER + text, [RULE])]


@pytest.mark.parametrize(
    "text",
    [
        SCATTERS.replace("def forward", "def load_weights"),  # once
        SCATTERS.replace("== i", "== n"),  # the same in each round
        FUSES.replace("n[k]", "n"),  # all rows alike
        PADS.replace("torch.zeros(", "np.zeros("),  # an array
        PADS.replace("= row\n", "= self.net(row)\n"),  # computed for each row
        PADS.replace("row.shape[0]", "width"),  # as wide as the others
        PADS.replace("def forward", "def build_table"),  # once
        FINDS.replace(
            "found.append(x[i, end - 1])", "found.append(self.take(x[i], end))"
        ),  # whatever
        LIMITS.replace("made[i] < least[i]", "i == 0"),  # the host knows the counter
        LIMITS.replace("logits[i, end] = -1e9", "logits[i] = None"),  # perhaps a list
        STARTS.replace(", device=start.device", ""),  # on the host
        STARTS.replace("start[i], start[i] + 4", "0, 4"),  # one range
        KEEPS.replace("y[:, k] * x", "x[:, k] * x"),  # no earlier column
        INVERTS.replace("row.unsqueeze(-1) * sub", "sub"),  # nothing is multiplied
        KEYED.replace("torch.stack(groups[k]).mean()", "len(groups[k])"),  # counted on the host
        OVERLAPS.replace("max(high - low, 0)", "self.net(high - low)"),
        AVERAGES.replace("def update", "def init_weights"),  # once
        AVERAGES.replace("self.model.parameters()", "self.rows"),  # perhaps numbers
        AVERAGES.replace("b.data,", "self.noise(b),"),  # whatever
        TARGETS.replace("self.tau * p.data + (1 - self.tau) * target.data", "p.data"),  # a copy
        SHADOWS.replace("kept *= self.decay", "self.log(kept)"),
        OVERLAPS.replace("self.overlap(x[0], box)", "self.overlap(x[0], x[1])"),
        TURNS.replace("x[i], 32)", "x[i], self.widths[i])"),  # results of several widths
    ],
)
def test_other_loops_are_not_taken_for_these(text: str) -> None:
    sites = find_sites(HEADER + "import numpy as np\n" + text, [RULE])
    assert not {site.problem for site in sites} & {*BY_HAND}


def test_the_forms_compute_the_same() -> None:
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randn(n, 2, generator=draw) for n in (2, 0, 3)]
    lengths = [len(row) for row in rows]
    padded, out = torch.zeros(2, 3, 4, 2)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    segment = np.repeat(range(3), lengths)
    out[segment, np.concatenate([range(n) for n in lengths]).astype(int)] = torch.cat(rows)
    assert out.equal(padded)

    a = torch.randn(3, 8, 8, generator=draw, dtype=torch.float64).tril(-1)
    one, wanted = torch.eye(8, dtype=torch.float64), a.clone()
    for i in range(1, 8):
        row, sub = wanted[..., i, :i].clone(), wanted[..., :i, :i].clone()
        wanted[..., i, :i] = row + (row.unsqueeze(-1) * sub).sum(-2)
    square = a @ a
    assert ((one + a) @ (one + square) @ (one + square @ square) - one).allclose(wanted)

    begins, total = torch.tensor([0, 3]), 5
    starts, sizes = torch.tensor([4, 9]), torch.tensor([3, 2])
    ranges = torch.arange(total) - torch.repeat_interleave(begins - starts, sizes)
    assert ranges.tolist() == [4, 5, 6, 9, 10]


def test_lists_of_weights_change_as_the_loop_does_only_without_gradients() -> None:
    """``.data`` in the loop needs no ``no_grad``; what is advised for it does, and says so."""
    kept, lists = (torch.nn.Linear(3, 2) for _ in range(2))
    lists.load_state_dict(kept.state_dict())
    weights = torch.nn.Linear(3, 2)
    for old, new in zip(kept.parameters(), weights.parameters(), strict=True):
        old.data.mul_(0.9).add_(new.data, alpha=0.1)
    averages = list(lists.parameters())
    with pytest.raises(RuntimeError, match="requires grad"):
        torch._foreach_mul_(averages, 0.9)
    with torch.no_grad():
        torch._foreach_mul_(averages, 0.9)
        torch._foreach_add_(averages, list(weights.parameters()), alpha=0.1)
    torch.testing.assert_close(averages, list(kept.parameters()))
    assert "under torch.no_grad()" in WEIGHTS


BLEND = """
class Decoder(nn.Module):
    def blend(self, a: torch.Tensor, b: torch.Tensor, n: int):
        for x in range(n):
            b[:, x, :] = a[:, {index}, :] * (1 - x / n) + b[:, x, :] * (x / n)
        return b
"""
STATES = """
class Scorer(nn.Module):
    def score(self, x: torch.Tensor, states: torch.Tensor):
        if states{first} is None:
            return x
        return torch.stack([c for h, c in states], dim=1)
"""


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (BLEND.format(index="x"), True),
        (BLEND.format(index="-n + x"), False),  # numbers of a list are copied to the device
        (STATES.format(first=""), True),
        (STATES.format(first="[0]"), False),  # a list, whatever it is declared as
    ],
)
def test_what_is_no_tensor_is_not_indexed_like_one(text: str, *, written: bool) -> None:
    header = "import torch\nfrom torch import nn\n"
    sites = find_sites(header + text, [RULE])
    assert any(site.rewrite is not None for site in sites) is written


SUMS = """
def forward(x: torch.Tensor, counts: torch.Tensor):
    made, begin = [], 0
    for count in counts.tolist():
        part = x[begin : begin + count]
        made.append(part.max(dim=0).values)
        begin += count
    return torch.stack(made)
"""
ADDS = """
def forward(frames: torch.Tensor, hop: int):
    b, n, size = frames.shape
    out = frames.new_zeros(b, (n - 1) * hop + size)
    for i in range(n):
        start = i * hop
        out[:, start : start + size] += frames[:, i]
    return out
"""
GROWS = """
class Net(nn.Module):
    def forward(self, x: torch.Tensor):
        made = []
        for t in range(1, x.shape[1] + 1):
            made.append(self.step(x[:, :t]))
        return torch.stack(made, dim=1)
"""


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (SUMS, SEGMENTS),
        (ADDS, OVERLAPPING),
        (GROWS, GROWING),
        (SUMS.replace("part.max(dim=0).values", "len(part)"), None),
        (ADDS.replace("start + size", "start + hop"), None),
        (GROWS.replace("made.append(", "x = x + 1; made.append("), None),
    ],
)
def test_running_starts_overlaps_and_growing_slices_are_told(text: str, advice: str | None) -> None:
    told = {site.problem for site in find_sites(HEADER + text, [RULE])}
    assert (told == {advice}) if advice else not told & {SEGMENTS, OVERLAPPING, GROWING}


def test_a_fold_adds_up_windows() -> None:
    frames, hop, scope = torch.randn(2, 3, 4), 3, {"torch": torch}
    exec(ADDS, scope)  # noqa: S102 - the text above
    folded = torch.nn.functional.fold(frames.transpose(1, 2), (1, 10), (1, 4), stride=(1, hop))
    torch.testing.assert_close(folded.flatten(1), scope["forward"](frames, hop))


QUANTILES = """
class Loss(nn.Module):
    def loss(self, y: torch.Tensor, target: torch.Tensor):
        losses = []
        for i, q in enumerate(self.quantiles):
            rest = target - {rows}[..., i]
            losses.append(torch.max((q - 1) * rest, q * rest).unsqueeze(-1))
        losses = 2 * torch.cat(losses, dim=2)
        return losses
"""


@pytest.mark.parametrize(("rows", "told"), [("y", 1), ("self.tables", 0)])
def test_columns_that_come_together_in_a_list_are_told(rows: str, told: int) -> None:
    assert len(list(find_sites(HEADER + QUANTILES.format(rows=rows), [RULE]))) == told


TABLES = """
class Atoms(nn.Module):
    def __init__(self, sizes, width):
        super().__init__()
        self.tables = nn.ModuleList()
        for size in sizes:
            self.tables.append(nn.Embedding(size, width))

    def forward(self, x):
        return torch.cat([table(x[:, i]) for i, table in enumerate(self.tables)], -1)
"""
SUMMED = TABLES.replace(
    "        return torch.cat([table(x[:, i]) for i, table in enumerate(self.tables)], -1)\n",
    "        made = 0\n        for i in range(x.shape[1]):\n"
    "            made += self.tables[i](x[:, i])\n        return made\n",
)
CHOSEN = """
class Experts(nn.Module):
    def forward(self, xs):
        made = []
        for expert, x in zip(self.experts, xs):
            made.append(expert(x))
        return torch.stack(made)
"""
WAVES = """
class Positions(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.waves = [torch.sin, torch.cos]

    def forward(self, x):
        made = [x]
        for f in self.frequencies:
            for wave in self.waves:
                made.append(wave(x * f))
        return torch.cat(made, -1)
"""
BATCHES = """
class Images(nn.Module):
    def forward(self, images):
        out = images[0].new_zeros(len(images), 3, 800, 800)
        for image, place in zip(images, out):
            place[:, : image.shape[1], : image.shape[2]].copy_(image)
        return out
"""
NARROWED = """
class Molecules(nn.Module):
    def forward(self, atoms, scope):
        made = []
        for start, size in scope:
            made.append(atoms.narrow(0, start, size).sum(0))
        return torch.stack(made)
"""


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (TABLES, EMBEDDED),
        (SUMMED, EMBEDDED),
        (
            TABLES.replace("self.tables = nn.ModuleList()", "tables = []")
            .replace("self.tables.append(nn", "table = (nn")
            .replace("width))", "width))\n            tables.append(table)")
            .replace(
                "\n    def forward",
                "        self.tables = nn.ModuleList(tables)\n\n    def forward",
            ),
            EMBEDDED,
        ),
        (TABLES.replace("nn.Embedding", "nn.Linear"), None),  # other modules
        (TABLES.replace("x[:, i]", "x[i]"), None),  # perhaps a list
        (TABLES.replace("x[:, i]", "x[:, 0]"), None),  # the same column
        (CHOSEN, EXPERTS),
        (
            CHOSEN.replace("made = []", "made = [expert(x) for expert, x in zip(self.experts, xs)]")
            .replace("        for expert, x in zip(self.experts, xs):\n", "")
            .replace("            made.append(expert(x))\n", ""),
            EXPERTS,
        ),
        (CHOSEN.replace("expert", "layer"), None),  # one after the other, perhaps
        (CHOSEN.replace("expert(x)", "expert(x, made)"), None),
        (WAVES, FREQUENCIES),
        (WAVES.replace("made.append(wave(x * f))", "made += [wave(f * x)]"), FREQUENCIES),
        (WAVES.replace("torch.cos]", "torch.relu]"), None),
        (WAVES.replace("x * f", "x + f"), None),
        (WAVES.replace("x * f", "x * x"), None),  # the same in each round
        (BATCHES, PICTURES),
        (
            BATCHES.replace("    place[", "    _, h, w = image.shape\n            place[")
            .replace("image.shape[1]", "h")
            .replace("image.shape[2]", "w"),
            PICTURES,
        ),
        (BATCHES.replace("image.shape[1]", "800"), None),  # of one height
        (BATCHES.replace("copy_(image)", "copy_(self.net(image))"), None),
        (BATCHES.replace("image.shape", "out.shape"), None),  # all as large as the batch
        (NARROWED, SEGMENTS),
        (
            NARROWED.replace(
                "made.append(atoms.narrow(0, start, size).sum(0))",
                "if size == 0:\n                made.append(self.none)\n"
                "                continue\n            part = atoms.narrow(0, start, size)\n"
                "            made.append(part.sum(0))",
            ),
            SEGMENTS,
        ),
        (NARROWED.replace(".sum(0)", ".exp()"), None),  # nothing is summed up
        (NARROWED.replace("(0, start", "(1, start"), None),  # columns
        (NARROWED.replace("start, size)", "start, 8)"), None),  # of one length
    ],
)
def test_rounds_with_tables_experts_waves_and_images_of_their_own(
    text: str, advice: str | None
) -> None:
    told = {site.problem for site in find_sites(HEADER + text, [RULE])}
    assert advice in told if advice else not told & {*OF_SEVERAL, SEGMENTS}


def test_what_is_advised_for_them_computes_the_same() -> None:
    draw = torch.Generator().manual_seed(2)
    tables = [torch.nn.Embedding(n, 4) for n in (3, 5, 2)]
    x = torch.stack([torch.randint(n, (6,), generator=draw) for n in (3, 5, 2)], 1)
    whole = torch.nn.Embedding.from_pretrained(torch.cat([t.weight for t in tables]))
    starts = torch.tensor([0, *(3, 5, 2)[:-1]]).cumsum(0)
    rows = [table(x[:, i]) for i, table in enumerate(tables)]
    assert whole(x + starts).flatten(-2).equal(torch.cat(rows, -1))
    assert whole(x + starts).sum(-2).allclose(sum(rows))

    xs, experts = torch.randn(3, 5, 4, generator=draw), [torch.nn.Linear(4, 2) for _ in range(3)]
    w, b = torch.stack([e.weight.T for e in experts]), torch.stack([e.bias for e in experts])
    made = torch.stack([expert(rows) for expert, rows in zip(experts, xs, strict=True)])
    torch.testing.assert_close(torch.baddbmm(b[:, None], xs, w), made)

    freqs, points = 2.0 ** torch.arange(4), torch.randn(2, 5, 3, generator=draw)
    y = points[..., None, :] * freqs[:, None]
    waves = [wave(points * f) for f in freqs for wave in (torch.sin, torch.cos)]
    assert torch.stack([y.sin(), y.cos()], dim=-2).flatten(-3).equal(torch.cat(waves, -1))

    heights, widths, masks = torch.tensor([2, 4]), torch.tensor([3, 1]), torch.zeros(2, 4, 3) > 0
    for mask, high, wide in zip(masks, heights, widths, strict=True):
        mask[:high, :wide] = True
    tall = torch.arange(4)[:, None] < heights[:, None, None]
    assert (tall & (torch.arange(3) < widths[:, None, None])).equal(masks)
