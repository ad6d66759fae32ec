"""A batched matrix product in which one of the matrices is a vector.

What: ``torch.bmm`` or ``torch.matmul`` of batches where the left matrix has one row or the right one
has one column, down to the dot product of two vectors, whose result is ``[b, 1, 1]``; written as an
einsum: ``"bd,bd->b"``, ``"nbd,bd->nb"``.

Why it is slow on the NPU: BatchMatMul cuts its matrices into blocks of 16 x 16 for the Cube unit. A
result of one row or column fills one sixteenth of each block, one of 1 x 1 a 256th, and the backward
pass is a batch of outer products that runs on the same operator. A product and a sum on the Vector
units are faster where the matrices are small or both operands are vectors. A column that all batches
share is one ordinary matrix product.

Safety: the same sum in another order. In half precision the products are rounded before they are
added, which the Cube unit does not do, so float32 is a condition (``single-precision``) except for
the shared column, which stays a matrix product. What has length one must be proven, from
the source or from the recorded shapes; nothing is guessed. (What ``bmm`` takes has three dimensions,
so ``v.unsqueeze(2)`` in it is a column.)

References: case "affinity operator optimisation" (BatchMatMulV2) of the MindStudio guide (the
sample there is TensorFlow); torch.bmm; torch.sum.
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
    all_hold,
    either,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_BATCH = 3
_SMALL = 16
"""What a block of the Cube unit has in rows and columns."""
_DOT_PRODUCT = re.compile(r"(\w*?)(\w+)(\w),\2\3->\1\2")


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Multiply rows by columns, both made from vectors."""
    return either(
        torch.bmm(a.unsqueeze(either(1, -2)), b.unsqueeze(either(2, -1))),
        torch.matmul(a.unsqueeze(-2), b.unsqueeze(-1)),
    )


def dot_in_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply rows by columns; ``matmul`` takes more than batches of them."""
    return torch.matmul(a.unsqueeze(1), b.unsqueeze(either(2, -1)))


def multiply_and_add(a: Tensor, b: Tensor) -> Tensor:
    """Multiply element by element, then add."""
    return (a * b).sum(-1, keepdim=True).unsqueeze(-1)


def einsum(literal_equation: str, a: Tensor, b: Tensor) -> Tensor:
    """Write the dot product of vectors as an einsum."""
    return torch.einsum(literal_equation, a, b)


def multiply_and_add_last(literal_equation: str, a: Tensor, b: Tensor) -> Tensor:
    """Multiply element by element, then add."""
    return (a * b).sum(-1)


def vector_column(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices by a column each, made from a vector."""
    return torch.bmm(a, b.unsqueeze(either(2, -1)))


def weigh_by_vector(a: Tensor, b: Tensor) -> Tensor:
    """Multiply every row by the vector, then add."""
    return (a * b.unsqueeze(1)).sum(-1, keepdim=True)


