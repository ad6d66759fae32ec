"""Loops whose rounds need nothing of each other: what is said of them, and where nothing is."""

from __future__ import annotations

import pytest

from npufix.rewriters.edit.loops.advice.batches import BATCHED, GRADIENTS
from npufix.rewriters.edit.loops.advice.independent import (
    ALIGNED,
    ASSIGNED,
    CROPPED,
    INDEPENDENT,
    OF_ROUNDS,
    RAGGED,
    READ,
    SUPPRESSED,
)
from npufix.rewriters.edit.loops.advice.ragged import RECURRENCES
from npufix.rewriters.edit.loops.advice.rows import COLUMNS
from npufix.rewriters.find import find_sites
from npufix.rules.substitutions.loop_over_rows import RULE

HEADER = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
PIECES = """
class Loss(nn.Module):
    def forward(self, scores, texts):
        chosen = []
        for i in range(scores.shape[0]):
            chosen.append(self.choose(scores[i, :, :], texts[i, :, :]))
        return torch.cat(chosen, 0)

    def choose(self, scores, texts):
        return texts[(scores > 0).nonzero()[0]]
"""
MATCHES = """
class Criterion(nn.Module):
    def loss_labels(self, outputs, gt_instances, indices):
        labels = []
        for gt_per_img, (_, found) in zip(gt_instances, indices):
            known = torch.ones_like(found)
            known[found != -1] = gt_per_img[found[found != -1]]
            labels.append(known)
        return torch.cat(labels)
"""
MATES = """
class Net(nn.Module):
    def forward(self, scores: torch.Tensor, fmap: torch.Tensor):
        n = fmap.shape[0]
        _, index = scores.max(dim=2)
        found, _ = scores.exp().max(dim=1)
        for b in range(n):
            row = index[b, :]
            found[b, :] = found[b, :][row]
        return found
"""
SCALES = """
class Mixing(nn.Module):
    def forward(self, x_list, season_list, trend_list, length_list):
        out_list = []
        for x, season, trend, length in zip(x_list, season_list, trend_list, length_list):
            out = x + self.cross(season + trend)
            out_list.append(out[:, :length, :])
        return out_list
"""
SHORT_OF_MEMORY = """
class Net(nn.Module):
    def forward(self, windows: torch.Tensor):
        n_batches = int(math.ceil(len(windows) / self.size))
        made = []
        for i in range(n_batches):
            taken = windows[i * self.size : (i + 1) * self.size]
            made.append(torch.relu(F.interpolate(taken, scale_factor=2)))
        return torch.cat(made)
"""
PADS = """
class Head(nn.Module):
    def forward(self, masks, size):
        made = []
        for i in range(len(masks)):
            mask = masks[i]
            pad = [0, size - mask.shape[1]]
            mask = F.pad(mask, pad, value=0)
            made.append(mask * 2)
        return torch.stack(made)
"""
KNOWN = """
class Criterion(nn.Module):
    def forward(self, targets, scalar):
        found = []
        for i in range(len(targets)):
            if len(targets[i]["labels"]) > 0:
                t = torch.arange(len(targets[i]["labels"])).cuda()
                found.append((t.unsqueeze(0) * 2).repeat(scalar, 1).flatten())
        return found
"""
OVERLAPS = """
def overlap_of_row(a, b):
    return (a * b).sum() / (a + b).sum()

def compute_iou(a, b):
    out = torch.zeros(len(a))
    for i in range(a.shape[0]):
        out[i] = overlap_of_row(a[i], b[i])
    return out.mean()
"""
BOXES = """
class Detector(nn.Module):
    def forward(self, boxes: torch.Tensor, scores: torch.Tensor):
        kept = []
        for i in range(boxes.shape[0]):
            kept.append(nms(boxes[i, :, :4], scores[i, :, 0] * 2, 0.5))
        return kept
"""
COSTS = """
class Matcher(nn.Module):
    def forward(self, costs: torch.Tensor, targets):
        found = []
        for i, target in enumerate(targets):
            cost = torch.cdist(costs[i, :, :4], target)
            found.append(linear_sum_assignment(cost.cpu()))
        return found
"""
CROPS = """
class Masks(nn.Module):
    def forward(self, masks: torch.Tensor, boxes):
        made = []
        for i in range(masks.size(0)):
            part = masks[i, boxes[i][1] : boxes[i][3], boxes[i][0] : boxes[i][2]]
            made.append(F.adaptive_avg_pool2d(part[None], 28))
        return torch.cat(made)
"""
LABELS = """
class Loss(nn.Module):
    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        kept = []
        for row in x:
            n = int(row[0])
            kept.append(torch.relu(row[1:] - labels) * n)
        return kept
"""
SPOKEN = """
class Loss(nn.Module):
    def forward(self, logits: torch.Tensor, labels, lengths):
        total = 0
        for i in range(logits.shape[0]):
            total = total + F.ctc_loss(logits[i, :, None], labels[i], lengths[i], 9).exp()
        return total
"""
TARGETS = """
def make_targets(returns, mask):
    out = returns.new_zeros(*returns.shape)
    for t in range(out.shape[1] - 2, -1, -1):
        out[:, t] = 0.9 * out[:, t + 1] + mask[:, t] * returns[:, t]
    return out
"""
PREPARED = """
class Loss(nn.Module):
    def forward(self, x, labels):
        return x.mean() + self.pre_process(labels, x)

    def pre_process(self, gts, x):
        made = []
        for gt in gts:
            made.append(torch.relu(gt[:, 0]) + gt[:, 1].exp())
        return torch.cat(made)
"""
FIELDS = """
class Head(nn.Module):
    def forward(self, proposals, table):
        made, offset = [], 0
        for boxes in proposals:
            found = boxes.get_field("labels") + offset
            offset += len(boxes)
            boxes.add_field("scores", table[found])
            made.append(torch.relu(table[found]))
        return torch.cat(made)
"""
ROWS = """
class Encoder(nn.Module):
    def forward(self, x: torch.Tensor, lengths):
        made = []
        for b in range(x.size(0)):
            row = x[b : b + 1, :, : lengths[b]].clone()
            for conv in self.convolutions:
                row = F.relu(conv(row))
            made.append(row[0].transpose(0, 1))
        return made
"""
ADVANTAGES = """
class Storage:
    def compute_returns(self, gamma):
        gae = 0
        for step in reversed(range(self.rewards.size(0))):
            delta = self.rewards[step] + gamma * self.values[step + 1] - self.values[step]
            gae = delta + gamma * self.masks[step + 1] * gae
            self.returns[step] = gae + self.values[step]
"""
MOVED = """
class Lanes(nn.Module):
    def forward(self, x: torch.Tensor):
        for i in range(1, x.shape[2]):
            x[..., i : i + 1, :].add_(F.relu(self.conv(x[..., i - 1 : i, :])))
        return x
"""

