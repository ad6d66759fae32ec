"""A product of matrices with vectors written as a broadcast product and a sum.

What: ``(w.unsqueeze(-1) * x).sum(1)``, rows that are weighed and added up, as pooling by attention or
by a mask does, and ``(x * v.unsqueeze(-2)).sum(-1)``, each row times one vector: ``torch.bmm`` or
``torch.matmul`` with a matrix of one row or one column; ``(x * v).sum(-1)`` with one vector for all:
``torch.matmul(x, v)``.

Why it is slow on the NPU: the product, as large as ``x``, is written to memory, read again for the sum,
and kept for the backward pass, whose product is as large again. The Cube unit reads ``x`` once.

Safety: the same sum in another order; in half precision the Cube unit adds up in float32, where the
products were rounded first. ``matmul`` takes operands of one dtype alone (condition ``same-dtype``)
and lets no row of one entry stand for many (``matrices-that-fit``). With up to 16 rows and columns the
product and the sum are the faster ones, and rule batched-vector-product writes them: known small
matrices, and those that turn or move points, are left alone (``large-matrices``).

References: torch.bmm; torch.matmul; case "affinity operator optimisation" (BatchMatMulV2) of the
MindStudio guide, which is about the other way round.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import (
    Condition,
    Draw,
    Form,
    Rewritten,
    Site,
    Substitution,
    either,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_SMALL = 16
"""What a block of the Cube unit has in rows and columns."""
_OF_SPACE = re.compile(
    r"(?i)(^|_)(mats?|rots?|inv|poses?|tf|cam|homo|axis|axes|normals?|dirs?|directions?|xyz|rgb|quats?"
    r"|points?|boxe?s?|offsets?)(_|$)|matri(x|ces)|rotation|transf|lidar|trinsic|coord|corner"
)
"""What holds points, or turns or moves them, is called so: three or four numbers each."""


def weighed_rows(w: Tensor, x: Tensor) -> Tensor:
    """Weigh the rows of a batch of matrices, and add them up."""
    return either(
        (w.unsqueeze(either(2, -1)) * x).sum(1),
        (x * w.unsqueeze(2)).sum(-2),
    )


def product_of_rows(w: Tensor, x: Tensor) -> Tensor:
    """Multiply matrices of one row."""
    return torch.bmm(w.unsqueeze(1), x).squeeze(1)


def weighed_rows_of_any(w: Tensor, x: Tensor) -> Tensor:
    """Weigh the rows of matrices of any number of dimensions, and add them up."""
    return (w.unsqueeze(-1) * x).sum(-2)


def weighed_rows_of_lists(w: Tensor, x: Tensor) -> Tensor:
    """Weigh the rows of lists of matrices, and add them up: the neighbours of each node."""
    return either(
        (w.unsqueeze(either(3, -1)) * x).sum(2),
        (x * w.unsqueeze(3)).sum(-2),
    )


def product_of_any_rows(w: Tensor, x: Tensor) -> Tensor:
    """Multiply matrices of one row."""
    return torch.matmul(w.unsqueeze(-2), x).squeeze(-2)


def weighed_viewed_rows(w: Tensor, x: Tensor, batch: int, rows: int) -> Tensor:
    """Weigh the rows by weights that are laid out as a column."""
    return (x * either(w.view(batch, rows, 1), w.reshape(batch, rows, 1))).sum(1)


def product_of_viewed_rows(w: Tensor, x: Tensor, batch: int, rows: int) -> Tensor:
    """Lay the weights out as one row."""
    return torch.bmm(w.reshape(batch, 1, rows), x).squeeze(1)


def rows_by_vector(w: Tensor, x: Tensor) -> Tensor:
    """Multiply each row by a vector, and add up."""
    return (x * w.unsqueeze(1)).sum(either(2, -1))


def product_of_column(w: Tensor, x: Tensor) -> Tensor:
    """Multiply by matrices of one column."""
    return torch.bmm(x, w.unsqueeze(2)).squeeze(2)


def rows_by_vector_of_any(w: Tensor, x: Tensor) -> Tensor:
    """Multiply each row of matrices of any number of dimensions by a vector, and add up."""
    return (x * w.unsqueeze(-2)).sum(-1)


def product_of_any_column(w: Tensor, x: Tensor) -> Tensor:
    """Multiply by matrices of one column."""
    return torch.matmul(x, w.unsqueeze(-1)).squeeze(-1)


def rows_by_one(w: Tensor, x: Tensor) -> Tensor:
    """Multiply each row by the same vector, and add up."""
    return (x * w).sum(-1)


def product_with_one(w: Tensor, x: Tensor) -> Tensor:
    """Multiply by the vector."""
    return torch.matmul(x, w)


def _drawn(draw: Draw, *shape: int) -> Tensor:
    import torch

    return draw.floats(*shape, dtype=draw.choice([torch.float32, torch.float64])).abs()


def row_inputs(draw: Draw) -> dict[str, Any]:
    """Return a weight for each row of a batch of matrices."""
    batch, rows, columns = (draw.integer(2, 4) for _ in range(3))
    x = _drawn(draw, batch, rows, columns)
    return {"w": draw.floats(batch, rows, dtype=x.dtype).abs(), "x": x}


def viewed_inputs(draw: Draw) -> dict[str, Any]:
    """Return the same with the numbers of matrices and of rows."""
    given = row_inputs(draw)
    batch, rows = given["w"].shape
    flat = draw.choice([False, True])
    return {
        "w": given["w"].flatten() if flat else given["w"],
        "x": given["x"], "batch": batch, "rows": rows,
    }  # fmt: skip


def any_row_inputs(draw: Draw) -> dict[str, Any]:
    """Return the same with one dimension more."""
    given = row_inputs(draw)
    more = draw.integer(1, 3)
    return {name: value.expand(more, *value.shape).clone() for name, value in given.items()}


def column_inputs(draw: Draw) -> dict[str, Any]:
    """Return a vector for each of a batch of matrices."""
    given = row_inputs(draw)
    return {"w": given["w"], "x": given["x"].transpose(1, 2).contiguous()}


def any_column_inputs(draw: Draw) -> dict[str, Any]:
    """Return the same with one dimension more."""
    given = any_row_inputs(draw)
    return {"w": given["w"], "x": given["x"].transpose(-2, -1).contiguous()}


def one_inputs(draw: Draw) -> dict[str, Any]:
    """Return matrices, and one vector for all their rows."""
    given = column_inputs(draw)
    return {"w": given["w"][0], "x": given["x"]}


def _is_one_more(site: Site) -> bool | None:
    return None if (more := site.more_dims("x", "w")) is None else more == 1


def _are_in_batches(site: Site, *wanted: int) -> bool | None:
    ranks = site.ndim("w"), site.ndim("x")
    if any(rank not in {None, want} for rank, want in zip(ranks, wanted, strict=True)):
        return False
    return True if ranks == wanted else _is_one_more(site) and None


def _is_large(site: Site) -> bool | None:
    sizes = [size for dim in (-2, -1) if (size := site.size("x", dim)) is not None]
    if any(size <= _SMALL for size in sizes) or (site.size("w", -1) or _SMALL + 1) <= _SMALL:
        return False
    if any(_OF_SPACE.search(word) for name in ("w", "x") for word in site.called(name)):
        return False
    return True if len(sizes) > 1 else None


IN_BATCHES = Condition(
    "batches-of-rows",
    "the weights have two dimensions, what they weigh has three",
    lambda site: _are_in_batches(site, 2, 3),
)
IN_LISTS = Condition(
    "lists-of-rows",
    "the weights have three dimensions, what they weigh has four",
    lambda site: _are_in_batches(site, 3, 4),
)


def _are_matrices(site: Site) -> bool | None:
    """Tell whether weights are those of rows: ``w.view(-1, 1, 1)`` has one for a whole matrix.

    ``w.view(1, n, 1)`` has those of all matrices, which ``bmm`` does not broadcast.
    """
    rank = site.ndim("x")
    if rank not in {None, 3} or site.number("rows") in {1, -1} or site.number("batch") == 1:
        return False
    return None if rank is None else True


MATRICES = Condition("batches-of-matrices", "what is weighed has three dimensions", _are_matrices)
ONE_MORE = Condition(
    "one-more-dimension",
    "what is weighed has one dimension more than the weights",
    _is_one_more,
)
VECTOR = Condition(
    "vector-for-all",
    "the weights are one vector, what they weigh has rows",
    lambda site: site.ndim("w") == 1 and (site.ndim("x") or 0) > 1,
)
FIT = Condition(
    "matrices-that-fit",
    "there are as many weights as rows or columns that they weigh: nothing is broadcast",
    lambda site: False if 1 in {site.size("x", -2), site.size("x", -1)} else None,
)
SAME_DTYPE = Condition(
    "same-dtype",
    "weights and what they weigh are floating point tensors of one dtype",
    lambda site: False if site.is_bool_tensor("w") else site.same_dtype("w", "x"),
)
LARGE = Condition(
    "large-matrices",
    "the matrices have more than 16 rows and columns: the product and the sum of small ones are faster",
    _is_large,
    time_alone=True,
)
_ALWAYS = (FIT, SAME_DTYPE, LARGE)

RULE = Substitution(
    id="NPU264",
    name="weighed-sum",
    summary="a product with vectors written as a broadcast product and a sum",
    table="affinity",
    forms=(
        Form(weighed_rows, product_of_rows, row_inputs, (IN_BATCHES, *_ALWAYS)),
        Form(weighed_viewed_rows, product_of_viewed_rows, viewed_inputs, (MATRICES, *_ALWAYS)),
        Form(weighed_rows_of_any, product_of_any_rows, any_row_inputs, (ONE_MORE, *_ALWAYS)),
        Form(weighed_rows_of_lists, product_of_any_rows, any_row_inputs, (IN_LISTS, *_ALWAYS)),
        Form(rows_by_vector, product_of_column, column_inputs, (IN_BATCHES, *_ALWAYS)),
        Form(rows_by_vector_of_any, product_of_any_column, any_column_inputs, (ONE_MORE, *_ALWAYS)),
        Form(rows_by_one, product_with_one, one_inputs, (VECTOR, *_ALWAYS)),
    ),
    replaces=("Mul", "ReduceSum", "BroadcastTo"),
    becomes=("BatchMatMulV2", "BatchMatMulV3", "MatMulV2", "MatMulV3"),
    passes=(0.5, 1),
    requires="torch_npu>=2.1",
    floats_only=True,
    valid=(
        # one weight for each layer, not for each row
        """
