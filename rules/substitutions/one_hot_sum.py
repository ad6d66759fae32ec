"""Counting classes with ``one_hot(...).sum(...)``.

What: the one-hot encoding of several indices per row is summed over the indices, to get how often
each class occurs in the row (the expert mask of a mixture of experts).

Why it is slow on the NPU: one_hot writes a tensor that is ``num_classes`` times as large as the
indices, and ReduceSum reads all of it again; finding out the number of classes, where it is not
given, makes the host wait. Scattering ones into the result writes only what is not zero. In the
dtype that is wanted in the end (``.float()``, ``.to(x.dtype)``) it is an AI Core kernel; for int64
it is not.

Safety: ``scatter_add_`` counts, so duplicates in a row are kept, and the result has the dtype of
the indices, as before, or the one that it was converted to. (The official recipe, ``scatter_`` in
bfloat16, loses both.) Half precision cannot count beyond 256 (bfloat16) or 2048 (float16) one by
one (condition ``few-indices``). ``one_hot`` of torch_npu returns the dtype of its input where torch
returns int64; the rewritten code does so everywhere. Where the indices of a row are proven to be different (they come from
``topk``), ``scatter_`` does the same and needs no tensor of ones. The sum must run over the index
dimension (condition ``sum-over-indices``): over the rows it is a histogram per position.

References: case "affinity operator optimisation" (Reduce_Sum) of the MindStudio guide;
torch.nn.functional.one_hot; torch.Tensor.scatter_add_.
"""

from __future__ import annotations

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
    import torch.nn.functional as F
    from torch import Tensor


_EXACT_UP_TO = {"float16": 2048, "bfloat16": 256, "float32": 2**24, "float64": 2**53}


def counted(indices: Tensor, classes: int, literal_dim: int) -> Tensor:
    """Count how often each class occurs."""
    return F.one_hot(indices, num_classes=classes).sum(dim=literal_dim)


def counted_as(indices: Tensor, classes: int, literal_dim: int, dtype: torch.dtype) -> Tensor:
    """Count how often each class occurs, as another dtype."""
    return either(
        F.one_hot(indices, num_classes=classes).sum(dim=literal_dim).to(dtype),
        F.one_hot(indices, num_classes=classes).to(dtype).sum(dim=literal_dim),
    )


def scatter_ones_as(
    indices: Tensor,
    classes: int,
    literal_dim: int,
    dtype: torch.dtype,
) -> Tensor:
    """Write a one of another dtype for each class that occurs; no class occurs twice in a row."""
    return indices.new_zeros(*indices.shape[:-1], classes, dtype=dtype).scatter_(-1, indices, 1)


def add_ones_as(
    indices: Tensor,
    classes: int,
    literal_dim: int,
    dtype: torch.dtype,
) -> Tensor:
    """Add a one of another dtype for each occurrence."""
    return indices.new_zeros(*indices.shape[:-1], classes, dtype=dtype).scatter_add_(
        -1, indices, torch.ones_like(indices, dtype=dtype)
    )


def scatter_ones(indices: Tensor, classes: int, literal_dim: int) -> Tensor:
    """Write a one for each class that occurs; no class occurs twice in a row."""
    return indices.new_zeros(*indices.shape[:-1], classes).scatter_(-1, indices, 1)


def add_ones(indices: Tensor, classes: int, literal_dim: int) -> Tensor:
    """Add a one for each occurrence."""
    return indices.new_zeros(*indices.shape[:-1], classes).scatter_add_(
        -1, indices, torch.ones_like(indices)
    )


def inputs(draw: Draw) -> dict[str, Any]:
    """Return indices with duplicates."""
    classes = draw.integer(1, 6)
    shape = draw.choice([(4,), (3, 2), (2, 3, 4)])
    return {
        "indices": draw.integers(*shape, low=0, high=classes - 1),
        "classes": classes,
        "literal_dim": draw.choice([-2, len(shape) - 1]),
    }


def unique_inputs(draw: Draw) -> dict[str, Any]:
    """Return indices that differ within each row."""
    import torch

    classes = draw.integer(3, 6)
    scores = draw.floats(draw.integer(1, 4), classes, dtype=torch.float32)
    return {
        "indices": torch.argsort(scores, dim=-1)[:, :3].contiguous(),
        "classes": classes,
        "literal_dim": draw.choice([-2, 1]),
    }


def typed_inputs(draw: Draw) -> dict[str, Any]:
    """Return indices with duplicates and a dtype."""
    import torch

    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    return {**inputs(draw), "dtype": dtype}


def typed_unique_inputs(draw: Draw) -> dict[str, Any]:
    """Return indices that differ within each row and a dtype."""
    import torch

    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    return {**unique_inputs(draw), "dtype": dtype}


def _float_dtype(site: Site) -> bool | None:
    # A sum of small integers is int64 again.
    dtype = site.dtype("dtype")
    return None if dtype is None else dtype in _EXACT_UP_TO


