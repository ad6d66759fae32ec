"""Elements that a mask selects, computed with one by one, and added up.

What: ``((pred[mask] - gt[mask]) ** 2).mean()``, or the same over several statements, where nobody else
needs the selected elements; losses that add up themselves, ``F.l1_loss(pred[mask], gt[mask])``, and
``F.cross_entropy(scores[mask], labels[mask])``, which ignores a label of its own; the same as modules
that the class makes, ``self.l1_loss = nn.L1Loss()``.

Why it is slow on the NPU: how many elements a mask selects decides the shapes, so the host waits for
NonZero, once for each tensor, and all launches behind it are late; each step has new shapes. The same
operators on all elements and a sum of ``where(mask, values, 0)`` have one shape, and nothing waits.

Safety: the sum is over the same values in another grouping. What the mask leaves out is computed as
well: it may be NaN or infinite itself, but its gradient may not (condition ``finite-outside``), for
zero times infinity is NaN: ``log`` of zeros, ``sqrt`` at zero. Of two tensors whose loss is zero where
both are zero, both are filled with zeros first, and nothing else is asked. The mask must have the shape of the tensors
(``same-rank-mask``), and their sum must fit the dtype (``sum-fits-dtype``). Labels are numbers of
classes (``labels-of-classes``), one for each place of the mask (``row-mask``). Few elements of very many are
computed in less time than all of them.

References: other_common_opt_ops.md of the FrameworkPTAdapter guide; vllm-ascend #4063; LaneSegNet in
Ascend DrivingSDK, whose port multiplies by the mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.masks import BOOLEAN_MASK, SAME_RANK_MASK
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor


def added_up(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Select, compute, and add up."""
    return (x[mask] - y[mask]).sigmoid().sum()