def f(hidden: torch.Tensor, weights: torch.Tensor):
    return (hidden * weights.view(-1, 1, 1)).sum(dim=1)
""",
        # the same weights for all matrices
        """
def f(hidden: torch.Tensor, weights: torch.Tensor, n: int):
    return (hidden * weights.view(1, n, 1)).sum(dim=1)
""",
        # points, of which each has three numbers
        """
def f(weights: torch.Tensor, points: torch.Tensor):
    return (weights.unsqueeze(-1) * points).sum(1)
""",
        # a mask of booleans
        """
def f(scores: torch.Tensor, x: torch.Tensor):
    return ((scores > 0).unsqueeze(-1) * x).sum(1)
""",
        # the sum is over columns
        """
def f(w: torch.Tensor, x: torch.Tensor):
    w, x = w.view(8, 32), x.view(8, 32, 64)
    return (w.unsqueeze(-1) * x).sum(-1)
""",
        # matrices of more dimensions than the vectors stand for
        """
def f(w: torch.Tensor, x: torch.Tensor):
    w, x = w.view(8, 32), x.view(8, 4, 32, 64)
    return (w.unsqueeze(-1) * x).sum(-2)
""",
        # the sum of lists of matrices is over the lists
        """
def f(w: torch.Tensor, x: torch.Tensor):
    w, x = w.view(8, 24, 32), x.view(8, 24, 32, 64)
    return (w.unsqueeze(-1) * x).sum(1)
