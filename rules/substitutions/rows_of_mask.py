"""A loop in which each round finds what is set in one row of a mask.

What: ``slot, token = torch.where(expert_mask[i])`` or ``torch.where(indices == i)`` in a loop over
``i``: mixtures of experts that compute one expert after the other, and other loops over classes,
heads or requests.

Why it is slow on the NPU: how much is set decides the shapes, so the host waits for NonZero in each
round, and all that was launched before it must be done. Found at once, it is one NonZero for the
whole mask, and one read of how much is set in each row. Where the loop is over positions that were
found before (``for row in hit``), these are read at once as well.

Safety: exact. NonZero gives positions in the order of the rows, so those of each row lie behind
each other, in the order in which the row alone gives them. The mask must be the same in every round
(``not-written-to``), and no list of masks of different sizes (``is-tensor``); numbers that are compared count
from zero on (``begins-with-zero``).

References: transformers' loops over experts (Mixtral, Qwen, DeepSeek); "NonZero operator" in the
performance tuning guide of Ascend Extension for PyTorch; verl #4406 goes further (a grouped product,
see expert-loop).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def found_each(x: Tensor, mask: Tensor) -> Tensor:
    """Find what is set in each row."""
    out = torch.zeros_like(x)
    for i in range(len(mask)):
        place, token = torch.where(mask[i])
        out.index_add_(0, token, x[token] * (place[:, None] + i))
    return out


def found_once(x: Tensor, mask: Tensor) -> Tensor:
    """Find all that is set, and take it apart by its numbers."""
    counts = mask.flatten(1).count_nonzero(1).tolist()
    places = list(zip(*(torch.split(at, counts) for at in torch.where(mask)[1:])))  # noqa: B905 - alike
    out = torch.zeros_like(x)
    for i in range(len(mask)):
        place, token = places[i]
        out.index_add_(0, token, x[token] * (place[:, None] + i))
    return out


def inputs(draw: Draw) -> dict[str, Any]:
    """Return tokens, and which of them are set in which row and place, perhaps none."""
    import torch

    tokens = draw.integer(1, 5)
    return {
        "x": draw.floats(tokens, 3, dtype=torch.float32),
        "mask": draw.booleans(draw.integer(1, 3), draw.integer(1, 2), tokens),
    }


def _unknown(_site: Site) -> bool | None:
    return None  # the search has looked at the mask


IS_TENSOR = Condition("is-tensor", "the mask is one torch tensor, not a list of them", _unknown)
NOT_WRITTEN = Condition(
    "not-written-to", "nothing that the loop calls or writes into changes the mask", _unknown
)
BEGINS = Condition("begins-with-zero", "the loop begins with zero or a number above", _unknown)

_HEADS = """
class Heads(nn.Module):
    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        out = torch.zeros_like(x)
        mask = F.one_hot(labels, self.num_classes).permute(2, 1, 0)
        for i in range(self.num_classes):
            slot, row = torch.where(mask[i])
            out.index_add_(0, row, self.heads[i](x.index_select(0, row)) * slot[:, None])
        return out
"""
_HIT = """
class Heads(nn.Module):
    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        out = torch.zeros_like(x)
        mask = F.one_hot(labels, self.num_classes).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for i in hit:
            i = i[0]
            if i == self.num_classes:
                continue
            _, row = torch.where(mask[i])
            out.index_add_(0, row, self.heads[i](x.index_select(0, row)))
        return out
"""
_SQUEEZED = """
class Heads(nn.Module):
    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        out = torch.zeros_like(x)
        mask = F.one_hot(labels, self.num_classes).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for i in hit:
            _, row = torch.where(mask[i].squeeze(0))
            out.index_add_(0, row, self.heads[i](x.index_select(0, row)))
        return out
"""
_EQUAL = """
class Heads(nn.Module):
    def forward(self, x: torch.Tensor, chosen: torch.LongTensor, weights: torch.Tensor):
        out = torch.zeros_like(x)
        for i in range(self.first, self.last):
            row, slot = torch.where(chosen == i)
            out.index_add_(0, row, self.heads[i](x.index_select(0, row)) * slot[:, None])
        return out
"""

RULE = Substitution(
    id="NPU222",
    name="rows-of-mask",
    summary="each round of a loop finds what is set in one row of a mask",
    table="affinity",
    forms=(Form(found_each, found_once, inputs, (IS_TENSOR, NOT_WRITTEN, BEGINS)),),
    search="rows-of-masks",
    replaces=(),
    becomes=(),
    passes=(0, 0),
    requires="torch_npu>=2.1",
    valid=(
        # each round waits for the host all the same
        """
class Experts(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor):
        for i in range(self.n):
            slot, row = torch.where(mask[i])
            x[row.tolist()] += self.experts[i](x[row.tolist()])
        return x
""",
        # the mask changes
        """
class Slots(nn.Module):
    def forward(self, mask, out):
        for i in range(self.n):
            row, column = torch.where(mask[i])
            mask[i + 1, row, column] = False
            out[row, column] += i
        return out
""",
        # an index may be a vector: mask[[1, 2]] has a dimension more
        """
class Groups(nn.Module):
    def forward(self, mask, groups, out):
        for group in groups:
            row, column = torch.where(mask[group])
            out[row, column] += 1
        return out
""",
        # positions of a row by its columns; it may have no dimension more
        """
class Rows(nn.Module):
    def forward(self, mask, out):
        for i in range(self.n):
            at = torch.where(mask[i])
            out[at] += i
        return out
""",
        # another choice in each round
        """
class Choice(nn.Module):
    def forward(self, mask, a, b):
        for i in range(self.n):
            a, b = torch.where(mask[i], a, b)
        return a, b
""",
        # every second of them is compared
        """
class Pairs(nn.Module):
    def forward(self, ids, out):
        for i in range(1, self.n, 2):
            row, column = torch.where(ids == i)
            out[row, column] += i
        return out
""",
        # an inner loop: for each layer another mask
        """
class Layers(nn.Module):
    def forward(self, masks, out):
        for mask in masks:
            for i in range(self.n):
                row, column = torch.where(mask[i])
                out[row, column] += i
        return out
""",
    ),
    rewritten=(
        Rewritten(
            _EQUAL,
            _EQUAL.replace("torch.where(chosen == i)", "mask_places[i]").replace(
                "\n        for i in",
                """
        mask_rows = (
            chosen == torch.arange(self.last, device=chosen.device).view(-1, 1, 1)
        )
        mask_counts = mask_rows.flatten(1).count_nonzero(1).tolist()
        mask_places = list(
            zip(*(torch.split(at, mask_counts) for at in torch.where(mask_rows)[1:]))
        )
        for i in""",
            ),
        ),
        *(
            Rewritten(
                text,
                text.replace("in hit:\n            i =", "in hit.tolist():\n            i =")
                .replace("torch.where(mask[i].squeeze(0))", "mask_places[i]")
                .replace("torch.where(mask[i])", "mask_places[i]")
                .replace(
                    "\n        for i in",
                    """
        mask_counts = mask.flatten(1).count_nonzero(1).tolist()
        mask_places = list(
            zip(*(torch.split(at, mask_counts) for at in torch.where(mask)[1:]))
        )
        for i in""",
                ),
            )
            for text in (_HEADS, _HIT, _SQUEEZED)
        ),
    ),
)
