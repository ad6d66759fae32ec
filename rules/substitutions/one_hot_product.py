"""Rows of a table picked by multiplying with a one-hot encoding.

What: ``F.one_hot(ids, n).float() @ table``, as in vector quantisation: ``F.embedding(ids, table)``.

Why it is slow on the NPU: one_hot writes a tensor ``n`` times as large as the indices, it is cast,
and a matrix product with it reads the whole table for every index. ``embedding`` copies the rows.

Safety: exact, but for a table with NaN or infinity, of which zero times it spoils every row
(condition ``finite-table``). Under autocast the product is half precision, the rows are as they
stand in the table. The encoding has the dtype of the table, as the product demands, and as many
classes as the table has rows, or the product fails. The gradient adds up rows in place of a product.

References: torch.nn.functional.embedding; VQ-VAE; torch.nn.functional.one_hot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor


def product(ids: Tensor, classes: int, table: Tensor, dtype: torch.dtype) -> Tensor:
    """Multiply by an encoding."""
    return torch.matmul(F.one_hot(ids, num_classes=classes).to(dtype), table)


def rows(ids: Tensor, classes: int, table: Tensor, dtype: torch.dtype) -> Tensor:
    """Pick the rows."""
    return F.embedding(ids, table)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return indices, and a table of rows."""
    import torch

    classes, dtype = draw.integer(1, 6), draw.choice([torch.float32, torch.bfloat16])
    shape = draw.choice([(4,), (3, 2), (0,)])
    return {
        "ids": draw.integers(*shape, low=0, high=classes - 1),
        "classes": classes,
        "table": draw.floats(classes, draw.integer(1, 4), dtype=dtype),
        "dtype": dtype,
    }


MATRIX = Condition(
    "matrix-table",
    "the table has two dimensions",
    lambda site: None if (n := site.ndim("table")) is None else n == 2,  # noqa: PLR2004 - a matrix
)
FINITE = Condition("finite-table", "the table holds neither NaN nor infinity", lambda _site: None)

_QUANTISER = """
class Quantiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.book = nn.Embedding(512, 64)

    def forward(self, distances: torch.Tensor):
        ids = distances.argmin(dim=1)
        codes = F.one_hot(ids, 512).to(self.book.weight.dtype)
        return torch.matmul(codes, self.book.weight)
"""

RULE = Substitution(
    id="NPU274",
    name="one-hot-product",
    summary="rows of a table picked by a matrix product with a one-hot encoding",
    table="affinity",
    forms=(Form(product, rows, inputs, (MATRIX, FINITE)),),
    replaces=("OneHot", "MatMulV2", "MatMulV3", "Cast"),
    becomes=("GatherV2",),
    passes=(2, 1),
    requires="torch_npu>=2.1",
    valid=(
        # weights of classes, not rows of a table
        """
def f(ids: torch.Tensor, table: torch.Tensor):
    return table @ F.one_hot(ids, 8).float()
""",
        # the encoding is smoothed
        """
def f(ids: torch.Tensor, table: torch.Tensor):
    return (F.one_hot(ids, 8).float() * 0.9 + 0.01) @ table
""",
        # every row but one
        """
def f(ids: torch.Tensor, table: torch.Tensor):
    return torch.matmul((1 - F.one_hot(ids, num_classes=8)).to(table.dtype), table)
""",
        # how often each class occurs is needed too
        """
def f(ids: torch.Tensor, table: torch.Tensor):
    codes = F.one_hot(ids, 8).float()
    return codes @ table, codes.mean(0)
""",
    ),
    rewritten=(
        Rewritten(
            _QUANTISER,
            _QUANTISER.replace(
                "        codes = F.one_hot(ids, 512).to(self.book.weight.dtype)\n", ""
            ).replace(
                "torch.matmul(codes, self.book.weight)", "F.embedding(ids, self.book.weight)"
            ),
        ),
    ),
)
