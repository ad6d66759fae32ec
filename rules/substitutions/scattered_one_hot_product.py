"""Rows of a table picked by multiplying with ones that ``scatter_`` writes into zeros.

What: ``codes = torch.zeros(len(ids), n)``, ``codes.scatter_(1, ids, 1)`` and ``codes @ table``, as in
vector quantisation: ``F.embedding(ids, table)``. Where the encoding is needed besides, to count how
often each code occurs, it stays; the product does not.

Why it is slow on the NPU: the encoding is ``n`` times as large as the indices, and a matrix product
with it reads the whole table for every index. ``embedding`` copies the rows.

Safety: exact, but for a table with NaN or infinity, of which zero times it spoils every row
(condition ``finite-table``). Each row of the encoding holds one index (``one-column-index``): the
zeros have as many rows as the indices, and nothing else writes to them. Under autocast the product
is half precision, the rows are as they stand in the table. The gradient adds up rows in place of a
product.

References: torch.nn.functional.embedding; torch.Tensor.scatter_; VQ-VAE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import unknown
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution
from npufix.rules.substitutions.one_hot_product import FINITE, MATRIX

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor


def product(index: Tensor, classes: int, table: Tensor) -> Tensor:
    """Multiply by an encoding."""
    codes = torch.zeros(index.shape[0], classes, dtype=table.dtype).scatter(1, index, 1)
    return torch.matmul(codes, table)


def rows(index: Tensor, classes: int, table: Tensor) -> Tensor:
    """Pick the rows."""
    return F.embedding(index.squeeze(1), table)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a column of indices, and a table of rows."""
    import torch

    classes, dtype = draw.integer(1, 6), draw.choice([torch.float32, torch.bfloat16])
    return {
        "index": draw.integers(draw.integer(0, 4), 1, low=0, high=classes - 1),
        "classes": classes,
        "table": draw.floats(classes, draw.integer(1, 4), dtype=dtype),
    }


ONE_COLUMN = Condition("one-column-index", "the index has one entry per row of a matrix", unknown)

_QUANTISER = """
class Quantiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.book = nn.Embedding(512, 64)

    def forward(self, z: torch.Tensor, distances: torch.Tensor):
        ids = torch.argmin(distances, dim=1).unsqueeze(1)
        codes = torch.zeros(ids.shape[0], 512, device=z.device)
        codes.scatter_(1, ids, 1)
        rows = torch.matmul(codes, self.book.weight).view(z.shape)
        share = codes.mean(0)
        return rows, share
"""
_DECODER = """
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.book = nn.Embedding(512, 64)

    def forward(self, ids: torch.Tensor):
        codes = torch.zeros(ids.shape[0], 512, device=ids.device)
        codes.scatter_(1, ids[:, None], 1)
        return codes.float() @ self.book.weight
"""

RULE = Substitution(
    id="NPU278",
    name="scattered-one-hot-product",
    summary="rows of a table picked by a matrix product with ones scattered into zeros",
    table="affinity",
    forms=(Form(product, rows, inputs, (ONE_COLUMN, MATRIX, FINITE)),),
    search="scattered-products",
    replaces=("Scatter", "ScatterElementsV2", "MatMulV2", "MatMulV3"),
    becomes=("GatherV2",),
    passes=(2, 1),
    requires="torch_npu>=2.1",
    valid=(
        # several ones a row: what they pick is added up
        """
def f(ids: torch.Tensor, more: torch.Tensor, table: torch.Tensor):
    codes = torch.zeros(ids.shape[0], 8)
    codes.scatter_(1, ids.unsqueeze(1), 1)
    codes.scatter_(1, more.unsqueeze(1), 1)
    return codes @ table
""",
        # weights, not ones
        """
def f(ids: torch.Tensor, weights: torch.Tensor, table: torch.Tensor):
    codes = torch.zeros(ids.shape[0], 8)
    codes.scatter_(1, ids.unsqueeze(1), weights)
    return codes @ table
""",
        # rows without a one
        """
def f(x: torch.Tensor, ids: torch.Tensor, table: torch.Tensor):
    codes = torch.zeros(x.shape[0], 8)
    codes.scatter_(1, ids.unsqueeze(1), 1)
    return codes @ table
""",
        # written to before it is multiplied
        """
def f(ids: torch.Tensor, table: torch.Tensor):
    codes = torch.zeros(ids.shape[0], 8)
    codes.scatter_(1, ids.unsqueeze(1), 1)
    codes[0] = 0.5
    return codes @ table
""",
        # other indices by then
        """
def f(ids: torch.Tensor, table: torch.Tensor):
    codes = torch.zeros(ids.shape[0], 8)
    codes.scatter_(1, ids.unsqueeze(1), 1)
    ids = ids.view(2, -1)
    return codes @ table, ids
""",
        # somebody gets it first, who may write to it
        """
def f(ids: torch.Tensor, table: torch.Tensor):
    codes = torch.zeros(ids.shape[0], 8)
    codes.scatter_(1, ids.unsqueeze(1), 1)
    smooth(codes)
    return codes @ table
""",
        # columns, not rows
        """
def f(ids: torch.Tensor, table: torch.Tensor):
    codes = torch.zeros(8, ids.shape[0])
    codes.scatter_(0, ids.unsqueeze(0), 1)
    return codes @ table
""",
        # zeros of another dimension
        """
def f(ids: torch.Tensor, table: torch.Tensor):
    codes = torch.zeros(ids.shape[0], ids.shape[1], 8)
    codes.scatter_(-1, ids.unsqueeze(-1), 1)
    return codes @ table
""",
        # the encoding behind the table
        """
def f(ids: torch.Tensor, table: torch.Tensor):
    codes = torch.zeros(ids.shape[0], 8)
    codes.scatter_(1, ids.unsqueeze(1), 1)
    return table @ codes
""",
        # ones that are there already
        """
def f(ids: torch.Tensor, table: torch.Tensor):
    codes = torch.ones(ids.shape[0], 8)
    codes.scatter_(1, ids.unsqueeze(1), 1)
    return codes @ table
""",
    ),
    rewritten=(
        Rewritten(
            _QUANTISER,
            _QUANTISER.replace(
                "torch.matmul(codes, self.book.weight)",
                "F.embedding(ids.squeeze(1), self.book.weight)",
            ),
        ),
        Rewritten(
            _DECODER,
            _DECODER.replace(
                """        codes = torch.zeros(ids.shape[0], 512, device=ids.device)
        codes.scatter_(1, ids[:, None], 1)
""",
                "",
            ).replace("codes.float() @ self.book.weight", "F.embedding(ids, self.book.weight)"),
        ),
        # the sum of what several pick is something else, where it is not known that one does
        Rewritten(
            """
def f(ids: torch.Tensor, table: torch.Tensor):
    codes = torch.zeros((len(ids), 8), device=ids.device).scatter_(1, ids, 1.0)
    return torch.mm(codes, table)
""",
            """
def f(ids: torch.Tensor, table: torch.Tensor):
    return F.embedding(ids.squeeze(1), table)
""",
        ),
    ),
)