QUEUE = """
class Memory(nn.Module):
    def forward(self, begins, frames: torch.Tensor):
        state = None
        for i in range(frames.shape[1]):
            if not begins[i]:
                state = None
            part = frames[:, i]
            state = self.head(part, state)
        return state
"""
GROUPED = """
class Net(nn.Module):
    def forward(self, x: torch.Tensor, grid: torch.Tensor):
        total = 0
        for i in range(x.shape[1] // self.size):
            part = F.grid_sample(x[:, i * self.size : (i + 1) * self.size], grid)
            total += part.abs().sum(dim=1)
        return total
"""
STACKED = """
class Optimizer(nn.Module):
    def forward(self, batches):
        for batch in batches:
            grad = torch.stack([torch.zeros_like(p) if p.grad is None else p.grad for p in batch])
            self.run(grad)
"""
KEPT = """
class Store(nn.Module):
    def forward(self, usage: torch.Tensor, kept: torch.Tensor, n: int):
        places = []
        for i in range(usage.shape[0]):
            places.append(usage[i].topk(n)[1].flatten())
        return torch.stack([kept[i, place] for i, place in enumerate(places)], 0)
"""
SAMPLED = """
class Scores(nn.Module):
    def forward(self, x: torch.Tensor, points: torch.Tensor):
        found = []
        for i in range(x.shape[0]):
            at = points[i] * 2 - 1
            found.append(F.grid_sample(x[i].unsqueeze(0), at.view(1, 1, -1, 2))[0, :, 0])
        return found
"""
PARTED = """
class Head(nn.Module):
    def forward(self, rois: torch.Tensor, x: torch.Tensor, n: int):
        made = []
        for i in range(rois.shape[1]):
            corners = self.corners(rois[:, i].contiguous())
            made.append(torch.relu(x[:, i * n : (i + 1) * n] - corners.unsqueeze(1)))
        return torch.cat(made, dim=1)

    def corners(self, rois):
        return rois[(rois > 0).nonzero()[0]]
"""
ENDED = """
class Decoder(nn.Module):
    def forward(self, y: torch.Tensor, ended_batch, places, at):
        y_list = [None] * y.shape[0]
        at_list = [0] * y.shape[0]
        for token in ended_batch:
            place = places[token]
            at_list[place] = at
            y_list[place] = y[token, :-1]
        return y_list, at_list
"""
LEVELS = """
class Head(nn.Module):
    def loss(self, bbox_preds, anchor_list):
        flat = [bbox.permute(0, 2, 3, 1).reshape(-1, 4) for bbox in bbox_preds]
        whole = []
        for i in range(len(anchor_list)):
            whole.append(torch.cat(anchor_list[i]))
        return torch.cat(flat), whole
"""
BESIDE = """
class Net(nn.Module):
    def forward(self, x: torch.Tensor, places, weights: torch.Tensor):
        w = torch.softmax(weights, -1)
        for p, i, row in zip(range(x.shape[0]), places, w):
            x[p, :, i[0]] = torch.relu(row[:, 2:]) * 2
        return x
"""


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (PIECES, INDEPENDENT),
        (PIECES.replace("scores", "loss_rows"), INDEPENDENT),  # what is gone over is no loss
        (MATCHES, RAGGED),
        (PARTED, INDEPENDENT),
        (SAMPLED, BATCHED),  # points are no boxes
        (BESIDE.replace("places, w", "x, w"), INDEPENDENT),  # rows of a tensor are of one length
        (BESIDE.replace("row[:, 2:]", "row[:, i.shape[0]]"), RAGGED),
        (PADS, INDEPENDENT),
        (PADS.replace("F.pad(mask, pad, value=0)", "torch.autograd.grad(mask, pad)[0]"), GRADIENTS),
        (KNOWN, INDEPENDENT),  # nobody waits for a length
        (KNOWN.replace('len(targets[i]["labels"]) >', 'targets[i]["labels"].sum() >'), READ),
        (OVERLAPS, BATCHED),
        (MATES, BATCHED),  # the index of each round is a row
        (BOXES, SUPPRESSED),
        (COSTS, ASSIGNED),
        (CROPS, CROPPED),
        (LABELS, READ),
        (SPOKEN, ALIGNED),
        (TARGETS, COLUMNS),
        (PREPARED, RAGGED),
        (FIELDS, RAGGED),
        (ROWS, RAGGED),
        (ADVANTAGES, RECURRENCES),
    ],
)
def test_the_form_of_rounds_that_need_nothing_of_each_other_is_told(text: str, form: str) -> None:
    (site,) = find_sites(HEADER + text, [RULE])
    assert (site.problem, site.rewrite) == (form, None)


