"""``gather`` that picks one element per row, elements of a vector, or whole rows.

What: ``x.gather(1, index)`` with an index of one column, ``x.gather(0, index)`` on a vector,
``x.gather(0, index.unsqueeze(-1).expand(-1, x.size(1)))``, which picks whole rows, and
``x.gather(1, index.unsqueeze(-1).repeat(1, 1, x.size(2)))``, which picks rows of each in a batch, by a width that is a setting as well;
``edges.gather(2, index.unsqueeze(-1).expand(-1, -1, -1, edges.size(-1)))``, rows for each row.

Why it is slow on the NPU: GatherElements computes the address of every element for itself, an int64
index is cast first, and an expanded one is written out in full. An index of one column is a row
lookup, which Index does; elements of a vector and whole rows are ``index_select``, which GatherV2
does.

Safety: for indices that ``gather`` accepts, the result is the same element by element. The index
must have exactly one column (condition ``one-column-index``): with more columns the rewritten code
fails or, for as many columns as rows, silently broadcasts. ``gather`` rejects negative indices,
indexing counts them from the end: an ``ignore_index`` that reaches it no longer raises. Where
gradients flow into ``x``, the backward pass of the row lookup is an IndexPut that accumulates, that
of ``gather`` a ScatterElements, and the estimate counts the forward pass only: measure a training
step with it. ``index_select`` has no such cost.

References: case "affinity operator optimisation" (GatherElements -> GatherV2) of the MindStudio
guide; torch.gather; torch.index_select.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import (
    Condition,
    Draw,
    Form,
    Site,
    Substitution,
    either,
)
from npufix.rules.substitutions.gather_elements_examples import LEFT_ALONE, REWRITTEN

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_MATRIX = 2
_BATCH = 3


def column_flat(x: Tensor, index: Tensor) -> Tensor:
    """Pick one element per row and drop the column."""
    return either(
        x.gather(1, index).view(-1),
        x.gather(1, index).reshape(-1),
        x.gather(1, index).flatten(),
        x.gather(1, index).squeeze(1),
        x.gather(1, index).squeeze(-1),
    )


def last_flat(x: Tensor, index: Tensor) -> Tensor:
    """Along the last dimension, pick one element per row and drop the column."""
    return either(
        x.gather(-1, index).view(-1),
        x.gather(-1, index).reshape(-1),
        x.gather(-1, index).flatten(),
        x.gather(-1, index).squeeze(1),
        x.gather(-1, index).squeeze(-1),
    )


def column(x: Tensor, index: Tensor) -> Tensor:
    """Pick one element per row."""
    return x.gather(1, index)


def last(x: Tensor, index: Tensor) -> Tensor:
    """Along the last dimension, pick one element per row."""
    return x.gather(-1, index)


def as_column(index: Tensor) -> Tensor:
    """Make a column of a vector."""
    return either(index.unsqueeze(1), index.unsqueeze(-1))


def vector_flat(x: Tensor, index: Tensor) -> Tensor:
    """Pick one element per row with a column made from a vector, and drop the column."""
    return either(
        x.gather(1, as_column(index)).view(-1),
        x.gather(1, as_column(index)).reshape(-1),
        x.gather(1, as_column(index)).flatten(),
        x.gather(1, as_column(index)).squeeze(1),
        x.gather(1, as_column(index)).squeeze(-1),
    )


def last_vector_flat(x: Tensor, index: Tensor) -> Tensor:
    """Along the last dimension, pick one element per row with a column made from a vector, and drop the column."""
    return either(
        x.gather(-1, as_column(index)).view(-1),
        x.gather(-1, as_column(index)).reshape(-1),
        x.gather(-1, as_column(index)).flatten(),
        x.gather(-1, as_column(index)).squeeze(1),
        x.gather(-1, as_column(index)).squeeze(-1),
    )


def vector_column(x: Tensor, index: Tensor) -> Tensor:
    """Pick one element per row with a column made from a vector."""
    return x.gather(1, as_column(index))


def last_vector(x: Tensor, index: Tensor) -> Tensor:
    """Along the last dimension, pick one element per row with a column made from a vector."""
    return x.gather(-1, as_column(index))


def pick_flat(x: Tensor, index: Tensor) -> Tensor:
    """Index row by row."""
    return x[torch.arange(index.size(0), device=index.device), index.squeeze(1)]


def pick(x: Tensor, index: Tensor) -> Tensor:
    """Index row by row, and keep the column."""
    return x[torch.arange(index.size(0), device=index.device), index.squeeze(1)].unsqueeze(1)


def look_up_flat(x: Tensor, index: Tensor) -> Tensor:
    """Index row by row."""
    return x[torch.arange(index.size(0), device=index.device), index]


def look_up(x: Tensor, index: Tensor) -> Tensor:
    """Index row by row, and make a column of it."""
    return x[torch.arange(index.size(0), device=index.device), index].unsqueeze(1)


def rows(x: Tensor, index: Tensor) -> Tensor:
    """Pick whole rows, with the index written out for each column."""
    return either(
        x.gather(0, as_column(index).expand(-1, either(x.size(1), x.size(-1)))),
        x.gather(0, as_column(index).repeat(1, either(x.size(1), x.size(-1)))),
        x.gather(0, index.view(-1, 1).expand(-1, either(x.size(1), x.size(-1)))),
    )


def as_columns(index: Tensor) -> Tensor:
    """Make a column of each row of a matrix."""
    return either(
        index.unsqueeze(-1),
        index.view(index.size(0), index.size(1), 1),
        index.view(-1, index.size(1), 1),
        index.view(index.size(0), -1, 1),
        index.reshape(index.size(0), index.size(1), 1),
        index.reshape(-1, index.size(1), 1),
        index.reshape(index.size(0), -1, 1),
    )


def rows_of_each(x: Tensor, index: Tensor) -> Tensor:
    """Pick rows of each element of a batch, with the index written out for each column."""
    columns = as_columns(index)
    width = either(x.size(2), x.size(-1))
    return either(
        x.gather(1, columns.expand(-1, -1, width)),
        x.gather(1, columns.repeat(1, 1, width)),
        x.gather(1, columns.tile(1, 1, width)),
    )


def rows_of_width(x: Tensor, index: Tensor, width: int) -> Tensor:
    """Pick rows of each element of a batch, by a width of its own (boxes of 4)."""
    columns = as_columns(index)
    return either(
        x.gather(1, columns.expand(-1, -1, width)),
        x.gather(1, columns.repeat(1, 1, width)),
        x.gather(1, columns.tile(1, 1, width)),
    )


def rows_of_each_spread(x: Tensor, index: Tensor) -> Tensor:
    """Pick rows of each element of a batch, with an index that surely has two dimensions."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, either(x.size(2), x.size(-1))))


