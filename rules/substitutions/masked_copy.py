"""Elements of a tensor that are exchanged or changed through a boolean mask.

What: ``x[mask] = y[mask]`` with one mask (or the positions that ``nonzero`` finds for it) on both
sides, of elements, of rows or of whatever there is at a place, perhaps cast
(``x[mask] = y[mask].float()``); the same into one column, ``x[mask, 1] = y[mask]``, one row for many
places, ``x[mask] = row``, and ``x[mask] += 1``, ``x[mask] -= 1``, ``x[mask] *= 0.5`` with a number,
also written out, ``x[mask] = x[mask] + 1``, ``x[mask] = -y[mask]``.

Why it is slow on the NPU: both sides look for the positions first. NonZero runs twice, each time
the host waits for the device, Index packs the elements and IndexPutV2 unpacks them one by one, for
some dtypes and sizes on the AI CPU. ``where`` chooses element by element, without a wait, and one
copy writes the result to where the old one was.

Safety: the result is copied into the same tensor, so views, aliases and autograd see what they saw
before; elements that are not chosen are copied and not multiplied by zero, so they may be NaN or
infinite. All tensors must have the shape of the mask (``same-rank-mask``), or both the dimensions
that it lacks (``row-mask``, ``holds-vectors``, ``same-rank-values``); for positions,
``vector-mask``; for a column, ``column-mask``; for one row, ``row-mask`` and ``one-row``. The mask
must be boolean (``boolean-mask``) and on the device of the tensor
(``same-device``). Values that were computed for the chosen elements only (``x[mask] = rows``,
``x[mask] = 1 / y[mask]``) are left alone: computed for all, they may divide by zero.

References: "IndexPut operator" in the performance tuning guide of Ascend Extension for PyTorch;
torch.where; torch.Tensor.copy_.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.masks import (
    BOOLEAN_MASK,
    SAME_DEVICE,
    SAME_RANK_MASK,
    WRITTEN_TENSOR,
    holds_vectors,
)
from npufix.rules.substitution import (
    Condition,
    Draw,
    Form,
    Site,
    Substitution,
    all_hold,
    either,
)
from npufix.rules.substitutions.masked_copy_examples import REWRITTEN, VALID

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_MATRIX = 2


def spelled(mask: Tensor) -> Any:  # noqa: ANN401 - a tensor or a tuple of them
    """Return a mask, or its positions along all dimensions."""
    return either(mask.nonzero(as_tuple=True), mask)


def positions(mask: Tensor) -> Tensor:
    """Return the positions of a mask over a vector."""
    return either(
        mask.nonzero().squeeze(1),
        mask.nonzero().squeeze(-1),
        mask.nonzero().view(-1),
        mask.nonzero().reshape(-1),
        mask.nonzero().flatten(),
        mask.nonzero()[:, 0],
        mask.nonzero(as_tuple=True)[0],
    )


def taken(x: Tensor, mask: Tensor, y: Tensor) -> None:
    """Take elements from another tensor where the mask is true."""
    x[spelled(mask)] = either(y[spelled(mask)], y[spelled(mask)].clone())


def taken_as(x: Tensor, mask: Tensor, y: Tensor, dtype: torch.dtype) -> None:
    """Take elements from a tensor of another dtype where the mask is true."""
    x[spelled(mask)] = y[spelled(mask)].to(dtype)


def taken_by_call(x: Tensor, mask: Tensor, y: Tensor) -> None:
    """Have the elements of another tensor selected where the mask is true."""
    x[mask] = y.masked_select(mask)


def taken_by_position(x: Tensor, mask: Tensor, y: Tensor) -> None:
    """Take the elements of another vector at the positions where the mask is true."""
    x[positions(mask)] = y[either(positions(mask), mask)]


def choose(x: Tensor, mask: Tensor, y: Tensor) -> None:
    """Choose element by element, and write the result to the same place."""
    x.copy_(torch.where(mask, y, x))


def choose_as(x: Tensor, mask: Tensor, y: Tensor, dtype: torch.dtype) -> None:
    """Choose element by element between what is cast and the old one."""
    x.copy_(torch.where(mask, y.to(dtype), x))


def taken_into_column(x: Tensor, mask: Tensor, column: int, y: Tensor) -> None:
    """Take elements of a vector into one column where the mask is true."""
    x[mask, column] = y[mask]


def choose_column(x: Tensor, mask: Tensor, column: int, y: Tensor) -> None:
    """Choose element by element, and write the whole column."""
    x[:, column].copy_(torch.where(mask, y, x[:, column]))


def row_written(x: Tensor, mask: Tensor, row: Tensor) -> None:
    """Write one row to the places where the mask is true."""
    x[mask] = row


def row_repeated(x: Tensor, mask: Tensor, row: Tensor, n: int) -> None:
    """Repeat the row as often as the mask is true, then write the rows."""
    x[mask] = either(row.tile(n, 1), row.expand(n, -1), row.repeat(n, 1))


def choose_row(x: Tensor, mask: Tensor, row: Tensor) -> None:
    """Choose between the row and the old one."""
    x.copy_(torch.where(mask.unsqueeze(-1), row, x))


def choose_repeated(x: Tensor, mask: Tensor, row: Tensor, n: int) -> None:
    """Choose without counting."""
    x.copy_(torch.where(mask.unsqueeze(-1), row, x))


def choose_rows(x: Tensor, mask: Tensor, y: Tensor) -> None:
    """Choose row by row, and write the result to the same place."""
    x.copy_(torch.where(mask.unsqueeze(-1), y, x))


def choose_rows_as(x: Tensor, mask: Tensor, y: Tensor, dtype: torch.dtype) -> None:
    """Choose row by row between what is cast and the old one."""
    x.copy_(torch.where(mask.unsqueeze(-1), y.to(dtype), x))


def choose_aligned(x: Tensor, mask: Tensor, y: Tensor) -> None:
    """Choose all that the dimensions without a mask hold, however many there are."""
    chosen = mask.view(mask.shape + (1,) * (x.dim() - mask.dim()))
    x.copy_(torch.where(chosen, y, x))


def choose_aligned_as(x: Tensor, mask: Tensor, y: Tensor, dtype: torch.dtype) -> None:
    """Choose the same between what is cast and the old one."""
    chosen = mask.view(mask.shape + (1,) * (x.dim() - mask.dim()))
    x.copy_(torch.where(chosen, y.to(dtype), x))


def added(x: Tensor, mask: Tensor, value: float) -> None:
    """Add a number where the mask is true."""
    x[mask] += value


def choose_sum(x: Tensor, mask: Tensor, value: float) -> None:
    """Choose between the sum and the old value."""
    x.copy_(torch.where(mask, x + value, x))


def subtracted(x: Tensor, mask: Tensor, value: float) -> None:
    """Subtract a number where the mask is true."""
    x[mask] -= value


def choose_difference(x: Tensor, mask: Tensor, value: float) -> None:
    """Choose between the difference and the old value."""
    x.copy_(torch.where(mask, x - value, x))


def scaled(x: Tensor, mask: Tensor, value: float) -> None:
    """Multiply by a number where the mask is true."""
    x[mask] *= value


def choose_product(x: Tensor, mask: Tensor, value: float) -> None:
    """Choose between the product and the old value."""
    x.copy_(torch.where(mask, x * value, x))


def taken_more(x: Tensor, mask: Tensor, y: Tensor, value: float) -> None:
    """Take elements and a number more where the mask is true."""
    x[mask] = y[mask] + value


def choose_more(x: Tensor, mask: Tensor, y: Tensor, value: float) -> None:
    """Choose between the sum and the old value."""
    x.copy_(torch.where(mask, y + value, x))


def taken_less(x: Tensor, mask: Tensor, y: Tensor, value: float) -> None:
    """Take elements and a number less where the mask is true."""
    x[mask] = y[mask] - value


def choose_less(x: Tensor, mask: Tensor, y: Tensor, value: float) -> None:
    """Choose between the difference and the old value."""
    x.copy_(torch.where(mask, y - value, x))


def taken_from(x: Tensor, mask: Tensor, y: Tensor, value: float) -> None:
    """Take what elements lack of a number where the mask is true."""
    x[mask] = value - y[mask]


def choose_from(x: Tensor, mask: Tensor, y: Tensor, value: float) -> None:
    """Choose between the difference and the old value."""
    x.copy_(torch.where(mask, value - y, x))


def taken_times(x: Tensor, mask: Tensor, y: Tensor, value: float) -> None:
    """Take elements times a number where the mask is true."""
    x[mask] = y[mask] * value


def choose_times(x: Tensor, mask: Tensor, y: Tensor, value: float) -> None:
    """Choose between the product and the old value."""
    x.copy_(torch.where(mask, y * value, x))


def taken_negative(x: Tensor, mask: Tensor, y: Tensor) -> None:
    """Take elements with the other sign where the mask is true."""
    x[mask] = -y[mask]


def choose_negative(x: Tensor, mask: Tensor, y: Tensor) -> None:
    """Choose between the other sign and the old value."""
    x.copy_(torch.where(mask, -y, x))


_SHAPES = ((5,), (1,), (3, 4), (3, 3), (2, 3, 4), (0, 3))


def taken_inputs(draw: Draw) -> dict[str, Any]:
    """Return two tensors and a mask of one shape."""
    return _taken(draw, draw.choice(_SHAPES))


def vector_taken_inputs(draw: Draw) -> dict[str, Any]:
    """Return two vectors and a mask of one length."""
    return _taken(draw, (draw.integer(0, 5),))


def column_inputs(draw: Draw) -> dict[str, Any]:
    """Return a matrix, the number of a column, and a mask and a vector as long as that."""
    given = _taken(draw, (draw.integer(0, 4), 3))
    mask, y = (given[name][:, 0].clone() for name in ("mask", "y"))
    return {**given, "mask": mask, "y": y, "column": draw.integer(-3, 2)}


def row_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, a mask of its rows and a row."""
    given = _taken(draw, draw.choice([(3, 4), (2, 3, 4), (0, 3)]))
    row = given["y"].new_ones(given["x"].shape[-1]) * draw.integer(-2, 2)
    return {"x": given["x"], "mask": given["mask"][..., 0].clone(), "row": row}


