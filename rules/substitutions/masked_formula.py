"""A formula for the elements that a mask selects, written back through the mask.

What: ``y[mask] = torch.exp(x[mask]) * 2`` and ``y[mask] += x[mask] * w[mask]``, where each element is
computed of those at the same place, and the same for rows, ``x[far] = x[far] / n[far][..., None]``;
rows that are read, get numbers in some columns, ``rows[..., -2] = 1``, and are written back.

Why it is slow on the NPU: each ``[mask]`` looks for the positions first: NonZero runs, the host waits
for how many there are, Index packs the elements and IndexPut writes them back one by one, for some
dtypes on the AI CPU; shapes change from step to step. ``where`` computes all elements in one shape and
chooses, without a wait.

Safety: what the mask leaves out is computed as well and thrown away; it keeps its old value, also
where that is NaN. Its gradient must be finite (condition ``finite-outside``; proven for sums, and
products with numbers), for zero times infinity is NaN; what divides, or has a logarithm or a root, is
one there (``torch.where(mask, n, 1)``). Mask and tensors must have one shape (``same-rank-mask``); that of rows gets new dimensions (``row-mask``). The result is copied into the same tensor, unless
the function has just made it and nobody else holds it. Quotients of integers, which fail at zero,
are left alone. Few elements of very many are computed in less time than all of them.

References: other_common_opt_ops.md of the FrameworkPTAdapter guide; "IndexPut operator" in the
performance tuning guide of Ascend Extension for PyTorch; torch.where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.masks import (
    BOOLEAN_MASK,
    SAME_DEVICE,
    SAME_RANK_MASK,
    WRITTEN_TENSOR,
)
from npufix.rules.shared.operands.norms import unknown
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    from torch import Tensor


def computed(x: Tensor, y: Tensor, mask: Tensor) -> None:
    """Select, compute, and write back."""
    x[mask] = y[mask].sigmoid() - 2


def computed_at_once(x: Tensor, y: Tensor, mask: Tensor) -> None:
    """Compute all, and choose."""
    import torch

    x.copy_(torch.where(mask, y.sigmoid() - 2, x))


def changed(x: Tensor, y: Tensor, mask: Tensor) -> None:
    """Select, compute, and add."""
    x[mask] += y[mask].sigmoid()


def changed_at_once(x: Tensor, y: Tensor, mask: Tensor) -> None:
    """Add for all, and choose."""
    import torch

    x.copy_(torch.where(mask, x + y.sigmoid(), x))


def computed_rows(x: Tensor, y: Tensor, mask: Tensor) -> None:
    """Select rows, compute, and write back."""
    x[mask] = y[mask].sigmoid() * 2


def computed_rows_at_once(x: Tensor, y: Tensor, mask: Tensor) -> None:
    """Compute all, and choose."""
    import torch

    x.copy_(torch.where(mask[..., None], y.sigmoid() * 2, x))


def changed_rows(x: Tensor, y: Tensor, mask: Tensor) -> None:
    """Select rows, compute, and add."""
    x[mask] += y[mask].sigmoid()


def changed_rows_at_once(x: Tensor, y: Tensor, mask: Tensor) -> None:
    """Add for all, and choose."""
    import torch

    x.copy_(torch.where(mask[..., None], x + y.sigmoid(), x))


def column_written(x: Tensor, mask: Tensor) -> None:
    """Select rows, write a number into a column of theirs, and write them back."""
    rows = x[mask]
    rows[..., -1] = 1
    x[mask] = rows


def column_filled(x: Tensor, mask: Tensor) -> None:
    """Write it where it belongs."""
    x[..., -1].masked_fill_(mask, 1)


def column_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor of anything, and a mask of its rows."""
    import torch

    shape = draw.choice([(2, 3), (4, 1), (2, 2, 2), (0, 3)])
    dtype = draw.choice([torch.float32, torch.bfloat16])
    x = draw.choice([draw.wild(*shape, dtype=dtype), draw.integers(*shape, low=-3, high=3)])
    return {"x": x, "mask": draw.booleans(*shape[:-1])}


def rows_inputs(draw: Draw) -> dict[str, Any]:
    """Return two tensors and a mask of their rows, perhaps with nothing in it."""
    import torch

    shape = draw.choice([(2, 3), (2, 1, 3), (2, 2, 2), (0, 3)])
    dtype = draw.choice([torch.float32, torch.bfloat16])
    x, y = draw.wild(*shape, dtype=dtype), draw.floats(*shape, dtype=dtype)
    return {"x": x, "y": y, "mask": draw.booleans(*shape[:-1])}


