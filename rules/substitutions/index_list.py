"""Columns picked by a list of numbers.

What: ``boxes[:, [0, 2]]``, ``x[..., [0, 1, 2]]``: the numbers are written out, and a slice could take
the same columns, or a few slices that are joined (``x[:, [2, 0, 1]]``).

Why it is slow on the NPU: Python's list becomes a tensor on the host and is copied to the device in
every call, for which the host waits; then Index computes the address of each element, and in the
backward pass an accumulating IndexPut adds them back one by one. A slice needs no table and no
copy to the device; ``clone`` makes it a tensor of its own, as an index does.

Safety: the same elements, in memory of their own. Where the tensor has fewer columns than the list
says, indexing is an error, and the slice is shorter. NumPy arrays have no ``clone`` (condition
``is-tensor``).

References: LaneSegNet and BEVFormer in Ascend DrivingSDK; torch.Tensor.clone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def every_second(x: Tensor) -> Tensor:
    """Pick two columns."""
    return x[:, [0, 2]]


def sliced(x: Tensor) -> Tensor:
    """Take every second one of three columns."""
    return x[:, 0:3:2].clone()  # no slip: 3 is 4 (it ends in front of either)


def any_order(x: Tensor) -> Tensor:
    """Pick columns in another order."""
    return x[:, [2, 0, 1]]


def joined(x: Tensor) -> Tensor:
    """Join the columns that follow each other."""
    return torch.cat((x[:, 2:3], x[:, 0:2]), dim=1)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return rows of five columns."""
    import torch

    dtype = draw.choice([torch.float32, torch.bfloat16])
    return {"x": draw.wild(draw.integer(0, 3), 5, dtype=dtype)}


IS_TENSOR = Condition("is-tensor", "the object is a torch tensor", lambda site: site.is_tensor("x"))

RULE = Substitution(
    id="NPU267",
    name="index-list",
    summary="columns picked by a list of numbers that is copied to the device each time",
    table="affinity",
    forms=(
        Form(every_second, sliced, inputs, (IS_TENSOR,)),
        Form(any_order, joined, inputs, (IS_TENSOR,)),
    ),
    search="index-lists",
    replaces=("Index", "IndexPutV2"),
    becomes=("ConcatD", "ReverseV2", "StridedSlice", "TensorMove"),
    passes=(2, 2),
    requires="torch_npu>=2.1",
    valid=(
        # one column, from the end, and here and there
        """
def forward(x: torch.Tensor):
    return x[:, [-3]], x[:, [-1, 0]], x[:, 0:2], x[:, [9, 2, 7, 5, 0]]
""",
        # a target
        """
def forward(x: torch.Tensor):
    x[:, [0, 2]] = 0
    return x
""",
        # a copy is changed, and forgotten
        """
def forward(x: torch.Tensor):
    x[:, [0, 2]].clamp_(0, 1)
    return x
""",
        # a table of pairs
        """
def forward(x: torch.Tensor):
    return x[[0, 1], [1, 2]]
""",
    ),
    rewritten=(
        Rewritten(
            """
def forward(boxes: torch.Tensor):
    return boxes[:, [0, 2]]
""",
            """
def forward(boxes: torch.Tensor):
    return boxes[:, 0:3:2].clone()
""",
        ),
        Rewritten(
            """
def pillars(points: torch.Tensor):
    points_xyz = points[:, [1, 2, 3]].contiguous()
    return points_xyz, points
""",
            """
def pillars(points: torch.Tensor):
    points_xyz = points[:, 1:4].contiguous()
    return points_xyz, points
""",
        ),
        # what has a name is only computed with
        Rewritten(
            """
def rates(x: torch.Tensor, mu):
    x0 = x[:, [0]]
    dx = x0
    return torch.cat([dx, mu * x0 - x0.abs()], dim=-1)
""",
            """
def rates(x: torch.Tensor, mu):
    x0 = x[:, 0:1]
    dx = x0
    return torch.cat([dx, mu * x0 - x0.abs()], dim=-1)
""",
        ),
        Rewritten(
            """
def rates(x: torch.Tensor, mu):
    x0 = x[:, [0]]
    dx = x0
    return torch.cat([x0, mu * x0], dim=-1), dx
""",
            """
def rates(x: torch.Tensor, mu):
    x0 = x[:, 0:1].clone()
    dx = x0
    return torch.cat([x0, mu * x0], dim=-1), dx
""",
        ),
        Rewritten(
            """
def rates(x: torch.Tensor, mu):
    x0 = x[:, [0]]
    x.mul_(mu)
    return torch.cat([x0, x], dim=-1)
""",
            """
def rates(x: torch.Tensor, mu):
    x0 = x[:, 0:1].clone()
    x.mul_(mu)
    return torch.cat([x0, x], dim=-1)
""",
        ),
        # a view of all columns would be written to
        Rewritten(
            """
def moved(points: torch.Tensor):
    points_xyz = points[:, [0, 1, 2]].contiguous()
    points_xyz[:, 0] += 1
    return points_xyz, points
""",
            """
def moved(points: torch.Tensor):
    points_xyz = points[:, 0:3].clone().contiguous()
    points_xyz[:, 0] += 1
    return points_xyz, points
""",
        ),
        Rewritten(
            """
def chosen(boxes: torch.Tensor, angle: torch.Tensor):
    return torch.where(angle > 0, boxes[:, [3, 4]], boxes[:, 0:2])
""",
            """
def chosen(boxes: torch.Tensor, angle: torch.Tensor):
    return torch.where(angle > 0, boxes[:, 3:5], boxes[:, 0:2])
""",
        ),
        Rewritten(
            """
def centre(boxes: torch.Tensor):
    return boxes[..., [0, 1, 2]] * 2
""",
            """
def centre(boxes: torch.Tensor):
    return boxes[..., 0:3] * 2
""",
        ),
        Rewritten(
            """
def to_corners(boxes: torch.Tensor):
    return boxes[..., [1, 0, 3, 2]].exp()
""",
            """
def to_corners(boxes: torch.Tensor):
    return torch.cat(
        (boxes[..., 1:2], boxes[..., 0:1], boxes[..., 3:4], boxes[..., 2:3]), dim=-1
    ).exp()
""",
        ),
        Rewritten(
            """
def turned(coords: torch.Tensor):
    coords = coords[:, [0, 3, 2, 1]]
    return coords
""",
            """
def turned(coords: torch.Tensor):
    coords = torch.cat((coords[:, 0:1], coords[:, 1:4].flip(1)), dim=1)
    return coords
""",
        ),
    ),
)
