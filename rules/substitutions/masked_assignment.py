"""Assignment through a boolean mask: ``x[mask] = value``.

What: a number or a tensor without dimensions is written to the places of a tensor where a mask is
true. The mask may cover all dimensions, the leading ones (rows) or the last ones (``x[..., mask]``)
and may be given as the positions that ``nonzero`` or ``where`` find.

Why it is slow on the NPU: indexing with a mask needs the positions first. NonZero counts them,
which makes the host wait for the device, and IndexPutV2 then writes element by element. On A2 and
A3 it even goes to the AI CPU for double and int16; for int64 and uint8 with more than 100 positions
or rows longer than 128; and where several indices must be broadcast or are not adjacent. Before A2
more dtypes do. It has been seen to take three quarters of a training step. ``masked_fill_`` is one
vector kernel over the tensor, without a count and without a wait.

Safety: ``masked_fill_`` writes to the same tensor in place, so views, aliases and autograd see
what they saw before, and what the mask covers may hold NaN or infinity. (The multiplication
``x *= ~mask`` that is often recommended turns both into NaN and is not used here.) A mask is
aligned with the last dimensions by ``masked_fill_`` but with the first by indexing: one that has
fewer dimensions than the tensor gets new last ones, and one of which that is not known as many as
are missing at run time, which are none for a mask of all dimensions. An integer "mask" is an index and something else entirely (``boolean-mask``); where
nothing but its name says what it is, ``y[idx] = 0.0``, that is asked (``mask-despite-name``). A
value that the dtype cannot hold is truncated or becomes infinite by indexing, and is an error for
``masked_fill_`` (``value-fits-dtype``). Indexing takes a mask from the host, ``masked_fill_`` does
not (``same-device``). Elements that come from another tensor are the business of NPU211; rows of
new values (``x[mask] = rows``) have no such form.

References: "IndexPut operator" in the performance tuning guide of Ascend Extension for PyTorch;
case "affinity operator optimisation" (IndexPutV2) of the MindStudio guide;
torch.Tensor.masked_fill_.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.masks import (
    BOOLEAN_MASK,
    MASK_DESPITE_NAME,
    SAME_DEVICE,
    SAME_RANK_MASK,
    VECTOR_MASK,
    WRITTEN_TENSOR,
    holds_vectors,
)
from npufix.rules.substitution import (
    Condition,
    Draw,
    Form,
    Site,
    Substitution,
    either,
)
from npufix.rules.substitutions.masked_assignment_examples import REWRITTEN

if TYPE_CHECKING:
    from torch import Tensor

_MATRIX = 2
_LARGEST_HALF = 65504
_LARGEST_BFLOAT16 = 3.38953e38
_WIDE_FLOATS = frozenset({"float32", "float64"})
_INTEGERS = {
    "bool": (0, 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "int8": (-128, 127),
    "uint8": (0, 255),
}


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


def leading(mask: Tensor) -> Any:  # noqa: ANN401 - a tensor or a tuple with it
    """Return a mask over the first dimensions, where the others are spelled out."""
    return either((mask, slice(None)), (mask, ...))


def everywhere(x: Tensor, mask: Tensor, value: float) -> None:
    """Write one value where the mask is true."""
    x[spelled(mask)] = value


def trailing(x: Tensor, mask: Tensor, value: float) -> None:
    """Write one value where a mask over the last dimensions is true."""
    x[..., mask] = value


def columns(x: Tensor, mask: Tensor, value: float) -> None:
    """Write one value where a mask over all dimensions but the first is true."""
    x[:, mask] = value


def inner_columns(x: Tensor, mask: Tensor, value: float) -> None:
    """Write one value where a mask over all dimensions but the first two is true."""
    x[:, :, mask] = value


def rows(x: Tensor, mask: Tensor, value: float) -> None:
    """Write one value to the rows where the mask is true."""
    x[either(spelled(mask), leading(mask))] = value


def whole_rows(x: Tensor, mask: Tensor, value: float) -> None:
    """Write one value to what is spelled as rows: ``x[mask, :]``."""
    x[leading(mask)] = value


def whole_planes(x: Tensor, mask: Tensor, value: float) -> None:
    """Write one value to what is spelled as planes: ``x[mask, :, :]``."""
    x[mask, :, :] = value


def found(x: Tensor, mask: Tensor, value: float) -> None:
    """Write one value to the positions of a vector where the mask is true."""
    x[either(mask.nonzero(), mask.nonzero().squeeze(), positions(mask))] = value


def fill(x: Tensor, mask: Tensor, value: float) -> None:
    """Write in place, without looking for the positions first."""
    x.masked_fill_(mask, value)


def fill_rows(x: Tensor, mask: Tensor, value: float) -> None:
    """Write in place to whole rows."""
    x.masked_fill_(mask.unsqueeze(-1), value)


def fill_aligned(x: Tensor, mask: Tensor, value: float) -> None:
    """Write in place to all that the dimensions without a mask hold, however many there are."""
    x.masked_fill_(mask.view(mask.shape + (1,) * (x.dim() - mask.dim())), value)


def fill_planes(x: Tensor, mask: Tensor, value: float) -> None:
    """Write in place to all that the two dimensions without a mask hold."""
    x.masked_fill_(mask[..., None, None], value)


_SHAPES = ((5,), (1,), (3, 4), (3, 3), (2, 3, 4), (0, 3))


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor with NaN and infinities, a mask of its shape and a value."""
    shape = draw.choice(_SHAPES)
    return _filled(draw, shape, shape)


