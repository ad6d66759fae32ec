"""One mask selects from several tensors: its positions are found for each of them.

What: ``pred[mask]``, ``target[mask]`` and ``weight[mask]`` with one boolean mask, in code that runs in
every step.

Why it is slow on the NPU: each of them turns the mask into positions. NonZero counts them, and the
host waits for the number, because it is the shape of the result: as often as the mask is used.

Safety: ``x[mask]`` is ``x[mask.nonzero(as_tuple=True)]`` by definition, so the positions are found
once and used for all, also to write: exact, gradients included. What is handed in and called a mask
is to be one (``boolean-mask``). A mask without dimensions is no such list, it makes
a dimension (``has-dimensions``); where more dimensions are indexed beside the mask (``x[mask, :4]``) it
must have one (``vector-mask``). Nothing may write into the mask in between. One wait is left; none is, where a product with the mask or ``torch.where`` takes the place
of the selection (sums and means: ``nonzero-then-reduce``).

References: "NonZero operator" in the performance tuning guide of Ascend Extension for PyTorch; numpy
and torch documentation of boolean indexing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def elements(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Select with a mask, twice."""
    return torch.cat([x[mask].flatten(), y[mask].flatten()])


def elements_once(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Find the positions once."""
    at = mask.nonzero(as_tuple=True)
    return torch.cat([x[at].flatten(), y[at].flatten()])


def rows(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Select parts of rows with a mask, twice."""
    return torch.cat([x[mask, :2], y[mask, :2]])


def rows_once(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Find the rows once."""
    (at,) = mask.nonzero(as_tuple=True)
    return torch.cat([x[at, :2], y[at, :2]])


def inputs(draw: Draw) -> dict[str, Any]:
    """Return two matrices and a mask of their rows or of all elements."""
    import torch

    shape = (draw.integer(0, 4), 3)
    mask = draw.booleans(*shape[: draw.integer(1, 2)])
    return {
        "x": draw.floats(*shape, dtype=torch.float32),
        "y": draw.floats(*shape, dtype=torch.float32),
        "mask": mask,
    }


def row_inputs(draw: Draw) -> dict[str, Any]:
    """Return two matrices and a mask of their rows."""
    import torch

    shape = (draw.integer(0, 4), 3)
    return {
        "x": draw.floats(*shape, dtype=torch.float32),
        "y": draw.floats(*shape, dtype=torch.float32),
        "mask": draw.booleans(shape[0]),
    }


def _unknown(_site: Site) -> bool | None:
    return None  # the search has looked at the mask


HAS_DIMENSIONS = Condition(
    "has-dimensions", "the mask is no single truth value: it has a dimension", _unknown, "mask-dims"
)
BOOLEAN_MASK = Condition("boolean-mask", "the mask is a tensor of dtype bool", _unknown)
VECTOR_MASK = Condition("vector-mask", "the mask has one dimension", _unknown)

RULE = Substitution(
    id="NPU218",
    name="mask-selects-often",
    summary="one mask selects from several tensors, and its positions are found for each",
    table="affinity",
    forms=(
        Form(elements, elements_once, inputs, (BOOLEAN_MASK, HAS_DIMENSIONS)),
        Form(rows, rows_once, row_inputs, (BOOLEAN_MASK, VECTOR_MASK)),
    ),
    search="selections",
    replaces=(),
    becomes=(),
    passes=(0, 0),
    requires="torch_npu>=2.1",
    valid=(
        # once
        """
def loss(pred: torch.Tensor, target: torch.Tensor):
    valid = target > 0
    return pred[valid].abs()
""",
        # an index
        """
def loss(pred: torch.Tensor, target: torch.Tensor, index: torch.LongTensor):
    return (pred[index] - target[index]).abs()
""",
        # a mask that is written to in between, one whose name says nothing
        """
class Points(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, mask, chosen):
        first = x[mask]
        mask[0] = False
        return torch.cat([first, y[mask]]), x[chosen] + y[chosen]
""",
        # what is compared is written to in between
        """
class Points(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, ids: torch.Tensor, k: int):
        first = x[ids == k]
        ids[0] = k
        return torch.cat([first, y[ids == k]])
""",
        # another mask in between
        """
def loss(pred: torch.Tensor, target: torch.Tensor):
    valid = target > 0
    a = pred[valid].abs()
    valid = target > 1
    return a, pred[valid].abs()
""",
        # runs once
        """
def load(pred: torch.Tensor, target: torch.Tensor):
    valid = target > 0
    return pred[valid], target[valid]
""",
    ),
    rewritten=(
        Rewritten(
            """
def loss(pred: torch.Tensor, target: torch.Tensor, ids: torch.Tensor, k: int):
    other = (pred * ids).sum(1)
    return pred[ids.all(1)], iou_loss(pred[ids == k], target[ids == k])
""",
            """
def loss(pred: torch.Tensor, target: torch.Tensor, ids: torch.Tensor, k: int):
    other = (pred * ids).sum(1)
    positions = (ids == k).nonzero(as_tuple=True)
    return pred[ids.all(1)], iou_loss(pred[positions], target[positions])
""",
        ),
        Rewritten(
            """
class Crops(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, ids: torch.Tensor, k: int):
        keep = ids == k
        keep &= ids > 3
        return self.crop(x[keep], y[keep])
""",
            """
class Crops(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, ids: torch.Tensor, k: int):
        keep = ids == k
        keep &= ids > 3
        keep_at = keep.nonzero(as_tuple=True)
        return self.crop(x[keep_at], y[keep_at])
""",
        ),
        Rewritten(
            """
class Head(nn.Module):
    def loss(self, pred: torch.Tensor, target: torch.Tensor):
        valid = torch.isfinite(target)
        return iou_loss(pred[valid], target[valid])
""",
            """
class Head(nn.Module):
    def loss(self, pred: torch.Tensor, target: torch.Tensor):
        valid = torch.isfinite(target)
        valid_at = valid.nonzero(as_tuple=True)
        return iou_loss(pred[valid_at], target[valid_at])
""",
        ),
        Rewritten(
            """
class Points(nn.Module):
    def forward(self, x, points_mask):
        n, k, _ = x.shape
        v = self.first(x[points_mask])
        y = x.new_zeros(n, k, v.shape[-1])
        y[points_mask] = v
        return y + self.second(y[points_mask]).sum()
""",
            """
class Points(nn.Module):
    def forward(self, x, points_mask):
        n, k, _ = x.shape
        points_mask_at = points_mask.nonzero(as_tuple=True)
        v = self.first(x[points_mask_at])
        y = x.new_zeros(n, k, v.shape[-1])
        y[points_mask_at] = v
        return y + self.second(y[points_mask_at]).sum()
""",
        ),
        Rewritten(
            """
def loss(pred: torch.Tensor, target: torch.Tensor, k: int):
    valid = torch.isfinite(target).all(dim=-1)
    return F.l1_loss(pred[valid, :k], target[valid, :k])
""",
            """
def loss(pred: torch.Tensor, target: torch.Tensor, k: int):
    valid = torch.isfinite(target).all(dim=-1)
    (valid_at,) = valid.nonzero(as_tuple=True)
    return F.l1_loss(pred[valid_at, :k], target[valid_at, :k])
""",
        ),
        # of several masks
        Rewritten(
            """
class Head(nn.Module):
    def loss(self, boxes, scores, masks, targets):
        pos_masks = torch.cat(masks, 0)
        loss_box = self.loss_box(boxes.view(-1, 4)[pos_masks], targets)
        return loss_box, self.loss_cls(scores.view(-1, 9)[pos_masks], targets)
""",
            """
class Head(nn.Module):
    def loss(self, boxes, scores, masks, targets):
        pos_masks = torch.cat(masks, 0)
        pos_masks_at = pos_masks.nonzero(as_tuple=True)
        loss_box = self.loss_box(boxes.view(-1, 4)[pos_masks_at], targets)
        return loss_box, self.loss_cls(scores.view(-1, 9)[pos_masks_at], targets)
""",
        ),
    ),
)