def inputs(draw: Draw) -> dict[str, Any]:
    """Return two tensors and a mask of their shape, perhaps with nothing in it."""
    import torch

    shape = draw.choice([(5,), (2, 3), (2, 1, 3), (0, 3)])
    dtype = draw.choice([torch.float32, torch.bfloat16])
    x, y = draw.wild(*shape, dtype=dtype), draw.floats(*shape, dtype=dtype)
    return {"x": x, "y": y, "mask": draw.booleans(*shape)}


FINITE_OUTSIDE = Condition(
    "finite-outside", "what the mask leaves out has a finite gradient", unknown
)
CONDITIONS = (BOOLEAN_MASK, WRITTEN_TENSOR, SAME_RANK_MASK, FINITE_OUTSIDE)
ROW_MASK = Condition(
    "row-mask", "the mask has one dimension less than the tensor it is used on", unknown
)
OF_ROWS = (BOOLEAN_MASK, WRITTEN_TENSOR, ROW_MASK, FINITE_OUTSIDE)
FITS = Condition(
    "value-fits-dtype", "the value is a number that the dtype of the tensor can hold", unknown
)
OF_COLUMNS = (BOOLEAN_MASK, WRITTEN_TENSOR, ROW_MASK, SAME_DEVICE, FITS)

_LOSS = """
def smooth_loss(x: torch.Tensor, beta: float):
    d = x.abs()
    loss = torch.zeros_like(d)
    small = d < beta
    loss[small] = 0.5 * d[small] ** 2 / beta
    return loss
"""
_CONTRACTED = """
class Contraction(nn.Module):
    def forward(self, x: torch.Tensor):
        n = torch.linalg.norm(x, dim=-1)
        far = n >= 1
        y = x.clone()
        y[far] = (2 - 1 / n[far][..., None]) * x[far]
        return y
"""
_SEEN = """
class Filter(nn.Module):
    def forward(self, x: torch.Tensor, out: torch.Tensor):
        positive = x > 0
        out[positive] = torch.exp(x[positive]) * 2
        return out
"""
_STEPS = """
def training_step(x: torch.Tensor, y: torch.Tensor):
    mask = y > 0
    picked = y[mask]
    x[mask] += picked * 2 + 1
    return x
"""
_CIRCLE = """
class Circle(nn.Module):
    def __init__(self, margin=0.4):
        super().__init__()
        self.optimum = 1 + margin

    def forward(self, x: torch.Tensor, negative):
        negative = negative.bool()
        far = x[negative]
        new = torch.zeros_like(x)
        new[:, 0] = 1
        new[negative] = far + self.optimum
        return new
"""
_ADDED = """
class Memory(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.register_buffer("sums", torch.zeros(n))

    def forward(self, one_hot: torch.Tensor):
        new = one_hot.sum(0)
        seen = new > 0
        self.sums[seen] += new[seen]
        return self.sums
"""
_ROWS = """
class Sampler(nn.Module):
    def forward(self, logits: torch.Tensor, done: torch.BoolTensor):
        rows = logits[done]
        rows[:, 2:] = 0
        rows[..., -2] = 1
        logits[done] = rows
        return logits
"""

