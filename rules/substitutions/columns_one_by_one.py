"""All columns of a tensor taken out one by one.

What: ``x, y, z = points[..., 0], points[..., 1], points[..., 2]``, ``q, k, v = qkv[0], qkv[1], qkv[2]``,
``cx = boxes[:, 0:1]`` with ``cy = boxes[:, 1:2]`` and so on behind it.

Why it is slow on the NPU: forward each piece is a view and nothing is launched; but the backward
pass fills a tensor of the size of all columns with zeros for each piece, copies the gradient into
one column of it, and adds these tensors up: three kernels a piece, which read and write everything.
``unbind`` and ``split`` join the gradients in one Stack or Concat.

Safety: the same views, and gradients that are not added to zeros first. A slice of columns that are
not there is empty, and ``split`` has fewer parts then (condition ``enough-columns``). Parts of
``split`` and ``unbind`` may not be written to where they are, so code that does is left alone, as is
code without gradients. NumPy arrays have no ``split`` of this kind (condition ``is-tensor``).

References: torch.unbind, torch.split; ports of UniAD, BEVFormer and VAD in Ascend DrivingSDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import unknown
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def columns(x: Tensor) -> Tensor:
    """Take three columns."""
    a, b, c = x[..., 0], x[..., 1], x[..., 2]
    return a * b + c


def unbound(x: Tensor) -> Tensor:
    """Take them at once."""
    a, b, c = x[..., :3].unbind(-1)
    return a * b + c


def slices(x: Tensor) -> Tensor:
    """Take three slices."""
    a, b, c = x[:, 0:1], x[:, 1:2], x[:, 2:4]
    return a * b + c


def split(x: Tensor) -> Tensor:
    """Take them at once."""
    a, b, c = torch.split(x[:, :4], [1, 1, 2], dim=1)
    return a * b + c


def inputs(draw: Draw) -> dict[str, Any]:
    """Return rows of five columns."""
    import torch

    dtype = draw.choice([torch.float32, torch.bfloat16])
    return {"x": draw.floats(draw.integer(1, 3), 5, dtype=dtype)}


IS_TENSOR = Condition("is-tensor", "the object is a torch tensor", lambda site: site.is_tensor("x"))
ENOUGH = Condition(
    "enough-columns", "the tensor has all of the columns that are taken out of it", unknown
)

RULE = Substitution(
    id="NPU268",
    name="columns-one-by-one",
    summary="all columns of a tensor are taken out one by one",
    table="affinity",
    forms=(
        Form(columns, unbound, inputs, (IS_TENSOR,)),
        Form(slices, split, inputs, (IS_TENSOR, ENOUGH)),
    ),
    search="columns",
    replaces=("Add", "AddN", "Fill", "StridedSliceGrad", "TensorMove", "ViewCopy", "ZerosLike"),
    becomes=("ConcatD", "Pack"),
    passes=(0, 2),
    requires="torch_npu>=2.1",
    valid=(
        # two of many, and one that is not always there
        """
def forward(x: torch.Tensor):
    a = x[..., 0] + x[..., 1]
    if x.size(-1) > 2:
        a = a + x[..., 2]
    return a
""",
        # of a server, where nobody asks for gradients
        """
def forward(x: torch.Tensor, attend):
    q, k, v = x[0], x[1], x[2]
    return attend.prefill_attention(q, k, v)
""",
        # most of them are left
        """
def forward(x: torch.Tensor):
    return x[..., 0] + x[..., 17] + x[..., 40]
""",
        # the tensor is written to in between
        """
def forward(x: torch.Tensor):
    a, b = x[..., 0] + 1, x[..., 1] + 1
    x[..., 2] = a
    return b + x[..., 2] + x[..., 0]
""",
        # they overlap
        """
def forward(x: torch.Tensor):
    return x[..., 0:2].sum() + x[..., 1:2] + x[..., 2:3]
""",
        # a list
        """
def forward(parts):
    a, b, c = parts[0], parts[1], parts[2]
    return a + b + c
""",
        # written to
        """
def forward(x: torch.Tensor):
    a, b, c = x[..., 0], x[..., 1], x[..., 2]
    a += b
    b[0] = 1
    return a + b + c
""",
        # whole numbers
        """
def forward(x: torch.Tensor, size: int):
    y = torch.bitwise_xor(x[..., 0], x[..., 1])
    return torch.bitwise_xor(y, x[..., 2]) % size
""",
        # no gradients
        """
@torch.no_grad()
def forward(x: torch.Tensor):
    a, b, c = x[..., 0], x[..., 1], x[..., 2]
    return a + b + c
""",
    ),
    rewritten=(
        Rewritten(
            """
def forward(boxes: torch.Tensor):
    x1, y1, x2, y2 = boxes[:, 0], boxes[:, 1], boxes[:, 2], boxes[:, 3]
    return (x2 - x1) * (y2 - y1)
""",
            """
def forward(boxes: torch.Tensor):
    x1, y1, x2, y2 = boxes[:, :4].unbind(1)
    return (x2 - x1) * (y2 - y1)
""",
        ),
        Rewritten(
            """
def forward(boxes: torch.Tensor):
    cx = boxes[..., 0:1]
    cy = boxes[..., 1:2]
    size = boxes[..., 2:5].exp()
    return torch.cat((cx - 1, cy, size), dim=-1)
""",
            """
def forward(boxes: torch.Tensor):
    cx, cy, size = boxes[..., :5].split([1, 1, 3], dim=-1)
    size = size.exp()
    return torch.cat((cx - 1, cy, size), dim=-1)
""",
        ),
        Rewritten(
            """
def forward(boxes: torch.Tensor):
    angle = torch.atan2(boxes[..., 6:7], boxes[..., 7:8])
    cx = boxes[..., 0:1]
    w = boxes[..., 2:3].exp()
    cy = boxes[..., 1:2]
    if boxes.size(-1) > 8:
        return torch.cat((cx, cy, w, angle, boxes[..., 8:9]), dim=-1)
    return torch.cat((cx, cy, w, angle), dim=-1)
""",
            """
def forward(boxes: torch.Tensor):
    cx, cy, w, _, boxes_6, boxes_7 = boxes[..., :8].split([1, 1, 1, 3, 1, 1], dim=-1)
    angle = torch.atan2(boxes_6, boxes_7)
    w = w.exp()
    if boxes.size(-1) > 8:
        return torch.cat((cx, cy, w, angle, boxes[..., 8:9]), dim=-1)
    return torch.cat((cx, cy, w, angle), dim=-1)
""",
        ),
        Rewritten(
            """
def forward(boxes: torch.Tensor):
    half = boxes[:, 2] / 2
    return torch.stack((boxes[:, 0] - half, boxes[:, 1] - half), dim=-1)
""",
            """
def forward(boxes: torch.Tensor):
    boxes_0, boxes_1, boxes_2 = boxes[:, :3].unbind(1)
    half = boxes_2 / 2
    return torch.stack((boxes_0 - half, boxes_1 - half), dim=-1)
""",
        ),
    ),
)