def row_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, often square, and a mask without its last dimension."""
    shape = draw.choice([(4, 4), (3, 2), (2, 2, 2), (0, 3)])
    return _filled(draw, shape, shape[:-1])


def plane_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, often a cube, and a mask without its last two dimensions."""
    shape = draw.choice([(3, 3, 3), (3, 2, 4), (2, 2, 2, 2)])
    return _filled(draw, shape, shape[:-2])


def any_rank_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, often a cube, and a mask of its first dimensions or of all of them."""
    return draw.choice([inputs, row_inputs, plane_inputs])(draw)


def trailing_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor and a mask of its last one or two dimensions."""
    shape = draw.choice([(4, 4), (3, 2), (2, 3, 2)])
    return _filled(draw, shape, shape[draw.integer(1, len(shape) - 1) :])


def column_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor and a mask without its first dimension."""
    shape = draw.choice([(4, 4), (3, 2), (2, 2, 2)])
    return _filled(draw, shape, shape[1:])


def inner_column_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor and a mask without its first two dimensions."""
    shape = draw.choice([(3, 3, 3), (2, 3, 4), (2, 2, 2, 2)])
    return _filled(draw, shape, shape[2:])


def vector_inputs(draw: Draw) -> dict[str, Any]:
    """Return a vector and a mask, sometimes with a single true element."""
    shape = (draw.integer(0, 5),)
    return _filled(draw, shape, shape)


def _filled(draw: Draw, shape: tuple[int, ...], masked: tuple[int, ...]) -> dict[str, Any]:
    import torch

    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    value = draw.choice([0, -100, 1.5, float("-inf"), torch.tensor(2.5, dtype=dtype)])
    mask = draw.booleans(*masked)
    return {"x": draw.wild(*shape, dtype=dtype), "mask": mask, "value": value}


def _fits(site: Site) -> bool | None:
    value, dtype = site.literal("value"), site.dtype("x")
    if value is None:
        return _unknown_fits(site)
    if isinstance(value, bool):
        return True if dtype == "bool" else None
    return _number_fits(value, dtype) if isinstance(value, (int, float)) else False


def _number_fits(value: float, dtype: str | None) -> bool | None:
    if dtype in _WIDE_FLOATS:
        return True
    if dtype in {"float16", "bfloat16"}:
        largest = _LARGEST_HALF if dtype == "float16" else _LARGEST_BFLOAT16
        return abs(value) <= largest or abs(value) == float("inf")
    if dtype is None:
        # Infinity is in all that do not refuse it in any case; a whole number that half precision
        # holds is in the others too, or both refuse or wrap it: 255 is -1 of ``uint8``.
        whole = abs(value) <= _LARGEST_HALF and value == int(value)
        return True if whole or abs(value) == float("inf") else None
    low, high = _INTEGERS.get(dtype, (0, -1))
    return isinstance(value, int) and low <= value <= high