def _few(site: Site) -> bool | None:
    largest = _EXACT_UP_TO.get(site.dtype("dtype") or "float32", 0)
    count = site.size("indices", -1)
    if site.dtype("dtype") in {"float32", "float64"}:
        return True
    return None if count is None else count <= largest


def _over_indices(site: Site) -> bool | None:
    dim, ndim = site.literal("literal_dim"), site.ndim("indices")
    if not isinstance(dim, int) or isinstance(dim, bool):
        return False
    if dim == -2:  # noqa: PLR2004 - the dimension before the classes
        return True
    return dim == ndim - 1 if ndim is not None and dim >= 0 else (None if dim > 0 else False)


def _given(site: Site) -> bool | None:
    # -1 asks one_hot to look for the largest index: the number of classes is not known then
    number = site.literal("classes")
    if isinstance(number, int):
        return number >= 0
    # An attribute is a setting; the argument of a function may be -1 as well.
    return None if site.is_argument("classes") else True


SUM_OVER_INDICES = Condition(
    "sum-over-indices", "the sum runs over the last dimension of the indices", _over_indices
)
CLASSES_GIVEN = Condition("number-of-classes", "the number of classes is given", _given)
UNIQUE = Condition(
    "unique-indices",
    "the indices of a row are all different",
    lambda site: site.is_unique("indices") or False,
)

FLOAT = Condition("float-dtype", "the result is converted to a floating dtype", _float_dtype)
FEW = Condition(
    "few-indices", "a row has no more indices than the dtype can count one by one", _few
)
START = (SUM_OVER_INDICES, CLASSES_GIVEN)

RULE = Substitution(
    id="NPU204",
    name="one-hot-sum",
    summary="counting classes with one_hot and sum",
    table="affinity",
    forms=(
        Form(counted_as, scatter_ones_as, typed_unique_inputs, (*START, FLOAT, UNIQUE)),
        Form(counted_as, add_ones_as, typed_inputs, (*START, FLOAT, FEW)),
        Form(counted, scatter_ones, unique_inputs, (*START, UNIQUE)),
        Form(counted, add_ones, inputs, START),
    ),
    replaces=("OneHot", "ReduceSum", "ReduceSumD", "Cast", "ScatterElements", "ScatterElementsV2"),
    becomes=("ZerosLike", "ScatterElementsV2"),
    passes=(2, 0),
    requires="torch_npu>=2.1",
    valid=(
        # a histogram per position, not per row
        """
def f(indices: torch.Tensor):
    b, k = indices.shape
    return F.one_hot(indices, num_classes=8).sum(dim=0)
""",
        # the number of classes is found at run time
        """
def f(indices: torch.Tensor):
    return F.one_hot(indices).sum(dim=-2)
""",
        # not summed
        """
def f(indices: torch.Tensor):
    return F.one_hot(indices, num_classes=8).float()
""",
    ),
    rewritten=(
        Rewritten(
            """
def expert_mask(scores: torch.Tensor):
    indices = scores.topk(2, dim=-1)[1]
    mask = F.one_hot(indices, num_classes=8).sum(dim=-2)
    return mask
""",
            """
def expert_mask(scores: torch.Tensor):
    indices = scores.topk(2, dim=-1)[1]
    mask = indices.new_zeros(*indices.shape[:-1], 8).scatter_(-1, indices, 1)
    return mask
""",
        ),
        Rewritten(
            """
def histogram(bins: torch.Tensor, n: int):
    rows, k = bins.shape
    return F.one_hot(bins, n).sum(1)
""",
            """
def histogram(bins: torch.Tensor, n: int):
    rows, k = bins.shape
    return bins.new_zeros(*bins.shape[:-1], n).scatter_add_(
        -1, bins, torch.ones_like(bins)
    )
""",
        ),
        Rewritten(
            """
def router_mask(scores: torch.Tensor, hidden: torch.Tensor):
    indices = scores.topk(2, dim=-1)[1]
    mask = F.one_hot(indices, num_classes=8).sum(dim=-2).to(torch.bfloat16)
    return mask * hidden
""",
            """
def router_mask(scores: torch.Tensor, hidden: torch.Tensor):
    indices = scores.topk(2, dim=-1)[1]
    mask = indices.new_zeros(
        *indices.shape[:-1], 8, dtype=torch.bfloat16
    ).scatter_(-1, indices, 1)
    return mask * hidden
""",
        ),
        Rewritten(
            """
def histogram(bins: torch.Tensor, n: int):
    return F.one_hot(bins, n).float().sum(-2)
""",
            """
def histogram(bins: torch.Tensor, n: int):
    return bins.new_zeros(
        *bins.shape[:-1], n, dtype=torch.float32
    ).scatter_add_(-1, bins, torch.ones_like(bins, dtype=torch.float32))
""",
        ),
    ),
)