def added_up_at_once(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Compute all, and add up with zeros for what is not selected."""
    return torch.where(mask, (x - y).sigmoid(), 0).sum()


def averaged(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Select, compute, and take the mean."""
    return (x[mask] - y[mask]).sigmoid().mean()


def averaged_at_once(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Divide that sum by the number of what is selected."""
    return torch.where(mask, (x - y).sigmoid(), 0).sum() / mask.sum()


def of_selected(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Select rows and their labels, and take the loss."""
    return F.cross_entropy(scores[mask], labels[mask])


def of_labelled(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Label what is not selected as to be ignored."""
    return F.cross_entropy(scores.flatten(0, -2), labels.masked_fill(~mask, -100).flatten())


def labelled_inputs(draw: Draw) -> dict[str, Any]:
    """Return scores of classes, labels, and a mask of their shape, perhaps with nothing in it."""
    import torch

    shape = draw.choice([(4,), (2, 3)])
    scores = draw.floats(*shape, 3, dtype=torch.float32)
    labels = draw.integers(*shape, low=0, high=2)
    return {"scores": scores, "labels": labels, "mask": draw.booleans(*shape)}


def inputs(draw: Draw) -> dict[str, Any]:
    """Return two tensors and a mask of their shape, perhaps with nothing in it."""
    import torch

    shape = draw.choice([(4,), (2, 3), (2, 1, 3)])
    x, y = (draw.floats(*shape, dtype=torch.float32) for _ in range(2))
    return {"x": x, "y": y, "mask": draw.booleans(*shape)}


def _open(name: str, text: str) -> Condition:
    return Condition(name, text, lambda _site: None)


CONDITIONS = (
    BOOLEAN_MASK,
    SAME_RANK_MASK,
    _open("finite-outside", "what the mask leaves out has a finite gradient"),
    _open("sum-fits-dtype", "the sum of the elements fits their dtype"),
)

LABELLED = (
    BOOLEAN_MASK,
    _open("labels-of-classes", "the labels are numbers of classes, not probabilities"),
    _open("row-mask", "the scores have one dimension more than the mask, the last one"),
    _open("finite-outside", "what the mask leaves out has a finite gradient"),
)

_STEPS = """
class DepthLoss(nn.Module):
    def forward(self, pred: torch.Tensor, gt: torch.Tensor):
        mask = gt > 0
        error = torch.abs(pred[mask] - gt[mask])
        return error.mean()
"""
_BOUND_AGAIN = """
def focal_loss(pred: torch.Tensor, gt: torch.Tensor):
    keep = gt != 255
    pred = pred[keep]
    p = pred.sigmoid()
    return 0.5 * ((1 - p) ** 2 * p.log()).sum()
"""

_LABELLED = """
def loss(scores: torch.Tensor, labels: torch.Tensor):
    keep = labels >= 0
    return F.nll_loss(scores[keep], labels[keep])
"""
_LOSS = """
def loss(x: torch.Tensor, y: torch.Tensor):
    m = y > 0
    error = F.l1_loss(x[m], y[m])
    return error
"""
_MADE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.criterion = nn.SmoothL1Loss(beta=0.5)

    def loss(self, x: torch.Tensor, y: torch.Tensor):
        m = y > 0
        return self.criterion(x[m], y[m])
"""

RULE = Substitution(
    id="NPU221",
    name="masked-value",
    summary="elements that a mask selects are computed with, then added up",
    table="affinity",
    forms=(
        Form(added_up, added_up_at_once, inputs, CONDITIONS),
        Form(averaged, averaged_at_once, inputs, CONDITIONS),
        Form(of_selected, of_labelled, labelled_inputs, LABELLED),
    ),
    search="masked-values",
    replaces=("Index", "NonZero"),
    becomes=("SelectV2",),
    passes=(1, 1),
    requires="torch_npu>=2.1",
    valid=(
        # somebody else needs the selected elements
        """
def loss(pred: torch.Tensor, gt: torch.Tensor):
    mask = gt > 0
    error = pred[mask] - gt[mask]
    return (error ** 2).mean(), error
""",
        # along a dimension, and another operator: it needs all elements
        """
def loss(pred: torch.Tensor, gt: torch.Tensor):
    mask = gt > 0
    return (pred[mask] - gt[mask]).sum(0) + pred[mask].softmax(0).relu().sum()
""",
        # labels beside the selected ones, weights of elements, a mean for each row
        """
def loss(scores: torch.Tensor, labels: torch.Tensor, pred: torch.Tensor, w: torch.Tensor):
    keep = labels >= 0
    error = F.l1_loss(pred[keep], w) + F.mse_loss(pred[keep], w[keep], reduction="none")
    return F.cross_entropy(scores[keep], labels) + F.cross_entropy(pred[keep], w[labels]) + error
""",
        # a module that is made in two ways, and one of the class
        """
class Model(nn.Module):
    def __init__(self, robust, loss):
        super().__init__()
        self.criterion = nn.L1Loss() if robust else nn.MSELoss()
        self.loss = loss

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        m = y > 0
        return self.criterion(x[m], y[m]) + self.loss(x[m], y[m])
""",
        # two masks
        """
def loss(pred: torch.Tensor, gt: torch.Tensor):
    mask, other = gt > 0, pred > 0
    return (pred[mask] - gt[other]).sum()
""",
        # NaN outside: so is its gradient
        """
def loss(pred: torch.Tensor, gt: torch.Tensor):
    mask = ~torch.isnan(gt)
    return (pred[mask] - gt[mask]).abs().mean()
""",
        # positions
        """
def loss(pred: torch.Tensor, gt: torch.Tensor, rows: torch.Tensor):
    return (pred[rows.long()] - gt[rows.long()]).abs().mean()
""",
    ),
    rewritten=(
        Rewritten(
            _STEPS,
            _STEPS.replace("pred[mask] - gt[mask]", "pred - gt").replace(
                "error.mean()", "torch.where(mask, error, 0).sum() / mask.sum()"
            ),
        ),
        Rewritten(
            _LABELLED,
            _LABELLED.replace(
                "F.nll_loss(scores[keep], labels[keep])",
                "F.nll_loss(scores.flatten(0, -2), labels.masked_fill(~keep, -100).flatten())",
            ),
        ),
        Rewritten(
            _LOSS,
            _LOSS.replace(
                "F.l1_loss(x[m], y[m])",
                "(\n        F.l1_loss(x.masked_fill(~m, 0), y.masked_fill(~m, 0),"
                ' reduction="sum") / m.sum()\n    )',
            ),
        ),
        Rewritten(
            _MADE,
            _MADE.replace(
                "self.criterion(x[m], y[m])",
                """(
            F.smooth_l1_loss(
                x.masked_fill(~m, 0), y.masked_fill(~m, 0), beta=0.5, reduction="sum"
            )
            / m.sum()
        )""",
            ),
        ),
        Rewritten(
            _BOUND_AGAIN,
            _BOUND_AGAIN.replace("    pred = pred[keep]\n", "").replace(
                "((1 - p) ** 2 * p.log()).sum()",
                "torch.where(keep, (1 - p) ** 2 * p.log(), 0).sum()",
            ),
        ),
    ),
)