RATIOS = """
def forward(x: torch.Tensor, en: torch.Tensor):
    dn = [torch.ones_like(en[0, 0])]
    for i in range(1, en.shape[1]):
        value = 1 - en[0, i] / dn[-1]
        dn.append(value)
    return x * torch.stack(dn)
"""
DIMENSIONS = """
def compute_keys(x: torch.Tensor, at: torch.Tensor, shape):
    flat = torch.zeros_like(x)
    for dim in range(1, at.shape[1]):
        flat = flat * shape[dim] + at[:, dim].to(torch.long)
    return flat
"""
SPANS = """
class Net(nn.Module):
    def forward(self, x: torch.Tensor, indices, n: int):
        return x[torch.cat([torch.arange(i, i + n) for i in indices])]
"""


@pytest.mark.parametrize(
    "text",
    [
        SPANS,  # numbers of the host
        DIMENSIONS,
        PIECES.replace("Loss", "Data").replace("forward", "load_items"),  # no step
        PIECES.replace("choose", "_get_bboxes_single"),  # as many as it finds
        LEVELS,
        PIECES.replace("scores.shape[0]", "self.num_layers"),
        PIECES.replace("scores.shape[0]", "3"),  # three rounds
        PIECES.replace("self.choose(", "self.heads[i]("),  # a module of its own each
        PIECES.replace("self.choose(", "self.save("),  # for the host
        PIECES.replace("forward", "tiled_forward"),  # one after the other for memory
        PIECES.replace("chosen.append(", "self.at = [0]\n            chosen.append("),  # a state
        MATCHES.replace("labels.append(", "indices[0] = None\n            labels.append("),
        MATCHES.replace("gt_instances", "features").replace("indices", "strides"),  # levels
        MATCHES.replace("torch.ones_like(found)", "gt_per_img.fill(found)"),  # objects
        MATCHES.replace("gt_per_img[found[", "gt_per_img.labels[found["),
        PIECES.replace("texts[i, :, :]", "texts[i]").replace("texts[(sc", "texts.boxes[(sc"),
        PIECES.replace(
            "chosen.append(self", "n = self.periods[i]\n            chosen.append(self"
        ).replace("scores[i, :, :]", "scores[i, :, :].view(n, -1)"),  # a shape of its own each
        SHORT_OF_MEMORY,
        QUEUE,
        GROUPED,
        STACKED,
        ENDED,
        BESIDE,
        PIECES.replace("        for i", "        # one by one to save GPU memory\n        for i"),
        MATCHES.replace("gt_instances", "linear_terms").replace("indices", "linear_values"),
        MATCHES.replace(
            "labels.append(known)", "labels.append(known)\n            indices = labels[-1]"
        ).replace("known[found", "known = known + indices\n            known[found"),  # a state
        SCALES,  # each round has a batch
        PADS.replace("* 2", "").replace("mask = F.pad(mask, pad, value=0)", "mask.decode()"),
        OVERLAPS.replace("overlap_of_row(a[i], b[i])", "i * 0.5"),
        BOXES.replace("kept.append(", "print(i)\n            kept.append("),
        BOXES.replace("range(boxes.shape[0])", "range(0, boxes.shape[0], 8)"),  # windows
        LABELS.replace("for row in x:", "for row in x.tolist():").replace("row[0]", "row"),
        FIELDS.replace("get_field", "activate"),  # an object that changes
        FIELDS.replace("offset += len(boxes)", "offset = found.max()"),  # a state
        ROWS.replace("self.convolutions", "row.parts"),
        PIECES.replace("self.choose(", "self.forward("),  # of lists in lists
        ADVANTAGES.replace("self.rewards.size(0)", "len(self.rewards)"),  # numbers of a list
        MATCHES.replace("gt_per_img", "loss"),  # one loss after the other
        MATCHES.replace("torch.ones_like(found)", "F.log_softmax(gt_per_img, -1)"),  # for memory
        MOVED,  # each round needs the one before
        TARGETS.replace("make_targets", "load_table"),
        TARGETS.replace("out[:, t] =", "out[:, mask[t]] ="),  # nobody knows whose column it reads
        PREPARED.replace("self.pre_process(labels, x)", "1"),  # of the host
        PREPARED.replace("torch.relu(gt[:, 0]) + gt[:, 1].exp()", "gt[:, 0]"),  # one view
    ],
)
def test_loops_that_only_look_like_it_are_left_alone(text: str) -> None:
    sites = find_sites(HEADER + text, [RULE])
    assert not {site.problem for site in sites} & {*OF_ROUNDS, COLUMNS, RECURRENCES}


