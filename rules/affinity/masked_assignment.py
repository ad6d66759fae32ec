"""Assignment through a boolean mask: ``x[mask] = value``.

What: a constant is written to the places of a tensor where a mask of the same number of
dimensions is true.

Why it is slow on the NPU: indexing with a mask needs the positions first. NonZero counts them,
which makes the host wait for the device, and IndexPutV2 then writes element by element; some
dtypes and sizes send it to the AI CPU. It has been seen to take three quarters of a training
step. ``masked_fill_`` is one vector kernel over the tensor, without a count and without a wait.

Safety: ``masked_fill_`` writes to the same tensor in place, so views, aliases and autograd see
what they saw before, and what the mask covers may hold NaN or infinity. (The multiplication
``x *= ~mask`` that is often recommended turns both into NaN and is not used here.) A mask is
aligned with the last dimensions by ``masked_fill_`` but with the first by indexing, so both must
have the same number of dimensions (condition ``same-rank-mask``). An integer "mask" is an index
and something else entirely (``boolean-mask``). A value that the dtype cannot hold is truncated or
becomes infinite by indexing, and is an error for ``masked_fill_`` (``value-fits-dtype``). Indexing
takes a mask from the host, ``masked_fill_`` does not (``same-device``).

References: "IndexPut operator" in the performance tuning guide of Ascend Extension for PyTorch;
torch.Tensor.masked_fill_.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution

if TYPE_CHECKING:
    from torch import Tensor

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


def literal_value(x: Tensor, mask: Tensor, literal_value: float) -> None:
    """Write a constant where the mask is true."""
    x[mask] = literal_value


def any_value(x: Tensor, mask: Tensor, value: float) -> None:
    """Write a number that is known only at run time where the mask is true."""
    x[mask] = value


def fill_literal(x: Tensor, mask: Tensor, literal_value: float) -> None:
    """Write in place, without looking for the positions first."""
    x.masked_fill_(mask, literal_value)


def fill(x: Tensor, mask: Tensor, value: float) -> None:
    """Write in place, without looking for the positions first."""
    x.masked_fill_(mask, value)


def literal_inputs(draw: Draw) -> dict[str, Any]:
    """Return ``inputs`` with the value under the name of a literal."""
    given = inputs(draw)
    return {"x": given["x"], "mask": given["mask"], "literal_value": given["value"]}


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor with NaN and infinities, and a mask of its shape."""
    import torch

    shape = draw.choice([(5,), (3, 4), (2, 3, 4), (0, 3)])
    value = draw.choice([0, -100, 1.5, float("-inf")])
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    return {
        "x": draw.wild(*shape, dtype=dtype),
        "mask": draw.booleans(*shape),
        "value": value,
    }


def _fits(site: Site) -> bool | None:
    value, dtype = site.literal("literal_value"), site.dtype("x")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if dtype in _WIDE_FLOATS:
        return True
    if dtype in {"float16", "bfloat16"}:
        largest = _LARGEST_HALF if dtype == "float16" else _LARGEST_BFLOAT16
        return abs(value) <= largest or abs(value) == float("inf")
    if dtype is None:
        # Zero and one are in every dtype.
        return True if value in {0, 1} else None
    low, high = _INTEGERS.get(dtype, (0, -1))
    return isinstance(value, int) and low <= value <= high


def _number_fits(site: Site) -> bool | None:
    if site.is_number("value") is False:
        return False
    if site.is_limit_of("value", "x"):
        return True
    if site.is_int("value") and site.dtype("x") == "int64":
        return True
    return True if site.is_number("value") and site.dtype("x") in _WIDE_FLOATS else None


BOOLEAN_MASK = Condition(
    "boolean-mask",
    "the index is a tensor of dtype bool",
    lambda site: site.is_bool_tensor("mask"),
)
SAME_RANK_MASK = Condition(
    "same-rank-mask",
    "the mask has as many dimensions as the tensor it is used on",
    lambda site: site.same_ndim("x", "mask"),
)
IS_TENSOR = Condition(
    "is-tensor",
    "the object that is written to is a torch tensor, not a NumPy array",
    lambda site: site.is_tensor("x"),
)
SAME_DEVICE = Condition(
    "same-device",
    "the mask is on the device of the tensor",
    lambda site: site.same_device("x", "mask"),
)
VALUE_FITS = Condition("value-fits-dtype", "the dtype of the tensor can hold the value", _fits)
NUMBER_FITS = Condition(
    "value-fits-dtype",
    "the value is a number that the dtype of the tensor can hold",
    _number_fits,
)

RULE = Substitution(
    id="NPU201",
    name="masked-assignment",
    summary="assignment through a boolean mask",
    table="affinity",
    forms=(
        Form(
            literal_value,
            fill_literal,
            literal_inputs,
            (BOOLEAN_MASK, IS_TENSOR, SAME_RANK_MASK, SAME_DEVICE, VALUE_FITS),
        ),
        Form(
            any_value,
            fill,
            inputs,
            (BOOLEAN_MASK, IS_TENSOR, SAME_RANK_MASK, SAME_DEVICE, NUMBER_FITS),
        ),
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
    requires="torch_npu>=2.1",
    valid=(
        # an integer index
        """
def f(x: torch.Tensor, index: torch.Tensor, valid: torch.Tensor):
    x[index] = 0
    x[valid.nonzero()] = 0
""",
        # the values are a tensor of their own
        """
def f(x: torch.Tensor, y: torch.Tensor):
    mask = x > 0
    x[mask] = y[mask]
""",
        # NumPy
        """
def f(x: np.ndarray):
    x[x > 0] = 0
""",
        # a mask over the rows of a matrix
        """
def f(x: torch.Tensor):
    rows = x.sum(-1) > 0
    x[rows] = 0
""",
        # a slice and a mask
        """
def f(x: torch.Tensor, mask: torch.BoolTensor):
    x[:, mask] = 0
""",
    ),
    rewritten=(
        Rewritten(
            """
def f(x: torch.Tensor):
    x[x < 0] = 0
    return x
""",
            """
def f(x: torch.Tensor):
    x.masked_fill_(x < 0, 0)
    return x
""",
        ),
        Rewritten(
            """
def clean(grad: torch.Tensor):
    bad = torch.isnan(grad) | torch.isinf(grad)
    grad[bad] = 0  # a NaN must not survive
    return grad
""",
            """
def clean(grad: torch.Tensor):
    bad = torch.isnan(grad) | torch.isinf(grad)
    grad.masked_fill_(bad, 0)  # a NaN must not survive
    return grad
""",
        ),
    ),
)