def rows_of_each_row(x: Tensor, index: Tensor) -> Tensor:
    """Pick, for each row of each element of a batch, rows of its own: edges to neighbours."""
    return x.gather(2, index.unsqueeze(-1).expand(-1, -1, -1, either(x.size(3), x.size(-1))))


def select_rows_of_rows(x: Tensor, index: Tensor) -> Tensor:
    """Select rows of all matrices as one matrix, by their numbers in it."""
    first = torch.arange(index.size(0), device=index.device).unsqueeze(1) * x.size(1)
    starts = (first + torch.arange(index.size(1), device=index.device)).unsqueeze(2) * x.size(2)
    return (
        x.flatten(0, 2).index_select(0, (index + starts).flatten()).reshape(*index.shape, x.size(3))
    )


def select_rows(x: Tensor, index: Tensor) -> Tensor:
    """Select rows of the batch as one matrix, by their numbers in it."""
    starts = torch.arange(index.size(0), device=index.device).unsqueeze(1) * x.size(1)
    return (
        x.flatten(0, 1).index_select(0, (index + starts).flatten()).reshape(*index.shape, x.size(2))
    )


def select_rows_of(x: Tensor, index: Tensor, width: int) -> Tensor:
    """As ``select_rows``."""
    starts = torch.arange(index.size(0), device=index.device).unsqueeze(1) * x.size(1)
    return (
        x.flatten(0, 1).index_select(0, (index + starts).flatten()).reshape(*index.shape, x.size(2))
    )


def select_columns_of_rows(x: Tensor, index: Tensor, width: int) -> Tensor:
    """As ``select_rows``, of the first columns: a view where these are all."""
    starts = torch.arange(index.size(0), device=index.device).unsqueeze(1) * x.size(1)
    return (
        x[..., :width]
        .flatten(0, 1)
        .index_select(0, (index + starts).flatten())
        .reshape(*index.shape, width)
    )


def vector(x: Tensor, index: Tensor) -> Tensor:
    """Pick elements of a vector."""
    return x.gather(0, index)


def select(x: Tensor, index: Tensor) -> Tensor:
    """Select elements of a vector or rows of a matrix."""
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


def per_row_inputs(draw: Draw) -> dict[str, Any]:
    """Return a matrix and one position per row, sometimes for fewer rows than there are."""
    given = column_inputs(draw)
    return {"x": given["x"], "index": given["index"].squeeze(1)}