@pytest.mark.parametrize(("made", "written"), [(".flatten()", False), ("[0].item()", True)])
def test_vectors_that_fill_a_list_are_no_numbers(made: str, *, written: bool) -> None:
    sites = find_sites(HEADER + KEPT.replace(".flatten()", made), [RULE])
    assert any(site.rewrite is not None for site in sites) is written


def test_lists_of_weights_are_no_rows() -> None:
    text = """
class Fast(torch.optim.Optimizer):
    def step(self, squares):
        torch._foreach_mul_(squares, 0.9)
        roots = torch._foreach_sqrt(squares)
        return torch.stack([root.norm(-2).pow(-2) for root in roots]).sum()
"""
    assert not list(find_sites(HEADER + text, [RULE]))
    gone = "\n\ndef loss(rows: torch.Tensor):\n    for row in rows:\n        row = None\n"
    assert not list(find_sites(HEADER + gone, [RULE]))
    rows = text.replace("_foreach_mul_", "relu_").replace("_foreach_", "")
    assert [site.problem for site in find_sites(HEADER + rows, [RULE])] == [""]


def test_the_next_of_a_list_needs_the_last() -> None:
    assert list(find_sites(HEADER + RATIOS, [RULE])) == []
    assert list(find_sites(HEADER + RATIOS.replace("dn[-1]", "en[1, i]"), [RULE])) != []