def taken_rows_inputs(draw: Draw) -> dict[str, Any]:
    """Return two tensors and a mask of their rows."""
    given = _taken(draw, draw.choice([(3, 4), (2, 3, 4), (0, 3)]))
    return {**given, "mask": given["mask"][..., 0].clone()}


def any_rank_inputs(draw: Draw) -> dict[str, Any]:
    """Return two tensors and a mask of their first dimensions, or of all of them."""
    given = _taken(draw, draw.choice([(3, 4), (2, 3, 4), (3, 3, 3)]))
    mask = given["mask"]
    for _ in range(draw.integer(0, mask.dim() - 1)):
        mask = mask[..., 0]
    return {**given, "mask": mask.clone()}


def cast_inputs(draw: Draw) -> dict[str, Any]:
    """Return the same, what is taken being wider or narrower, and the dtype of the first."""
    return _cast(draw, any_rank_inputs(draw))


def cast_taken_inputs(draw: Draw) -> dict[str, Any]:
    """Return tensors and a mask of one shape, of which what is taken is cast."""
    return _cast(draw, taken_inputs(draw))


def cast_rows_inputs(draw: Draw) -> dict[str, Any]:
    """Return tensors and a mask of their rows, of which what is taken is cast."""
    return _cast(draw, taken_rows_inputs(draw))