RULE = Substitution(
    id="NPU223",
    name="masked-formula",
    summary="a formula for what a mask selects is written back through the mask",
    table="affinity",
    forms=(
        Form(computed, computed_at_once, inputs, CONDITIONS),
        Form(changed, changed_at_once, inputs, CONDITIONS),
        Form(computed_rows, computed_rows_at_once, rows_inputs, OF_ROWS),
        Form(changed_rows, changed_rows_at_once, rows_inputs, OF_ROWS),
        Form(column_written, column_filled, column_inputs, OF_COLUMNS),
    ),
    search="masked-formulas",
    replaces=("Index", "IndexPut", "IndexPutV2", "NonZero"),
    becomes=("SelectV2", "TensorMove"),
    passes=(4, 4),
    requires="torch_npu>=2.1",
    valid=(
        # another mask, another operator, rows
        """
def f(x: torch.Tensor, y: torch.Tensor):
    m, n = y > 0, x > 0
    x[m] = y[n] * 2
    x[m] = y[m].softmax(0)
    x[m] = y[m] * x[0]
""",
        # the selected elements are needed besides
        """
def f(x: torch.Tensor, y: torch.Tensor):
    m = y > 0
    picked = y[m]
    x[m] = picked * 2
    return x, picked
""",
        # they have changed since
        """
def f(x: torch.Tensor, y: torch.Tensor):
    m = y > 0
    picked = y[m]
    y.add_(1)
    x[m] = picked * 2
    return x
""",
        # what is written in between may be the same tensor
        """
def f(x: torch.Tensor, y: torch.Tensor, n: torch.Tensor):
    m = y > 0
    z = y.view(-1)
    picked = y[m]
    z[n] = 1
    x[m] = picked * 2
    return x
""",
        # a gradient that is none outside
        """
def f(x: torch.Tensor, y: torch.Tensor):
    m = torch.isfinite(y)
    x[m] = y[m] * 2
""",
        # of integers, which cannot be divided by zero
        """
def f(x: torch.Tensor, y: torch.Tensor):
    m = y != 0
    x[m] = 12 // y[m]
""",
        # a vector beside the rows, which may be one for each of them; a sum over the selected
        """
def f(x: torch.Tensor, w: torch.Tensor):
    far = x.norm(dim=-1) > 1
    x[far] = x[far] + w
    x[far] = x[far] / x[far].sum(-1, keepdim=True)
""",
        # rows that are needed besides, get what is computed, change in between, or go elsewhere
        """
class Sampler(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, done: torch.BoolTensor, other):
        a = x[done]
        a[..., 1] = 1
        x[done] = a
        b = x[done]
        b[..., 1] = y
        x[done] = b
        c = x[done]
        x = y.clone()
        c[..., 1] = 1
        x[done] = c
        d = x[done]
        d[..., 1] = 1
        y[done] = d
        e = x[done]
        e[1] = 1
        x[done] = e
        f = x[done]
        f[..., 1] = 1
        done = ~done
        x[done] = f
        return x, a
""",
        # NumPy, and positions
        """
def f(x: np.ndarray, y: torch.Tensor, i: torch.Tensor):
    x[x > 0] = np.exp(x[x > 0])
    y[i.long()] = y[i.long()] * 2
""",
    ),
    rewritten=(
        Rewritten(  # where nothing is counted it is divided by one, for the gradient
            "def f(x: torch.Tensor, n: torch.Tensor):\n    m = n > 0\n    x[m] /= n[m]\n    return x\n",
            "def f(x: torch.Tensor, n: torch.Tensor):\n    m = n > 0\n"
            "    x.copy_(torch.where(m, x.clone() / torch.where(m, n, 1), x))\n    return x\n",
        ),
        Rewritten(
            _ADDED,
            _ADDED.replace(
                "self.sums[seen] += new[seen]",
                "self.sums.copy_(torch.where(seen, self.sums + new, self.sums))",
            ),
        ),
        Rewritten(
            _ROWS,
            _ROWS.replace("        rows = logits[done]\n", "")
            .replace("        logits[done] = rows\n", "")
            .replace("rows[:, 2:] = 0", "logits[..., 2:].masked_fill_(done[..., None], 0)")
            .replace("rows[..., -2] = 1", "logits[..., -2].masked_fill_(done, 1)"),
        ),
        Rewritten(
            _CONTRACTED,
            _CONTRACTED.replace(
                "y[far] = (2 - 1 / n[far][..., None]) * x[far]",
                "y.copy_(\n            torch.where(\n                far[..., None], (2 - 1 / torch.where(far, n, 1)[..., None]) * x, y\n            )\n        )",
            ),
        ),
        Rewritten(
            _LOSS,
            _LOSS.replace(
                "loss[small] = 0.5 * d[small] ** 2 / beta",
                "loss = torch.where(small, 0.5 * d ** 2 / beta, loss)",
            ),
        ),
        Rewritten(
            _CIRCLE,
            _CIRCLE.replace("x[negative]", "x").replace(
                "new[negative] = far + self.optimum",
                "new = torch.where(negative, far + self.optimum, new)",
            ),
        ),
        Rewritten(
            _SEEN,
            _SEEN.replace(
                "out[positive] = torch.exp(x[positive]) * 2",
                "out.copy_(torch.where(positive, torch.exp(x) * 2, out))",
            ),
        ),
        Rewritten(
            _STEPS,
            _STEPS.replace("y[mask]\n", "y\n").replace(
                "x[mask] += picked * 2 + 1",
                "x.copy_(torch.where(mask, x + (picked * 2 + 1), x))",
            ),
        ),
    ),
)
