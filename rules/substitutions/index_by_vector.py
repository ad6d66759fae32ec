"""Rows picked, or set to one value, by a vector of positions.

What: ``x[index]`` and ``x[:, index]`` with one vector of integers, and ``x[index] = number``.

Why it is slow on the NPU: Index and IndexPut handle any combination of indices: they compute the
address of each element, and several dtypes and sizes send them to the AI CPU. One vector of rows is
``index_select``, which GatherV2 does on the AI Core for whole rows, and ``index_fill_``. In the
backward pass an accumulating IndexPut becomes an addition per row. Reported only where the profile
shows an Index or IndexPut kernel at that line.

Safety: the same elements. Only what is proven to be a vector of int32 or int64 matches: a mask or a
table of positions means something else. ``index_select`` refuses negative positions, which indexing
counts from the end (condition ``nonnegative-index``; proven for ``arange``, ``argsort``, ``topk``,
``nonzero``, ``randperm``), and an index on another device (``same-device``). Duplicates are fine:
all of them get the same value.

References: "AI CPU operator replacement samples" (index, index_put by index) of msprof-analyze;
torch.index_select; torch.Tensor.index_fill_.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution

if TYPE_CHECKING:
    from torch import Tensor


def picked(x: Tensor, index: Tensor) -> Tensor:
    """Pick rows."""
    return x[index]


def select(x: Tensor, index: Tensor) -> Tensor:
    """Select rows."""
    return x.index_select(0, index)


def picked_columns(x: Tensor, index: Tensor) -> Tensor:
    """Pick along the second dimension."""
    return x[:, index]


def select_columns(x: Tensor, index: Tensor) -> Tensor:
    """Select along the second dimension."""
    return x.index_select(1, index)


def assigned(x: Tensor, index: Tensor, literal_value: float) -> None:
    """Set rows to one value."""
    x[index] = literal_value


def fill(x: Tensor, index: Tensor, literal_value: float) -> None:
    """Fill rows with one value."""
    x.index_fill_(0, index, literal_value)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor and positions along its first dimension, with duplicates."""
    import torch

    length = draw.integer(1, 5)
    shape = draw.choice([(length,), (length, 3), (length, 2, 2)])
    dtype = draw.choice([torch.float32, torch.bfloat16])
    index = draw.integers(draw.integer(0, 7), low=0, high=length - 1)
    return {"x": draw.wild(*shape, dtype=dtype), "index": index}


def column_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor and positions along its second dimension."""
    given = inputs(draw)
    x = given["x"]
    return {"x": x.unsqueeze(0).expand(2, *x.shape).clone(), "index": given["index"]}


def fill_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, positions and a value."""
    return {**inputs(draw), "literal_value": draw.choice([0, 1, -2.5])}


def _is_vector(site: Site) -> bool:
    return site.dtype("index") in {"int32", "int64"} and site.ndim("index") == 1


def _fits(site: Site) -> bool | None:
    value = site.literal("literal_value")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return True if value in {0, 1} or site.dtype("x") in {"float32", "float64"} else None


IS_TENSOR = Condition("is-tensor", "the object is a torch tensor", lambda site: site.is_tensor("x"))
INDEX = Condition("integer-vector", "the index is a vector of integers", _is_vector)
NOT_NEGATIVE = Condition(
    "nonnegative-index",
    "no position counts from the end",
    lambda site: site.is_position("index"),
)
SAME_DEVICE = Condition(
    "same-device",
    "the index is on the device of the tensor",
    lambda site: site.same_device("x", "index"),
)
FITS = Condition("value-fits-dtype", "the dtype of the tensor can hold the value", _fits)
CONDITIONS = (INDEX, IS_TENSOR, NOT_NEGATIVE, SAME_DEVICE)

RULE = Substitution(
    id="NPU210",
    name="index-by-vector",
    summary="rows picked or set by a vector of positions",
    table="affinity",
    forms=(
        Form(picked, select, inputs, CONDITIONS),
        Form(picked_columns, select_columns, column_inputs, CONDITIONS),
        Form(assigned, fill, fill_inputs, (*CONDITIONS, FITS)),
    ),
    replaces=(
        "Index",
        "IndexByTensor",
        "IndexPut",
        "IndexPutV2",
        "IndexPutV3",
        "IndexPutWithSort",
        "IndexPutWithSortV2",
        "LinearIndex",
        "LinearIndexV2",
    ),
    becomes=("GatherV2", "GatherV3", "IndexFill", "InplaceIndexFill", "InplaceIndexAdd"),
    passes=(2, 2),
    requires="torch_npu>=2.1",
    launches_together=(
        ("Index", "IndexByTensor", "IndexPut", "IndexPutV2", "IndexPutV3", "IndexPutWithSort"),
    ),
    valid=(
        # a mask
        """
def f(x: torch.Tensor):
    return x[x > 0]
""",
        # a table of positions
        """
def f(x: torch.Tensor):
    return x[(x > 0).nonzero()]
""",
        # nothing is known about the index
        """
def f(x: torch.Tensor, i: torch.Tensor):
    return x[i]
""",
        # two indices
        """
def f(x: torch.Tensor, labels: torch.Tensor):
    return x[torch.arange(4, device=x.device), labels]
""",
        # positions may be negative
        """
def f(x: torch.Tensor, i: torch.Tensor):
    return x[i.long().view(-1)]
""",
    ),
    rewritten=(
        Rewritten(
            """
def f(x: torch.Tensor, scores: torch.Tensor):
    scores = scores.view(-1)
    order = scores.argsort(descending=True)
    return x[order]
""",
            """
def f(x: torch.Tensor, scores: torch.Tensor):
    scores = scores.view(-1)
    order = scores.argsort(descending=True)
    return x.index_select(0, order)
""",
        ),
        Rewritten(
            """
def f(x: torch.Tensor, scores: torch.Tensor):
    best = scores.view(-1).topk(5).indices
    x[best] = 0
    return x
""",
            """
def f(x: torch.Tensor, scores: torch.Tensor):
    best = scores.view(-1).topk(5).indices
    x.index_fill_(0, best, 0)
    return x
""",
        ),
    ),
)