def row_inputs(draw: Draw) -> dict[str, Any]:
    """Return a matrix and rows of it, duplicates included."""
    import torch

    length = draw.integer(1, 5)
    return {
        "x": draw.floats(length, draw.integer(1, 5), dtype=torch.float32),
        "index": draw.integers(draw.integer(1, 7), low=0, high=length - 1),
    }


def batch_inputs(draw: Draw) -> dict[str, Any]:
    """Return a batch of matrices and rows of each, sometimes for fewer of them than there are."""
    import torch

    batch, length = draw.integer(1, 4), draw.integer(1, 5)
    shape = (draw.integer(1, batch), draw.integer(1, 6))
    return {
        "x": draw.floats(batch, length, draw.integer(1, 5), dtype=torch.float32),
        "index": draw.integers(*shape, low=0, high=length - 1),
    }


def rows_inputs(draw: Draw) -> dict[str, Any]:
    """Return a batch of lists of matrices and rows of each, sometimes for fewer than there are."""
    import torch

    batch, nodes, length = (draw.integer(1, 4) for _ in range(3))
    shape = (draw.integer(1, batch), draw.integer(1, nodes), draw.integer(1, 5))
    return {
        "x": draw.floats(batch, nodes, length, draw.integer(1, 5), dtype=torch.float32),
        "index": draw.integers(*shape, low=0, high=length - 1),
    }


def width_inputs(draw: Draw) -> dict[str, Any]:
    """Return the width of the rows besides."""
    given = batch_inputs(draw)
    return {**given, "width": given["x"].size(-1)}


def fewer_inputs(draw: Draw) -> dict[str, Any]:
    """Return a width of all columns or of fewer."""
    given = batch_inputs(draw)
    return {**given, "width": draw.integer(1, given["x"].size(-1))}


def vector_inputs(draw: Draw) -> dict[str, Any]:
    """Return a vector and positions in it, more or fewer than it is long."""
    import torch

    length = draw.integer(1, 6)
    return {
        "x": draw.floats(length, dtype=torch.float32),
        "index": draw.integers(draw.integer(0, 9), low=0, high=length - 1),
    }


def _one_column(site: Site) -> bool | None:
    if site.runs_in_loop():  # one row for each sequence: the row numbers alone take longer
        return False
    columns = site.size("index", -1)
    # gather accepts only as many dimensions in the index as in the tensor
    ranks = [n for n in (site.ndim("x"), site.ndim("index")) if n is not None]
    if any(rank != _MATRIX for rank in ranks) or (columns is not None and columns != 1):
        return False
    if max(map(site.least_ndim, ("x", "index"))) > _MATRIX:
        return False
    return True if columns == 1 and ranks else None


# What picks one element per row is called so: the class, the action, the token that was meant.
_CHOSEN = re.compile(r"(^|_)(label|target|action|tgt|gt|answer|chosen)s?(_|$)")


def _visibly_one_column(site: Site) -> bool | None:
    """Nothing but its name or a known length tells one column from the indices of ``topk``."""
    known = _one_column(site)
    called = any(map(_CHOSEN.search, site.called("index")))
    return False if known is None and site.size("index", -1) != 1 and not called else known


def _one_per_row(site: Site) -> bool | None:
    # gather accepts only as many dimensions in the index as in the tensor
    x, index = site.ndim("x"), site.ndim("index")
    if x not in {None, _MATRIX} or index not in {None, 1} or site.least_ndim("x") > _MATRIX:
        return False
    return True if x == _MATRIX or index == 1 else None


def _one_per_row_of_many(site: Site) -> bool | None:
    return False if site.runs_in_loop() else _one_per_row(site)


def _is_vector(site: Site) -> bool | None:
    # gather accepts only as many dimensions in the index as in the tensor
    x, index = site.ndim("x"), site.ndim("index")
    if max(map(site.least_ndim, ("x", "index"))) > 1:
        return False
    if index is None:
        return None if x in {None, 1} else False
    return index == 1 and x in {None, 1}


_SPREAD = frozenset({"broadcast_to", "expand", "expand_as", "repeat"})


def _rows_of_batch(site: Site) -> bool | None:
    # gather accepts only as many dimensions in the index as in the tensor
    x, index = site.ndim("x"), site.ndim("index")
    if x not in {None, _BATCH} or index not in {None, _MATRIX} or site.runs_in_loop():
        return False
    if site.operator("x") in _SPREAD:
        return False  # one table for the batch, of which ``flatten`` makes as many copies
    return True if index == _MATRIX or x == _BATCH else None