def _cast(draw: Draw, given: dict[str, Any]) -> dict[str, Any]:
    import torch

    if draw.choice([True, False]):  # integers that no float holds
        x = torch.full_like(given["x"], 1, dtype=torch.int64) * (2**24 + 1)
        y = draw.integers(*x.shape, low=-9, high=9).float()
    else:
        x = given["x"]
        y = given["y"].to(torch.float64 if x.dtype == torch.float32 else torch.float32)
    return {**given, "x": x, "y": y, "dtype": x.dtype}


def repeated_inputs(draw: Draw) -> dict[str, Any]:
    """Return the same, and how often the mask is true."""
    given = row_inputs(draw)
    return {**given, "n": int(given["mask"].sum())}


def scaled_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, a mask and a number."""
    shape = draw.choice(_SHAPES)
    given = _taken(draw, shape)
    value = draw.choice([0, 2, -0.5])
    return {"x": given["x"], "mask": given["mask"], "value": value}


def computed_inputs(draw: Draw) -> dict[str, Any]:
    """Return two tensors, often one and the same, a mask and a number."""
    given = taken_inputs(draw)
    y = draw.choice([given["x"], given["y"]])
    return {**given, "y": y, "value": draw.choice([0, 2, -0.5])}


def _taken(draw: Draw, shape: tuple[int, ...]) -> dict[str, Any]:
    import torch

    dtype = draw.choice([torch.float32, torch.bfloat16])
    x, y = draw.wild(*shape, dtype=dtype), draw.wild(*shape, dtype=dtype)
    return {"x": x, "mask": draw.booleans(*shape), "y": y}


def _vectors(site: Site) -> bool | None:
    ranks = [site.ndim(name) for name in ("x", "mask", "y")]
    if any(rank not in {None, 1} for rank in ranks):
        return False
    # The positions of a matrix are twice as many as the elements that they are to take.
    return True if ranks[0] == 1 else None


def _column(site: Site) -> bool | None:
    ranks = [(site.ndim("x"), _MATRIX), (site.ndim("mask"), 1), (site.ndim("y"), 1)]
    return all_hold(None if rank is None else rank == wanted for rank, wanted in ranks)


def _one_shape(site: Site) -> bool | None:
    if site.same_ndim("x", "mask") is None and holds_vectors(site):
        return False
    ranks = [site.same_ndim("x", "mask"), site.same_ndim("y", "mask")]
    return False if False in ranks else (True if all(ranks) else None)


def _is_number(site: Site) -> bool | None:
    if site.literal("value") is not None:
        return isinstance(site.literal("value"), (int, float))
    return False if site.is_tensor("value") else site.is_number("value")


def _one_row(site: Site) -> bool | None:
    rank, room = site.ndim("row"), site.ndim("x")
    if rank is not None and any(site.size("row", dim) != 1 for dim in range(rank - 1)):
        return False
    if rank is not None and rank > _MATRIX:
        return None if room is None else rank <= room
    if rank is not None:
        return rank > 0
    # what is computed for the selected places has a row for each
    return None if site.operator("row") == "attr" else False


def _has_rows(site: Site) -> bool | None:
    more = site.more_dims("x", "mask")
    return None if more is None else more == 1


def _holds_several(site: Site) -> bool:
    more = site.more_dims("x", "mask")
    return holds_vectors(site) if more is None else more > 1


ALIKE = Condition(
    "same-rank-values",
    "what is taken has as many dimensions as what it is written to",
    lambda site: site.same_ndim("x", "y"),
)
ONE_ROW = Condition("one-row", "what is written is one row, the same for all places", _one_row)
ROW_MASK = Condition(
    "row-mask", "the mask has one dimension less than the tensor it is used on", _has_rows
)


def _has_dimensions(site: Site) -> bool | None:
    return True if site.ndim("row") == 1 or site.ndim("mask") else None


HAS_DIMENSIONS = Condition(
    "has-dimensions",
    "the mask is no single truth value: it has a dimension",
    _has_dimensions,
    "mask-dims",
)
ONE_SHAPE = Condition(
    "same-rank-mask", "the mask and both tensors have the same dimensions", _one_shape
)
ONE_VECTOR = Condition("vector-mask", "the mask and both tensors have one dimension", _vectors)
ONE_COLUMN = Condition(
    "column-mask", "the tensor is a matrix, and the mask and what is taken are vectors", _column
)
IS_INDEX = Condition(
    "is-index", "the column is a number", lambda site: type(site.literal("column")) is int
)
IS_NUMBER = Condition("is-number", "the value is a number, not one for each element", _is_number)
KNOWN_ROWS = Condition(
    "row-mask",
    "the mask has one dimension less than the tensor it is used on",
    lambda site: site.more_dims("x", "mask") == 1,
)
VECTORS = Condition(
    "holds-vectors", "the tensor has a vector at each place of the mask", _holds_several
)
TAKEN = (BOOLEAN_MASK, WRITTEN_TENSOR, SAME_DEVICE)
CHANGED = (*TAKEN, IS_NUMBER, SAME_RANK_MASK)
COMPUTED = (*TAKEN, IS_NUMBER, ONE_SHAPE)

RULE = Substitution(
    id="NPU211",
    name="masked-copy",
    summary="elements exchanged or changed through a boolean mask",
    table="affinity",
    forms=(
        Form(taken, choose, taken_inputs, (*TAKEN, ONE_SHAPE)),
        Form(taken_by_call, choose, taken_inputs, (*TAKEN, ONE_SHAPE)),
        Form(taken_by_position, choose, vector_taken_inputs, (*TAKEN, ONE_VECTOR)),
        Form(taken_into_column, choose_column, column_inputs, (*TAKEN, IS_INDEX, ONE_COLUMN)),
        Form(taken, choose_rows, taken_rows_inputs, (*TAKEN, KNOWN_ROWS, ALIKE)),
        Form(taken, choose_aligned, any_rank_inputs, (*TAKEN, VECTORS, ALIKE)),
        Form(taken_as, choose_as, cast_taken_inputs, (*TAKEN, ONE_SHAPE)),
        Form(taken_as, choose_rows_as, cast_rows_inputs, (*TAKEN, KNOWN_ROWS, ALIKE)),
        Form(taken_as, choose_aligned_as, cast_inputs, (*TAKEN, VECTORS, ALIKE)),
        Form(row_written, choose_row, row_inputs, (*TAKEN, ONE_ROW, ROW_MASK, HAS_DIMENSIONS)),
        Form(
            row_repeated,
            choose_repeated,
            repeated_inputs,
            (*TAKEN, ONE_ROW, ROW_MASK, HAS_DIMENSIONS),
        ),
        Form(added, choose_sum, scaled_inputs, CHANGED),
        Form(subtracted, choose_difference, scaled_inputs, CHANGED),
        Form(scaled, choose_product, scaled_inputs, CHANGED),
        Form(taken_more, choose_more, computed_inputs, COMPUTED),
        Form(taken_less, choose_less, computed_inputs, COMPUTED),
        Form(taken_from, choose_from, computed_inputs, COMPUTED),
        Form(taken_times, choose_times, computed_inputs, COMPUTED),
        Form(taken_negative, choose_negative, taken_inputs, (*TAKEN, ONE_SHAPE)),
    ),
    replaces=(
        "Index",
        "IndexPut",
        "IndexPutV2",
        "IndexPutV3",
        "IndexPutWithSort",
        "IndexPutWithSortV2",
        "LinearIndex",
        "LinearIndexV2",
        "NonZero",
        "NonZeroV2",
    ),
    becomes=("SelectV2", "TensorMove", "ViewCopy"),
    passes=(5, 4),
    requires="torch_npu>=2.1",
    valid=VALID,
    rewritten=REWRITTEN,
)
