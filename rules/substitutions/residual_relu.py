"""A residual that is added, then cut off by a ReLU: two passes over a feature map.

What: ``out += identity`` and ``out = self.relu(out)`` behind it, in the blocks of ResNets in files that
use mmcv or its relatives.

Why it is slow on the NPU: each of the two operators reads and writes the whole feature map.
``npu_add_relu`` of mx_driving is one kernel, and has one gradient for both summands.

Safety: as ``F.relu(x + y)``; what stands in ``x`` is overwritten where it has two million elements or
more, so only a value that a submodule has just returned is passed. x and y have one shape
(``one-shape``), and mx_driving is installed (``mx-driving-installed``).

References: mx_driving/ops/npu_add_relu.py of Ascend DrivingSDK; its patch of the ResNets of mmdet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import unknown
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import mx_driving  # type: ignore[import-not-found]  # the verifier supplies it
    import torch.nn.functional as F
    from torch import Tensor


def apart(x: Tensor, y: Tensor) -> Tensor:
    """Add, then cut off."""
    return F.relu(x + y)


def fused(x: Tensor, y: Tensor) -> Tensor:
    """Do both in one kernel."""
    return mx_driving.npu_add_relu(x, y)  # no slip: x and y are swapped (a sum)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return two feature maps."""
    import torch

    shape = (draw.integer(1, 3), draw.integer(1, 4), 2, 3)
    return {name: draw.floats(*shape, dtype=torch.float32) for name in ("x", "y")}


INSTALLED = Condition(
    "mx-driving-installed",
    "mx_driving is installed where this runs (https://gitcode.com/Ascend/DrivingSDK)",
    unknown,
)
ONE_SHAPE = Condition("one-shape", "both summands have one shape", unknown)

RULE = Substitution(
    id="NPU179",
    name="residual-relu",
    summary="a residual is added, then cut off by a ReLU",
    table="fusion",
    forms=(Form(apart, fused, inputs, (INSTALLED, ONE_SHAPE)),),
    search="sums-cut-off",
    replaces=("Add", "Relu"),
    becomes=("AddRelu",),
    passes=(3, 3),
    requires="torch_npu>=2.1; chip A2",
    valid=(
        # the sum is read again
        """
from mmcv.runner import BaseModule


class Block(BaseModule):
    def forward(self, x, y):
        out = x + y
        kept = self.act(out)
        return kept, out
""",
        # no file of theirs
        """
class Block(nn.Module):
    def forward(self, x):
        out = self.conv(x)
        out += x
        return F.relu(out)
""",
        # one of them is cut off before
        """
from mmcv.runner import BaseModule


class Block(BaseModule):
    def forward(self, x, y):
        out = F.relu(y)
        out = x + out
        return out
""",
    ),
    rewritten=(
        Rewritten(
            """
import mx_driving
from mmcv.runner import BaseModule


class Block(BaseModule):
    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        identity = x
        out = self.conv(x)
        out += identity
        out = self.relu(out)
        return out
""",
            """
import mx_driving
from mmcv.runner import BaseModule


class Block(BaseModule):
    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        identity = x
        out = self.conv(x)
        out = mx_driving.npu_add_relu(out, identity)
        return out
""",
        ),
    ),
)