def vector_column_squeezed(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices by a column each, and drop the dimension that was made for it."""
    return torch.bmm(a, b.unsqueeze(either(2, -1))).squeeze(either(2, -1))


def weigh_by_vector_alone(a: Tensor, b: Tensor) -> Tensor:
    """Multiply every row by the vector, then add."""
    return (a * b.unsqueeze(1)).sum(-1)


def vector_row_squeezed(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a row each by matrices, and drop the dimension that was made for it."""
    return torch.bmm(a.unsqueeze(either(1, -2)), b).squeeze(1)


def add_weighed_rows_alone(a: Tensor, b: Tensor) -> Tensor:
    """Multiply every row by an entry of the vector, then add the rows."""
    return (a.unsqueeze(2) * b).sum(1)


def vector_row(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a row each, made from a vector, by matrices."""
    return torch.bmm(a.unsqueeze(either(1, -2)), b)


def add_weighed_rows(a: Tensor, b: Tensor) -> Tensor:
    """Multiply every row by an entry of the vector, then add the rows."""
    return (a.unsqueeze(2) * b).sum(1, keepdim=True)


def by_column(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices by a column each."""
    return either(torch.bmm(a, b), torch.matmul(a, b))


def points(a: Tensor, b: Tensor) -> Tensor:
    """Multiply points by matrices, as turning and projecting them does."""
    return torch.matmul(a, b.unsqueeze(-1)).squeeze(-1)


def weigh_points(a: Tensor, b: Tensor) -> Tensor:
    """Multiply each row of the matrices by the point, then add."""
    return (a * b.unsqueeze(-2)).sum(-1)


def weigh_rows(a: Tensor, b: Tensor) -> Tensor:
    """Multiply every row by the column, then add."""
    return (a * b.transpose(-2, -1)).sum(-1, keepdim=True)


def by_column_squeezed(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices by a column each, and drop its dimension."""
    return either(torch.bmm(a, b), torch.matmul(a, b)).squeeze(-1)


def weigh_rows_alone(a: Tensor, b: Tensor) -> Tensor:
    """Multiply every row by the column, then add."""
    return (a * b.transpose(-2, -1)).sum(-1)


def by_row(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a row each by matrices."""
    return either(torch.bmm(a, b), torch.matmul(a, b))


def weigh_columns(a: Tensor, b: Tensor) -> Tensor:
    """Multiply every column by the row, then add."""
    return (a.transpose(-2, -1) * b).sum(-2, keepdim=True)


def shared_column(a: Tensor, b: Tensor) -> Tensor:
    """Multiply one row each by a column that all batches share."""
    return either(
        torch.matmul(a.transpose(1, 2), b),
        torch.matmul(a.transpose(-2, -1), b),
        torch.matmul(a.permute(0, 2, 1), b),
    )


def matrix_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply the matrix of all rows by the column."""
    return torch.mm(a.squeeze(-1), b).unsqueeze(-1)


def _sizes(draw: Draw) -> tuple[int, int, int]:
    return draw.integer(1, 4), draw.integer(2, 5), draw.integer(1, 4)


def dot_inputs(draw: Draw) -> dict[str, Any]:
    """Return two batches of vectors."""
    import torch

    batch, _, depth = _sizes(draw)
    return {
        "a": draw.floats(batch, depth, dtype=torch.float32).abs(),
        "b": draw.floats(batch, depth, dtype=torch.float32).abs(),
    }


def einsum_inputs(draw: Draw) -> dict[str, Any]:
    """Return two batches of vectors and the equation of their dot products."""
    import torch

    rows, own = draw.choice([("b", "b"), ("bh", "bh"), ("nbh", "bh")])
    return {
        "literal_equation": f"{rows}d,{own}d->{rows}",
        "a": draw.floats(*(2, 2, 3, 4)[-len(rows) - 1 :], dtype=torch.float32).abs(),
        "b": draw.floats(*(2, 2, 3, 4)[-len(own) - 1 :], dtype=torch.float32).abs(),
    }


def column_inputs(draw: Draw) -> dict[str, Any]:
    """Return a batch of matrices and a batch of columns."""
    import torch

    batch, rows, depth = _sizes(draw)
    return {
        "a": draw.floats(batch, rows, depth, dtype=torch.float32).abs(),
        "b": draw.floats(batch, depth, 1, dtype=torch.float32).abs(),
    }


def point_inputs(draw: Draw) -> dict[str, Any]:
    """Return matrices of cameras and the points of each."""
    import torch

    batch, rows, depth = _sizes(draw)
    return {
        "a": draw.floats(batch, 1, 1, rows, depth, dtype=torch.float32).abs(),
        "b": draw.floats(batch, 2, 3, depth, dtype=torch.float32).abs(),
    }


def row_inputs(draw: Draw) -> dict[str, Any]:
    """Return a batch of rows and a batch of matrices."""
    import torch

    batch, columns, depth = _sizes(draw)
    return {
        "a": draw.floats(batch, 1, depth, dtype=torch.float32).abs(),
        "b": draw.floats(batch, depth, columns, dtype=torch.float32).abs(),
    }


def vector_column_inputs(draw: Draw) -> dict[str, Any]:
    """Return a batch of matrices and a batch of vectors."""
    given = column_inputs(draw)
    return {"a": given["a"], "b": given["b"].squeeze(-1)}


def vector_row_inputs(draw: Draw) -> dict[str, Any]:
    """Return a batch of vectors and a batch of matrices."""
    given = row_inputs(draw)
    return {"a": given["a"].squeeze(1), "b": given["b"]}


def shared_inputs(draw: Draw) -> dict[str, Any]:
    """Return a batch of columns and one more column."""
    import torch

    batch, _, depth = _sizes(draw)
    dtype = draw.choice([torch.float32, torch.bfloat16])
    return {
        "a": draw.floats(batch, depth, 1, dtype=dtype).abs(),
        "b": draw.floats(depth, 1, dtype=dtype).abs(),
    }


def _has_length(site: Site, name: str, dim: int) -> bool:
    return site.size(name, dim) == 1


def _precise(site: Site) -> bool | None:
    dtypes = {site.dtype("a"), site.dtype("b")}
    if dtypes - {"float32", None} or False in {site.is_tensor("a"), site.is_tensor("b")}:
        return False  # arrays of NumPy are multiplied with ``@`` as well
    # A matrix product takes operands of one dtype alone; autocast makes halves of float32.
    return True if "float32" in dtypes and not site.mentions("autocast") else None


def _vectors(site: Site) -> bool | None:
    ranks = site.ndim("a"), site.ndim("b")
    return all_hold(None if rank is None else rank == _BATCH - 1 for rank in ranks)


_OF_SPACE = re.compile(
    r"(?i)(^|_)(mats?|rots?|inv|bda|combine|poses?|tf|cam|homo)(_|$)|matri(x|ces)|rotation|transf|2"
    r"|lidar|trinsic|intrin|projection|_trans?(_|$)|^[RTK]$"
)
"""What turns or moves points is called so; a weight is large."""


def _adds_one(site: Site) -> bool:
    """Tell whether each sum has one product: matrices of one column, times one number."""
    return _has_length(site, "a", -1) or _has_length(site, "b", -2)


def _batches(site: Site) -> bool | None:
    if _adds_one(site):
        return False
    ranks = [site.ndim("a"), site.ndim("b")]
    if max(rank or _BATCH for rank in ranks) < _BATCH:
        return False  # an ordinary product
    both_vectors = _has_length(site, "a", -2) and _has_length(site, "b", -1)
    return (both_vectors and set(ranks) == {_BATCH}) or _small_or_of_space(site)


def _small(site: Site, *names: str) -> bool | None:
    """Tell whether one of the operands is known to hold small matrices, and none large ones."""
    sizes = [[site.size(name, dim) for dim in (-2, -1)] for name in names or ("a", "b")]
    if any(size is not None and size > _SMALL for pair in sizes for size in pair):
        return False
    return True if any(None not in pair for pair in sizes) else None


def _holds_small_matrices(site: Site) -> bool | None:
    # The product of rows and one vector for all of them is an ordinary one.
    adds_one = _has_length(site, "a", -1)
    return False if adds_one or site.ndim("b") == 1 else _small_or_of_space(site, "a")


def _small_or_of_space(site: Site, *names: str) -> bool | None:
    """Tell whether matrices are small; open where their name alone says so, ``rotation``."""
    small = _small(site, *names)
    moves_points = any(_OF_SPACE.search(n) for name in names or ("a",) for n in site.called(name))
    return False if small is None and not moves_points else small


SINGLE_PRECISION = Condition("single-precision", "the operands are float32", _precise)
ROW = Condition("one-row", "the left matrix has one row", lambda site: _has_length(site, "a", -2))
COLUMN = Condition(
    "one-column", "the right matrix has one column", lambda site: _has_length(site, "b", -1)
)
BATCHES = Condition(
    "batches-of-matrices",
    "both operands have three dimensions or more, and at most 16 rows and columns",
    _batches,
    meaning="batches-of-small-matrices",
)
_ARE_SMALL = (
    "the matrices have at most 16 rows and columns: the products of large ones would be written "
    "to memory one by one"
)
SMALL = Condition("small-matrices", _ARE_SMALL, _holds_small_matrices)
LEFT_SMALL = Condition("small-matrices", _ARE_SMALL, lambda site: _small_or_of_space(site, "a"))
RIGHT_SMALL = Condition("small-matrices", _ARE_SMALL, lambda site: _small_or_of_space(site, "b"))
_LEFT, _RIGHT = (LEFT_SMALL, SINGLE_PRECISION), (RIGHT_SMALL, SINGLE_PRECISION)
VECTORS = Condition("batches-of-vectors", "both operands have two dimensions", _vectors)
DOT_PRODUCT = Condition(
    "dot-product",
    "the equation multiplies vectors of one shape and adds up the last dimension",
    lambda site: bool(
        _DOT_PRODUCT.fullmatch(str(site.literal("literal_equation")).replace(" ", ""))
    ),
)
SHARED = Condition(
    "shared-column",
    "a batch of columns meets one column",
    lambda site: (
        site.ndim("a") == _BATCH
        and site.ndim("b") == _BATCH - 1
        and _has_length(site, "a", -1)
        and _has_length(site, "b", -1)
    ),
)

RULE = Substitution(
    id="NPU207",
    name="batched-vector-product",
    summary="a batched matrix product with a vector",
    table="affinity",
    forms=(
        Form(dot, multiply_and_add, dot_inputs, (SINGLE_PRECISION,)),
        Form(dot_in_matmul, multiply_and_add, dot_inputs, (VECTORS, SINGLE_PRECISION)),
        Form(einsum, multiply_and_add_last, einsum_inputs, (DOT_PRODUCT, SINGLE_PRECISION)),
        Form(shared_column, matrix_product, shared_inputs, (SHARED,)),
        Form(points, weigh_points, point_inputs, (SMALL, SINGLE_PRECISION)),
        Form(vector_column_squeezed, weigh_by_vector_alone, vector_column_inputs, _LEFT),
        Form(vector_row_squeezed, add_weighed_rows_alone, vector_row_inputs, _RIGHT),
        Form(vector_column, weigh_by_vector, vector_column_inputs, _LEFT),
        Form(vector_row, add_weighed_rows, vector_row_inputs, _RIGHT),
        Form(
            by_column_squeezed,
            weigh_rows_alone,
            column_inputs,
            (COLUMN, BATCHES, SINGLE_PRECISION),
        ),
        Form(by_column, weigh_rows, column_inputs, (COLUMN, BATCHES, SINGLE_PRECISION)),
        Form(by_row, weigh_columns, row_inputs, (ROW, BATCHES, SINGLE_PRECISION)),
    ),
    replaces=("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Transpose"),
    becomes=("Mul", "ReduceSum", "MatMulV2", "MatMulV3"),
    passes=(3, 4),
    requires="torch_npu>=2.1",
    valid=(
        # matrices
        """
def f(a: torch.Tensor, b: torch.Tensor):
    return torch.bmm(a, b.transpose(1, 2))
""",
        # half precision
        """
def f(a: torch.Tensor, b: torch.Tensor):
    a, b = a.half().view(-1, 8), b.half().view(-1, 8)
    return torch.bmm(a.unsqueeze(1), b.unsqueeze(2))
""",
        # an outer product
        """
def f(a: torch.Tensor, b: torch.Tensor):
    a, b = a.float().view(-1, 8), b.float().view(-1, 8)
    return torch.bmm(a.unsqueeze(2), b.unsqueeze(1))
""",
        # large matrices
        """
def f(a: torch.Tensor, b: torch.Tensor):
    a = a.float().view(2, 1, 1, 64, 64)
    return a.matmul(b.unsqueeze(-1)).squeeze(-1)
""",
        # states of an encoder: long and wide
        """
def f(weights: torch.Tensor, states: torch.Tensor):
    weights, states = weights.float(), states.float()
    return torch.bmm(weights.unsqueeze(1), states)
""",
        # the sum is over another dimension, or over two
        """
def f(a: torch.Tensor, b: torch.Tensor):
    return torch.einsum("bd,bd->d", a.float(), b.float()), torch.einsum("nbd,bd->n", a, b)
""",
    ),
    rewritten=(
        Rewritten(
            """
def f(a: torch.Tensor, b: torch.Tensor):
    a, b = a.float().view(-1, 8), b.float().view(-1, 8)
    scores = torch.bmm(a.unsqueeze(1), b.unsqueeze(2)).squeeze()
    return scores
""",
            """
def f(a: torch.Tensor, b: torch.Tensor):
    a, b = a.float().view(-1, 8), b.float().view(-1, 8)
    scores = (a * b).sum(-1, keepdim=True).unsqueeze(-1).squeeze()
    return scores
""",
        ),
        Rewritten(
            """
def f(query: torch.Tensor, key: torch.Tensor):
    query, key = query.float(), key.float()
    return torch.einsum("bhd,bhd->bh", query, key)
""",
            """
def f(query: torch.Tensor, key: torch.Tensor):
    query, key = query.float(), key.float()
    return (query * key).sum(-1)
""",
        ),
        # points of a frustum
        Rewritten(
            """
def to_ego(rots: torch.Tensor, points: torch.Tensor):
    batch, cameras, _, _ = rots.shape
    rots = torch.inverse(rots).view(batch, cameras, 1, 1, 1, 3, 3)
    points = rots.matmul(points.unsqueeze(-1))
    return points
""",
            """
def to_ego(rots: torch.Tensor, points: torch.Tensor):
    batch, cameras, _, _ = rots.shape
    rots = torch.inverse(rots).view(batch, cameras, 1, 1, 1, 3, 3)
    points = (rots * points.unsqueeze(-1).transpose(-2, -1)).sum(
        -1, keepdim=True
    )
    return points
""",
        ),
        Rewritten(
            """
def rotate(rots: torch.Tensor, points: torch.Tensor):
    rots = rots.float().view(-1, 1, 3, 3)
    return (rots @ points[..., None]).squeeze(-1)
""",
            """
def rotate(rots: torch.Tensor, points: torch.Tensor):
    rots = rots.float().view(-1, 1, 3, 3)
    return (rots * points.unsqueeze(-2)).sum(-1)
""",
        ),
        Rewritten(
            """
def f(a: torch.Tensor, b: torch.Tensor):
    a, b = a.view(-1, 64, 1), b.view(64, 1)
    return torch.matmul(a.transpose(1, 2), b)
""",
            """
def f(a: torch.Tensor, b: torch.Tensor):
    a, b = a.view(-1, 64, 1), b.view(64, 1)
    return torch.mm(a.squeeze(-1), b).unsqueeze(-1)
""",
        ),
        Rewritten(
            """
def f(points: torch.Tensor, turns: torch.Tensor):
    points, turns = points.float(), turns.float().view(-1, 3, 3)
    return torch.bmm(points.unsqueeze(1), turns)
""",
            """
def f(points: torch.Tensor, turns: torch.Tensor):
    points, turns = points.float(), turns.float().view(-1, 3, 3)
    return (points.unsqueeze(2) * turns).sum(1, keepdim=True)
""",
        ),
    ),
)
