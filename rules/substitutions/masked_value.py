"""Elements that a mask selects, computed with one by one, and added up.

What: ``((pred[mask] - gt[mask]) ** 2).mean()``, or the same over several statements, where nobody else
needs the selected elements.

Why it is slow on the NPU: how many elements a mask selects decides the shapes, so the host waits for
NonZero, once for each tensor, and all launches behind it are late; each step has new shapes. The same
operators on all elements and a sum of ``where(mask, values, 0)`` have one shape, and nothing waits.

Safety: the sum is over the same values in another grouping. What the mask leaves out is computed as
well: it may be NaN or infinite itself, but its gradient may not (condition ``finite-outside``), for
zero times infinity is NaN: ``log`` of zeros, ``sqrt`` at zero. The mask must have the shape of the tensors
(``same-rank-mask``), and their sum must fit the dtype (``sum-fits-dtype``). Few elements of very many are
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

RULE = Substitution(
    id="NPU221",
    name="masked-value",
    summary="elements that a mask selects are computed with, then added up",
    table="affinity",
    forms=(
        Form(added_up, added_up_at_once, inputs, CONDITIONS),
        Form(averaged, averaged_at_once, inputs, CONDITIONS),
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
        # two masks
        """
def loss(pred: torch.Tensor, gt: torch.Tensor):
    mask, other = gt > 0, pred > 0
    return (pred[mask] - gt[other]).sum()
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
            _BOUND_AGAIN,
            _BOUND_AGAIN.replace("    pred = pred[keep]\n", "").replace(
                "((1 - p) ** 2 * p.log()).sum()",
                "torch.where(keep, (1 - p) ** 2 * p.log(), 0).sum()",
            ),
        ),
    ),
)