def _spread_rows(site: Site) -> bool:
    # ``expand(-1, -1, width)`` takes what has three dimensions alone, and so does ``gather`` then
    return not site.runs_in_loop() and site.operator("x") not in _SPREAD


def _whole_rows(site: Site) -> bool:
    width, columns = site.number("width"), site.size("x", -1)
    return width is not None and columns == width


def _counts(site: Site) -> bool | None:
    width, columns = site.number("width"), site.size("x", -1)
    if width is None:
        return None
    return width >= 0 and columns in {None, width}  # of wider rows the first columns are copied


ROWS_OF_BATCH = Condition(
    "rows-of-batch",
    "the index has two dimensions: the rows of each element of a batch",
    _rows_of_batch,
)
SPREAD_ROWS = Condition(
    "rows-of-batch", "the tensor is not one table, expanded for the batch", _spread_rows
)
WHOLE_ROWS = Condition("whole-rows", "the index is repeated for every column", _whole_rows)
COUNTS = Condition("width-counts", "the width is a number of columns, not -1", _counts)
ONE_COLUMN = Condition(
    "one-column-index", "the index has the shape (N, 1), on a matrix", _one_column
)
VISIBLY_ONE_COLUMN = Condition(
    "one-column-index", "the index has the shape (N, 1), on a matrix", _visibly_one_column
)
# Of scores per token, (batch, sequence, words), the last dimension is the third: who means a matrix
# writes ``gather(1, index)``.
_PROVEN = "the tensor proves to be a matrix, by itself or by its index"
MATRIX = Condition(
    "proven-matrix", _PROVEN, lambda site: _MATRIX in {site.ndim("x"), site.ndim("index")}
)
MATRIX_BY_VECTOR = Condition(
    "proven-matrix", _PROVEN, lambda site: site.ndim("x") == _MATRIX or site.ndim("index") == 1
)
IS_TENSOR = Condition("is-tensor", "the object is a torch tensor", lambda site: site.is_tensor("x"))
_IN_ROWS = "the index has one entry per row of a matrix"
ONE_PER_ROW = Condition("one-column-index", _IN_ROWS, _one_per_row_of_many)
PLACES = Condition("one-column-index", _IN_ROWS, _one_per_row)
VECTOR = Condition("vector", "the tensor and the index have one dimension", _is_vector)

RULE = Substitution(
    id="NPU202",
    name="gather-one-element-per-row",
    summary="gather that picks one element per row, elements of a vector, or whole rows",
    table="affinity",
    forms=(
        Form(vector_flat, look_up_flat, per_row_inputs, (IS_TENSOR, ONE_PER_ROW)),
        Form(vector_column, look_up, per_row_inputs, (IS_TENSOR, ONE_PER_ROW)),
        Form(column_flat, pick_flat, column_inputs, (IS_TENSOR, ONE_COLUMN)),
        Form(column, pick, column_inputs, (IS_TENSOR, VISIBLY_ONE_COLUMN)),
        Form(
            last_vector_flat,
            look_up_flat,
            per_row_inputs,
            (IS_TENSOR, MATRIX_BY_VECTOR, ONE_PER_ROW),
        ),
        Form(
            last_vector,
            look_up,
            per_row_inputs,
            (IS_TENSOR, MATRIX_BY_VECTOR, ONE_PER_ROW),
        ),
        Form(last_flat, pick_flat, column_inputs, (IS_TENSOR, MATRIX, ONE_COLUMN)),
        Form(last, pick, column_inputs, (IS_TENSOR, MATRIX, VISIBLY_ONE_COLUMN)),
        Form(rows, select, row_inputs, (IS_TENSOR, PLACES)),
        Form(rows_of_each_spread, select_rows, batch_inputs, (IS_TENSOR, SPREAD_ROWS)),
        Form(rows_of_each_row, select_rows_of_rows, rows_inputs, (IS_TENSOR, SPREAD_ROWS)),
        Form(rows_of_each, select_rows, batch_inputs, (IS_TENSOR, ROWS_OF_BATCH)),
        Form(rows_of_width, select_rows_of, width_inputs, (IS_TENSOR, ROWS_OF_BATCH, WHOLE_ROWS)),
        Form(
            rows_of_width, select_columns_of_rows, fewer_inputs, (IS_TENSOR, ROWS_OF_BATCH, COUNTS)
        ),
        Form(vector, select, vector_inputs, (IS_TENSOR, VECTOR)),
    ),
    replaces=("GatherElements", "GatherElementsV2", "GatherElementsD"),
    becomes=("Index", "GatherV2", "GatherV3"),
    passes=(1, 0),
    requires="torch_npu>=2.1",
    valid=LEFT_ALONE,
    rewritten=REWRITTEN,
)
