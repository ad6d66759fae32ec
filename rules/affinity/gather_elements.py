"""``gather`` that picks one element per row, or elements of a vector.

What: ``x.gather(1, index)`` with an index of one column, and ``x.gather(0, index)`` on a
one-dimensional tensor.

Why it is slow on the NPU: GatherElements computes the address of every element for itself. An
index of one column is a row lookup, which Index does; on a vector it is ``index_select``, which
GatherV2 does.

Safety: for indices that ``gather`` accepts, the result is the same element by element. The index
must have exactly one column (condition ``one-column-index``): with more columns the rewritten code
fails or, for as many columns as rows, silently broadcasts. ``gather`` rejects negative indices,
indexing wraps them. Where gradients flow into ``x``, the backward pass of indexing is an IndexPut
that accumulates, that of ``gather`` a ScatterElements: the estimate counts the forward pass only.

References: case "affinity operator optimisation" (GatherElements -> GatherV2) of the MindStudio
guide; torch.gather; torch.index_select.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_MATRIX = 2


def column_flat(x: Tensor, index: Tensor) -> Tensor:
    """Pick one element per row and drop the column."""
    return x.gather(1, index).view(-1)


def column_reshaped(x: Tensor, index: Tensor) -> Tensor:
    """Pick one element per row and drop the column."""
    return x.gather(1, index).reshape(-1)


def column_squeezed(x: Tensor, index: Tensor) -> Tensor:
    """Pick one element per row and drop the column."""
    return x.gather(1, index).squeeze(1)


def column_squeezed_last(x: Tensor, index: Tensor) -> Tensor:
    """Pick one element per row and drop the column."""
    return x.gather(1, index).squeeze(-1)


def column_last_squeezed(x: Tensor, index: Tensor) -> Tensor:
    """Pick one element per row and drop the column."""
    return x.gather(-1, index).squeeze(-1)


def column(x: Tensor, index: Tensor) -> Tensor:
    """Pick one element per row."""
    return x.gather(1, index)


def pick_flat(x: Tensor, index: Tensor) -> Tensor:
    """Index row by row."""
    return x[torch.arange(index.size(0), device=index.device), index.squeeze(1)]


def pick(x: Tensor, index: Tensor) -> Tensor:
    """Index row by row, and keep the column."""
    return x[torch.arange(index.size(0), device=index.device), index.squeeze(1)].unsqueeze(1)


def vector(x: Tensor, index: Tensor) -> Tensor:
    """Pick elements of a vector."""
    return x.gather(0, index)


def select(x: Tensor, index: Tensor) -> Tensor:
    """Select elements of a vector."""
    return x.index_select(0, index)


def column_inputs(draw: Draw) -> dict[str, Any]:
    """Return a matrix and one column per row, sometimes for fewer rows than there are."""
    import torch

    rows, classes = draw.integer(1, 6), draw.integer(1, 5)
    picked = draw.integer(1, rows)
    return {
        "x": draw.floats(rows, classes, dtype=torch.float32),
        "index": draw.integers(picked, 1, low=0, high=classes - 1),
    }


def vector_inputs(draw: Draw) -> dict[str, Any]:
    """Return a vector and positions in it, more or fewer than it is long."""
    import torch

    length = draw.integer(1, 6)
    return {
        "x": draw.floats(length, dtype=torch.float32),
        "index": draw.integers(draw.integer(0, 9), low=0, high=length - 1),
    }


def _one_column(site: Site) -> bool | None:
    columns = site.size("index", -1)
    # gather accepts only as many dimensions in the index as in the tensor
    ranks = [n for n in (site.ndim("x"), site.ndim("index")) if n is not None]
    if any(rank != _MATRIX for rank in ranks) or (columns is not None and columns != 1):
        return False
    return True if columns == 1 and ranks else None


def _is_vector(site: Site) -> bool | None:
    # gather accepts only as many dimensions in the index as in the tensor
    x, index = site.ndim("x"), site.ndim("index")
    if index is None:
        return None if x in {None, 1} else False
    return index == 1 and x in {None, 1}


ONE_COLUMN = Condition(
    "one-column-index", "the index has the shape (N, 1), on a matrix", _one_column
)
IS_TENSOR = Condition("is-tensor", "the object is a torch tensor", lambda site: site.is_tensor("x"))
VECTOR = Condition("vector", "the tensor and the index have one dimension", _is_vector)

RULE = Substitution(
    id="NPU202",
    name="gather-one-element-per-row",
    summary="gather that picks one element per row, or elements of a vector",
    table="affinity",
    forms=(
        Form(column_flat, pick_flat, column_inputs, (IS_TENSOR, ONE_COLUMN)),
        Form(column_reshaped, pick_flat, column_inputs, (IS_TENSOR, ONE_COLUMN)),
        Form(column_squeezed, pick_flat, column_inputs, (IS_TENSOR, ONE_COLUMN)),
        Form(column_squeezed_last, pick_flat, column_inputs, (IS_TENSOR, ONE_COLUMN)),
        Form(column_last_squeezed, pick_flat, column_inputs, (IS_TENSOR, ONE_COLUMN)),
        Form(column, pick, column_inputs, (IS_TENSOR, ONE_COLUMN)),
        Form(vector, select, vector_inputs, (IS_TENSOR, VECTOR)),
    ),
    replaces=("GatherElements", "GatherElementsV2", "GatherElementsD"),
    becomes=("Index", "GatherV2", "GatherV3"),
    passes=(1, 0),
    requires="torch_npu>=2.1",
    valid=(
        # several columns
        """
def f(logits: torch.Tensor, target: torch.Tensor):
    return logits.gather(1, target.view(-1, 2))
""",
        # along the rows of a matrix
        """
def f(x: torch.Tensor, index: torch.Tensor):
    return x.gather(0, index.view(-1, 1))
""",
        # three dimensions
        """
def f(x: torch.Tensor, index: torch.Tensor):
    b, s, v = x.shape
    return x.gather(-1, index.unsqueeze(-1)).squeeze(-1)
""",
    ),
    rewritten=(
        Rewritten(
            """
def f(logit: torch.Tensor, target: torch.Tensor, eps: float):
    target = target.view(-1, 1)
    pt = logit.gather(1, target).view(-1) + eps
    return torch.log(pt)
""",
            """
def f(logit: torch.Tensor, target: torch.Tensor, eps: float):
    target = target.view(-1, 1)
    pt = logit[torch.arange(target.size(0), device=target.device), target.squeeze(1)] + eps
    return torch.log(pt)
""",
        ),
        Rewritten(
            """
def f(alpha: torch.Tensor, target: torch.Tensor):
    return alpha.gather(0, target.view(-1))
""",
            """
def f(alpha: torch.Tensor, target: torch.Tensor):
    return alpha.index_select(0, target.view(-1))
""",
        ),
        Rewritten(
            """
def f(logits: torch.Tensor, target: torch.Tensor):
    return torch.gather(logits, dim=1, index=target.view(-1, 1))
""",
            """
def f(logits: torch.Tensor, target: torch.Tensor):
    index = target.view(-1, 1)
    return logits[torch.arange(index.size(0), device=index.device), index.squeeze(1)].unsqueeze(1)
""",
        ),
    ),
)