def _unknown_fits(site: Site) -> bool | None:
    if site.is_number("value") is False or site.is_tensor("value"):
        # A tensor without dimensions is converted by both.
        return site.ndim("value") == 0
    if site.operator("value") == "item:call" and not site.is_number("value"):
        return False  # ``action, logprob = policy(obs[mask])`` has a row for each
    if site.is_limit_of("value", "x"):
        return True
    if site.is_int("value") and site.dtype("x") == "int64":
        return True
    return True if site.is_number("value") and site.dtype("x") in _WIDE_FLOATS else None


def _is_column_mask(site: Site) -> bool | None:
    more = site.more_dims("x", "mask")
    # The first dimension of a matrix is taken: a mask has one left, or none.
    return (True if site.ndim("x") == _MATRIX else None) if more is None else more == 1


def _has_rows(site: Site) -> bool | None:
    more = site.more_dims("x", "mask")
    if more is None and holds_vectors(site) and not site.is_test_of("mask", "x"):
        return None
    return more == 1


def _is_row_mask(site: Site) -> bool | None:
    more = site.more_dims("x", "mask")
    # A matrix has one dimension for the mask and one for the colon.
    return (True if site.ndim("x") == _MATRIX else None) if more is None else more == 1


ROW_MASK = Condition(
    "row-mask",
    "the mask has one dimension less than the tensor it is used on",
    _has_rows,
)
SPELLED_ROW_MASK = Condition(
    "row-mask",
    "the mask has one dimension less than the tensor it is used on",
    _is_row_mask,
)
PLANE_MASK = Condition(
    "plane-mask",
    "the mask has two dimensions less than the tensor it is used on",
    lambda site: site.more_dims("x", "mask") == 2,  # noqa: PLR2004 - trailing dimensions
)
SPELLED_PLANE_MASK = Condition(
    "plane-mask",
    "the mask has two dimensions less than the tensor it is used on",
    lambda site: None if (n := site.more_dims("x", "mask")) is None else n == 2,  # noqa: PLR2004
)
COLUMN_MASK = Condition(
    "column-mask",
    "the mask has the shape of the tensor without its first dimension",
    _is_column_mask,
)
INNER_COLUMN_MASK = Condition(
    "column-mask",
    "the mask has the shape of the tensor without its first two dimensions",
    lambda site: None if (n := site.more_dims("x", "mask")) is None else n == 2,  # noqa: PLR2004
)
FITS = Condition(
    "value-fits-dtype",
    "the value is a number that the dtype of the tensor can hold",
    _fits,
)
FOR_THIS = Condition(
    "found-for-this",
    "nobody else wants the places of the mask, which are found in any case then",
    lambda site: not site.finds_for_others("mask"),
)
START = (BOOLEAN_MASK, MASK_DESPITE_NAME, WRITTEN_TENSOR, SAME_DEVICE, FITS)

