"""One reduction behind the other.

What: ``x.sum(3).sum(2)``, ``x.mean(-1).mean(-1)``, ``x.max(-1)[0].max(-1)[0]``, ``x.sum(1).sum()``.

Why it is slow on the NPU: each of them is a kernel that is launched for itself, and writes what the
next one reads; ``max`` with a dimension also finds positions that nobody asks for. One kernel
reduces several dimensions at once.

Safety: sums and means are the same up to rounding; half precision is rounded once in place of twice.
Of equal maxima ``max`` gives the gradient to one, ``amax`` an equal share to each (condition
``no-gradient``).

References: ReduceSum, ReduceMean and ReduceMax take several axes; CenterPoint in Ascend DrivingSDK;
torch.amax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    from torch import Tensor


def sums(x: Tensor) -> Tensor:
    """Sum one dimension, then the next."""
    return x.sum(2).sum(1)


def summed(x: Tensor) -> Tensor:
    """Sum both."""
    return x.sum((1, 2))


def means(x: Tensor) -> Tensor:
    """Average one dimension, then the next."""
    return x.mean(-1).mean(-1)


def averaged(x: Tensor) -> Tensor:
    """Average both."""
    return x.mean((-2, -1))


def extremes(x: Tensor) -> Tensor:
    """Find the largest of one dimension, then of the next."""
    return x.max(-1)[0].max(-1)[0]


def largest(x: Tensor) -> Tensor:
    """Find the largest of both."""
    return x.amax((-2, -1))


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor of three dimensions of different lengths."""
    import torch

    return {"x": draw.floats(2, draw.integer(3, 4), 5, dtype=torch.float32)}


NO_GRADIENT = Condition(
    "no-gradient",
    "no gradient flows back, or the largest values differ",
    lambda site: site.is_without_gradients(),
)

RULE = Substitution(
    id="NPU227",
    name="chained-reductions",
    summary="one reduction behind the other, where one kernel reduces all dimensions",
    table="affinity",
    forms=(
        Form(sums, summed, inputs),
        Form(means, averaged, inputs),
        Form(extremes, largest, inputs, (NO_GRADIENT,)),
    ),
    search="chained-reductions",
    replaces=("ReduceSum", "ReduceMean", "ArgMaxWithValue", "ArgMinWithValue"),
    becomes=("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"),
    passes=(1, 1),
    requires="torch_npu>=2.1",
    valid=(
        # of two kinds, and with dimensions that are no numbers
        """
def f(x: torch.Tensor, dim: int):
    return x.sum(1).mean(1), x.sum(dim).sum(1), x.max(-1)[0].min(-1)[0]
""",
        # from both ends: which one is the last depends on how many there are
        """
def f(x: torch.Tensor):
    return x.sum(1).sum(-1), x.sum(-1).sum(0)
""",
        # the dimension that is left has length one
        """
def f(x: torch.Tensor):
    return x.sum(1, keepdim=True).sum(1), x.mean(1, keepdim=True).mean(1, keepdim=True)
""",
        # the first sum is needed as well
        """
def f(x: torch.Tensor):
    rows = x.sum(2)
    y = rows.sum(1)
    rows = rows.sum(1) + rows.sum()
    return y, rows
""",
        # an array, and positions
        """
def f(x: np.ndarray, y: torch.Tensor):
    return x.sum(1).sum(1), y.max(-1)[0].max(-1)[1]
""",
    ),
    rewritten=(
        Rewritten(
            """
class Loss(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor):
        loss = (x - y).abs().sum(dim=3).sum(dim=2).sum(dim=1)
        return loss
""",
            """
class Loss(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor):
        loss = (x - y).abs().sum((1, 2, 3))
        return loss
""",
        ),
        Rewritten(
            """
class Gate(nn.Module):
    def forward(self, x: torch.Tensor):
        return x * torch.mean(torch.mean(x, 2, keepdim=True), 3, keepdim=True)
""",
            """
class Gate(nn.Module):
    def forward(self, x: torch.Tensor):
        return x * x.mean((2, 3), keepdim=True)
""",
        ),
        Rewritten(
            """
def forward(x: torch.Tensor, y: torch.Tensor):
    return (x - y).mean(1).mean()
""",
            """
def forward(x: torch.Tensor, y: torch.Tensor):
    return (x - y).mean()
""",
        ),
        Rewritten(
            """
class Scores(nn.Module):
    @torch.no_grad()
    def forward(self, x: torch.Tensor):
        return x.max(dim=-1)[0].max(dim=-1).values
""",
            """
class Scores(nn.Module):
    @torch.no_grad()
    def forward(self, x: torch.Tensor):
        return x.amax((-2, -1))
""",
        ),
        Rewritten(
            """
class Loss(nn.Module):
    def forward(self, x: torch.Tensor):
        loss = x.abs().transpose(2, 0)
        loss = torch.sum(loss, dim=2)
        loss = torch.sum(loss, dim=1)
        return loss / 2
""",
            """
class Loss(nn.Module):
    def forward(self, x: torch.Tensor):
        loss = x.abs().transpose(2, 0)
        loss = loss.sum((1, 2))
        return loss / 2
""",
        ),
        Rewritten(
            """
def forward(x: torch.Tensor):
    return x.sum(0).sum(1)
""",
            """
def forward(x: torch.Tensor):
    return x.sum((0, 2))
""",
        ),
    ),
)
