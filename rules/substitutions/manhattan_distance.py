"""Distances of boxes by ``cdist`` with p=1.

What: ``torch.cdist(a, b, p=1)``, as the matching of DETR and its relatives computes the cost of boxes.

Why it is slow on the NPU: its kernel takes one pair of rows after the other, and its backward pass
is one of its own. A difference, its magnitude and a sum are plain vector kernels.

Safety: the same sums. The differences of all pairs are written to memory: as many times the result
as a row has elements (condition ``short-rows``).

References: torch.cdist; ports of DETR and BEVFormer in Ascend DrivingSDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_LONGEST = 32


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Measure all pairs of rows."""
    return torch.cdist(a, b, p=1)


def written_out(a: Tensor, b: Tensor) -> Tensor:
    """Add up the differences."""
    return (
        a.unsqueeze(-2) - b.unsqueeze(-3)  # no slip: a.unsqueeze(-2) - b.unsqueeze(-3) is swapped
    ).abs().sum(-1)  # fmt: skip


def inputs(draw: Draw) -> dict[str, Any]:
    """Return two sets of rows, in a batch or not."""
    import torch

    batch = draw.choice([(), (2,)])
    length = draw.integer(1, 4)
    return {
        name: draw.floats(*batch, draw.integer(1, 4), length, dtype=torch.float32) for name in "ab"
    }


def _is_box(site: Site) -> bool | None:
    length = site.size("a", -1) or site.size("b", -1)
    if length is not None:
        return length <= _LONGEST
    called = " ".join((*site.called("a"), *site.called("b")))
    return True if any(w in called for w in ("box", "point", "pts", "poly", "line")) else None


SHORT = Condition("short-rows", "the rows are boxes or points: 32 numbers at most", _is_box)

RULE = Substitution(
    id="NPU269",
    name="manhattan-distance",
    summary="distances of boxes by cdist with p=1",
    table="affinity",
    forms=(Form(distance, written_out, inputs, (SHORT,)),),
    replaces=("Cdist", "CdistGrad"),
    becomes=("Abs", "ReduceSum", "Sub"),
    passes=(3, 4),
    requires="torch_npu>=2.1",
    floats_only=True,
    valid=(
        # other lengths
        """
def forward(a, boxes):
    return torch.cdist(a, boxes), torch.cdist(a, boxes, p=2)
""",
        # long rows: their differences take more memory than the distances
        """
def forward(queries, keys):
    return torch.cdist(queries.view(-1, 512), keys.view(-1, 512), p=1)
""",
        # a function of one's own
        """
def forward(a, boxes, cdist):
    return cdist(a, boxes, p=1)
""",
    ),
    rewritten=(
        Rewritten(
            """
def forward(out_bbox, tgt_bbox):
    return 5 * torch.cdist(out_bbox, tgt_bbox, p=1)
""",
            """
def forward(out_bbox, tgt_bbox):
    return 5 * (out_bbox.unsqueeze(-2) - tgt_bbox.unsqueeze(-3)).abs().sum(-1)
""",
        ),
    ),
)