RULE = Substitution(
    id="NPU201",
    name="masked-assignment",
    summary="assignment through a boolean mask",
    table="affinity",
    forms=(
        Form(everywhere, fill, inputs, (*START, SAME_RANK_MASK, FOR_THIS)),
        Form(rows, fill_rows, row_inputs, (*START, ROW_MASK, FOR_THIS)),
        Form(whole_rows, fill_rows, row_inputs, (*START, SPELLED_ROW_MASK)),
        Form(rows, fill_planes, plane_inputs, (*START, PLANE_MASK, FOR_THIS)),
        Form(whole_planes, fill_planes, plane_inputs, (*START, SPELLED_PLANE_MASK)),
        Form(
            everywhere,
            fill_aligned,
            any_rank_inputs,
            (*START, FOR_THIS),
            only_proven=True,
            one_line=True,
        ),
        Form(trailing, fill, trailing_inputs, START),
        Form(columns, fill, column_inputs, (*START, COLUMN_MASK)),
        # not in doubt: ``k_cache[:, :, places] = k`` is how caches are written
        Form(
            inner_columns, fill, inner_column_inputs, (*START, INNER_COLUMN_MASK), only_proven=True
        ),
        Form(found, fill, vector_inputs, (*START, VECTOR_MASK, FOR_THIS)),
    ),
    replaces=(
        "IndexPut",
        "IndexPutV2",
        "IndexPutV3",
        "IndexPutWithSort",
        "IndexPutWithSortV2",
        "LinearIndex",
        "LinearIndexV2",
        "NonZero",
    ),
    becomes=("MaskedFill",),
    passes=(2, 2),
    requires="torch_npu>=2.1,<2.14",
    silent=(
        "later versions may be made of op-plugin's master branch, which sends x[mask] = number to "
        "masked_fill_ by itself since 2026-08-17; no release up to 26.1.0 does"
    ),
    valid=(
        # the places are found in any case: others are picked by them
        """
def clear(x: torch.Tensor, y: torch.Tensor, mask: torch.BoolTensor):
    at = mask.nonzero(as_tuple=True)
    x[at] = 0
    return y[at]
""",
        # an integer index
        """
def f(x: torch.Tensor, index: torch.Tensor, valid: torch.Tensor):
    x[index] = 0
    x[valid.nonzero()] = 0
""",
        # several results for the rows that are written
        """
class Pool(nn.Module):
    def forward(self, obs: torch.Tensor, mask: torch.BoolTensor):
        if self.lstm is None:
            action, logprob = self.policy(obs[mask])
        else:
            action, logprob, _ = self.policy(obs[mask], self.lstm)
        self.logprobs[mask] = logprob
        return action
""",
        # what makes arrays
        """
import pandas as pd


def closeness(rows):
    distances = pd.DataFrame(rows).corr().to_numpy()
    distances[distances == 0] = 0.5
    return 1.0 / distances
""",
        # rows of new values
        """
def f(x: torch.Tensor, y: torch.Tensor):
    x[x > 0] = y
""",
        # half precision cannot hold this
        """
def f(x: torch.Tensor, mask: torch.BoolTensor):
    x = x.half().view(-1)
    x[mask.view(-1)] = -1e9
""",
        # an integer "mask"
        """
def f(x: torch.Tensor, mask: torch.Tensor):
    x[mask.long()] = 0
""",
        # unsigned bytes
        """
def f(x: torch.Tensor, mask: torch.Tensor):
    x[mask.to(torch.uint8)] = 0
""",
        # two tensors
        """
def f(x: torch.Tensor, mask: torch.BoolTensor, index: torch.Tensor):
    x[mask, index] = 0
""",
        # NumPy
        """
def f(x: np.ndarray):
    x[x > 0] = 0
""",
        # an array, as NumPy computes with it
        """
def f(std):
    if np.any(std == 0):
        std[std == 0] = 1
    return std
""",
        # of a mask that would make the mask again
        """
def f(x: torch.Tensor, current: torch.Tensor, seen: torch.Tensor):
    seen.zero_()
    seen[current] = True
    return seen[x]
""",
        # some of the positions that were found
        """
def f(x: torch.Tensor, ids: torch.Tensor, keep: torch.Tensor):
    mask = (ids == 1).nonzero().view(-1)
    x[mask[keep]] = 1
""",
        # what a result holds for each row
        """
def f(x: torch.Tensor, mask: torch.BoolTensor, assigner):
    x[mask] = assigner(x).labels
""",
        # a mask of the rows of what is one dimension wider
        """
def f(sums, counts: torch.Tensor):
    means = sums / counts.unsqueeze(1)
    means[counts == 0] = -1
""",
        # a mask with one dimension of its tensor less than there are left
        """
def f(x: torch.Tensor):
    b, h, n, m = x.shape
    mask = x.new_zeros(n).bool()
    x[:, :, mask] = 0
""",
        # a slice and a mask
        """
def f(x: torch.Tensor, mask: torch.BoolTensor):
    x[:, mask] = 0
""",
    ),
    rewritten=REWRITTEN,
)