""",
        # one weight for each matrix
        """
def f(w: torch.Tensor, x: torch.Tensor):
    w, x = w.view(24, 32), x.view(8, 24, 32, 64)
    return (w.unsqueeze(-1) * x).sum(3)
""",
        # the product is needed besides
        """
def f(w: torch.Tensor, x: torch.Tensor):
    each = w.unsqueeze(-1) * x
    return each.sum(1), each
""",
        # each row with each row (rule outer-product-sum)
        """
def f(q: torch.Tensor, k: torch.Tensor):
    return (q[:, :, None] * k[:, None]).sum(-1)
""",
        # small matrices
        """
def f(w: torch.Tensor, x: torch.Tensor):
    w, x = w.view(-1, 3), x.view(-1, 3, 3)
    return (x * w.unsqueeze(1)).sum(-1)
""",
    ),
    rewritten=(
        Rewritten(
            """
class Pool(nn.Module):
    def forward(self, x: torch.Tensor):
        batch, length, width = x.shape
        weights = torch.softmax(self.score(x).view(batch, length), dim=1)
        return torch.sum(weights.unsqueeze(-1) * x, dim=1)
""",
            """
class Pool(nn.Module):
    def forward(self, x: torch.Tensor):
        batch, length, width = x.shape
        weights = torch.softmax(self.score(x).view(batch, length), dim=1)
        return torch.bmm(weights.unsqueeze(1), x).squeeze(1)
""",
        ),
        Rewritten(
            """
class Neighbours(nn.Module):
    def forward(self, weights: torch.Tensor, x: torch.Tensor):
        batch, nodes, number, width = x.shape
        weights = weights.view(batch, nodes, number)
        return (weights.unsqueeze(-1) * x).sum(2)
""",
            """
class Neighbours(nn.Module):
    def forward(self, weights: torch.Tensor, x: torch.Tensor):
        batch, nodes, number, width = x.shape
        weights = weights.view(batch, nodes, number)
        return torch.matmul(weights.unsqueeze(-2), x).squeeze(-2)
""",
        ),
        Rewritten(
            """
class Decode(nn.Module):
    def forward(self, heat: torch.Tensor, bins: torch.Tensor):
        batch, number, joints, width = heat.shape
        bins = bins.view(batch, number, width)
        return (heat * bins.unsqueeze(-2)).sum(dim=-1)
""",
            """
class Decode(nn.Module):
    def forward(self, heat: torch.Tensor, bins: torch.Tensor):
        batch, number, joints, width = heat.shape
        bins = bins.view(batch, number, width)
        return torch.matmul(heat, bins.unsqueeze(-1)).squeeze(dim=-1)
""",
        ),
        Rewritten(
            """
class Score(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor):
        batch, length, width = x.shape
        return (x * self.weight).sum(-1)
""",
            """
class Score(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor):
        batch, length, width = x.shape
        return torch.matmul(x, self.weight)
""",
        ),
    ),
)
