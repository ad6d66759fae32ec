"""Positions that are looked for only to count them or to add up what stands there.

What: ``m.nonzero().numel() > 0``, ``len(m.nonzero())``, ``m.nonzero().size(0)``, and sums or
means over the elements that a mask picks: ``a[m].sum()``, ``a[m.nonzero().squeeze(1)].sum()``,
``a[m].mean()``, and their smallest and largest, ``a[m].min()``.

Why it is slow on the NPU: how many positions there are decides the shape of the result, so the
host waits for NonZero and all launches behind it are late; int64 masks go to the AI CPU.
``any``, ``count_nonzero`` and a sum over ``where(m, a, 0)`` have a fixed shape: nothing waits
before the value itself is read.

Safety: counting is exact. The sum is over the same values in another grouping; what the mask
leaves out may be NaN or infinite, for it is replaced and not multiplied by zero (as the official
recipe does). ``mean`` is that sum divided by the number of elements, NaN where there is none; its
sum must fit the dtype (``sum-fits-dtype``). ``min`` and ``max`` see an infinity in place of what is left
out, which floats alone have (``floating-point``); of nothing they raise, and would return it (``some-picked``). The mask must be
boolean (``boolean-mask``), and must have the shape of the tensor (``same-rank-mask``), or be known to
lack its last dimension (``row-mask``); that of
``masked_select`` is boolean, and is expanded to it (``mask-expands``); an index made
with ``nonzero`` must be that of a vector (``vector-mask``). The positions of a tensor without
dimensions have no coordinates, so ``numel()`` is 0 whatever it holds (``has-dimensions``).

References: "NonZero operator" in the performance tuning guide of Ascend Extension for PyTorch;
torch.count_nonzero; torch.where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.masks import BOOLEAN_MASK, SAME_RANK_MASK, VECTOR_MASK
from npufix.rules.substitution import (
    Condition,
    Draw,
    Form,
    Rewritten,
    Substitution,
    either,
)
from npufix.rules.substitutions.nonzero_reduction_forms import (
    FLOATS,
    ONE_COORDINATE,
    SOME_PICKED,
    coordinates,
    count_of_vector,
    extreme_inputs,
    flag_inputs,
    greatest_masked,
    greatest_picked,
    least_masked,
    least_picked,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def found(mask: Tensor) -> bool:
    """Ask whether there are positions by counting them."""
    return either(
        mask.nonzero().size(0) > 0,
        len(mask.nonzero()) > 0,
        mask.nonzero().size(0) != 0,
        len(mask.nonzero()) != 0,
        mask.nonzero().size(0) >= 1,
        len(mask.nonzero()) >= 1,
    )


def any_set(mask: Tensor) -> bool:
    """Ask for it directly; only the answer is waited for."""
    return mask.any().item()  # type: ignore[return-value]  # of a mask: a bool


def not_found(mask: Tensor) -> bool:
    """Ask whether there are no positions by counting them."""
    return either(
        mask.nonzero().size(0) == 0,
        len(mask.nonzero()) == 0,
    )


def none_set(mask: Tensor) -> bool:
    """Ask for it directly; only the answer is waited for."""
    return not mask.any().item()


def elements(mask: Tensor) -> bool:
    """Ask whether there are positions by the size of the table of them."""
    return either(mask.nonzero().numel() > 0, mask.nonzero().numel() != 0)


def no_elements(mask: Tensor) -> bool:
    """Ask whether there are no positions by the size of the table of them."""
    return mask.nonzero().numel() == 0


def counted(mask: Tensor) -> int:
    """Find the positions and count them."""
    return either(
        mask.nonzero().size(0),
        len(mask.nonzero()),
        len(mask.nonzero(as_tuple=True)[0]),
        mask.nonzero(as_tuple=True)[0].numel(),
        mask.nonzero(as_tuple=True)[0].size(0),
    )


def count(mask: Tensor) -> int:
    """Count without finding positions."""
    return torch.count_nonzero(mask).item()  # type: ignore[return-value]  # int64: an int


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


def picked(x: Tensor, mask: Tensor) -> Tensor:
    """Pick elements, then add them up."""
    return either(
        x[mask.nonzero(as_tuple=True)].sum(),
        x[mask].sum(),
    )


def mean_of_picked(x: Tensor, mask: Tensor) -> Tensor:
    """Pick elements, then take their mean."""
    return either(x[mask].mean(), x[torch.where(mask)].mean())


def mean_of_masked(x: Tensor, mask: Tensor) -> Tensor:
    """Add up with zeros in place of what is not picked, divide by the number of what is."""
    return torch.where(mask, x, 0).sum() / mask.sum()


def picked_vectors(x: Tensor, mask: Tensor) -> Tensor:
    """Pick vectors by a mask without the last dimension, then add up what they hold."""
    return x[mask].sum()


def masked_vectors(x: Tensor, mask: Tensor) -> Tensor:
    """Add up everything, with zeros in place of the vectors that are not picked."""
    return torch.where(mask.unsqueeze(-1), x, 0).sum()


def mean_of_picked_vectors(x: Tensor, mask: Tensor) -> Tensor:
    """Pick vectors by a mask without the last dimension, then take the mean of all they hold."""
    return x[mask].mean()


def mean_of_masked_vectors(x: Tensor, mask: Tensor) -> Tensor:
    """Divide by the number of what the picked vectors hold."""
    return torch.where(mask.unsqueeze(-1), x, 0).sum() / (mask.sum() * x.size(-1))


def selected(x: Tensor, mask: Tensor) -> Tensor:
    """Pick the elements of a tensor and a mask that are expanded to one shape, add them up."""
    return x.masked_select(mask).sum()


def mean_of_selected(x: Tensor, mask: Tensor) -> Tensor:
    """Pick elements by a mask that is expanded to the shape of the tensor, take their mean."""
    return x.masked_select(mask).mean()


def mean_of_expanded(x: Tensor, mask: Tensor) -> Tensor:
    """Divide by the number of what is picked, in the shape of the tensor."""
    return torch.where(mask, x, 0).sum() / mask.expand_as(x).sum()


def picked_by_index(x: Tensor, mask: Tensor) -> Tensor:
    """Find positions in a vector, pick the elements, then add them up."""
    return x[either(mask.nonzero(), mask.nonzero().squeeze(), positions(mask))].sum()


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """Add up everything, with zeros in place of what is not picked."""
    return torch.where(mask, x, 0).sum()


def mask_inputs(draw: Draw) -> dict[str, Any]:
    """Return a mask, often without any true element."""
    shape = draw.choice([(4,), (1,), (2, 3), (0, 3)])
    return {"mask": draw.booleans(*shape) & bool(draw.integer(0, 2))}


def picked_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor that is NaN or infinite outside of a mask, and the mask."""
    return _masked(draw, draw.choice([(5,), (1,), (3, 4), (0, 3)]))


def mean_inputs(draw: Draw) -> dict[str, Any]:
    """Return floats that are NaN or infinite outside of a mask, and the mask, often all false."""
    import torch

    shape = draw.choice([(5,), (1,), (3, 4), (0, 3)])
    mask = draw.booleans(*shape) & bool(draw.integer(0, 3))
    dtype = draw.choice([torch.float32, torch.bfloat16])
    kept, other = draw.floats(*shape, dtype=dtype), draw.wild(*shape, dtype=dtype)
    return {"x": torch.where(mask, kept, other), "mask": mask}


def vectors_inputs(draw: Draw) -> dict[str, Any]:
    """Return vectors that are NaN or infinite outside of a mask of them, and the mask."""
    import torch

    shape = draw.choice([(5, 3), (2, 4, 3), (1, 1), (0, 3), (4, 0)])
    mask = draw.booleans(*shape[:-1]) & bool(draw.integer(0, 3))
    dtype = draw.choice([torch.float32, torch.bfloat16])
    kept, other = draw.floats(*shape, dtype=dtype), draw.wild(*shape, dtype=dtype)
    return {"x": torch.where(mask.unsqueeze(-1), kept, other), "mask": mask}


def _expanded(draw: Draw, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return a tensor and a mask of places in its last dimension, or of vectors in it."""
    x = inputs["x"]
    shape = draw.choice([x.shape, (*x.shape[:-1], 1), x.shape[-1:]])
    return {
        "x": x.nan_to_num(0, 0, 0) if x.is_floating_point() else x,
        "mask": draw.booleans(*shape),
    }


def selected_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor and a mask that is expanded to its shape."""
    return _expanded(draw, picked_inputs(draw))


def mean_selected_inputs(draw: Draw) -> dict[str, Any]:
    """Return floats and a mask that is expanded to their shape."""
    return _expanded(draw, mean_inputs(draw))


def vector_inputs(draw: Draw) -> dict[str, Any]:
    """Return a vector that is NaN or infinite outside of a mask, and the mask."""
    return _masked(draw, (draw.integer(0, 6),))


def _masked(draw: Draw, shape: tuple[int, ...]) -> dict[str, Any]:
    import torch

    mask = draw.booleans(*shape)
    if draw.choice([False, False, True]):
        return {"x": draw.integers(*shape, low=-3, high=3), "mask": mask}
    dtype = draw.choice([torch.float32, torch.bfloat16])
    kept, other = draw.floats(*shape, dtype=dtype), draw.wild(*shape, dtype=dtype)
    return {"x": torch.where(mask, kept, other), "mask": mask}


IS_TENSOR = Condition(
    "is-tensor",
    "the object is a torch tensor, not a NumPy array",
    lambda site: site.is_tensor("x"),
)
MASK_IS_TENSOR = Condition(
    "is-tensor",
    "the object is a torch tensor, not a NumPy array",
    lambda site: site.is_tensor("mask"),
)

HAS_DIMENSIONS = Condition(
    "has-dimensions",
    "the tensor has at least one dimension",
    lambda site: None if (n := site.ndim("mask")) is None else n > 0,
)

SUM_FITS = Condition(
    "sum-fits-dtype",
    "the tensor is of floats whose sum its dtype can hold: float16 ends at 65504",
    lambda site: True if site.dtype("x") in {"float32", "float64", "bfloat16"} else None,
)

MASK_EXPANDS = Condition(
    "mask-expands",
    "the mask can be expanded to the shape of the tensor, which has no fewer elements",
    lambda site: site.is_test_of("mask", "x"),
)

MASK_OF_VECTORS = Condition(
    "row-mask",
    "the mask has one dimension less than the tensor it is used on",
    lambda site: site.more_dims("x", "mask") == 1,
)

RULE = Substitution(
    id="NPU209",
    name="nonzero-then-reduce",
    summary="positions found only to count or add up elements",
    table="affinity",
    forms=(
        Form(found, any_set, mask_inputs, (MASK_IS_TENSOR,)),
        Form(not_found, none_set, mask_inputs, (MASK_IS_TENSOR,)),
        Form(elements, any_set, mask_inputs, (MASK_IS_TENSOR, HAS_DIMENSIONS)),
        Form(no_elements, none_set, mask_inputs, (MASK_IS_TENSOR, HAS_DIMENSIONS)),
        Form(counted, count, mask_inputs, (MASK_IS_TENSOR,)),
        Form(coordinates, count_of_vector, flag_inputs, (MASK_IS_TENSOR, ONE_COORDINATE)),
        Form(picked, masked, picked_inputs, (BOOLEAN_MASK, IS_TENSOR, SAME_RANK_MASK)),
        Form(
            mean_of_picked,
            mean_of_masked,
            mean_inputs,
            (BOOLEAN_MASK, IS_TENSOR, SAME_RANK_MASK, SUM_FITS),
        ),
        Form(
            least_picked,
            least_masked,
            extreme_inputs,
            (BOOLEAN_MASK, IS_TENSOR, SAME_RANK_MASK, FLOATS, SOME_PICKED),
        ),
        Form(
            greatest_picked,
            greatest_masked,
            extreme_inputs,
            (BOOLEAN_MASK, IS_TENSOR, SAME_RANK_MASK, FLOATS, SOME_PICKED),
        ),
        Form(
            picked_vectors,
            masked_vectors,
            vectors_inputs,
            (BOOLEAN_MASK, IS_TENSOR, MASK_OF_VECTORS),
        ),
        Form(
            mean_of_picked_vectors,
            mean_of_masked_vectors,
            vectors_inputs,
            (BOOLEAN_MASK, IS_TENSOR, MASK_OF_VECTORS, SUM_FITS),
        ),
        Form(selected, masked, selected_inputs, (IS_TENSOR,)),
        Form(
            mean_of_selected,
            mean_of_expanded,
            mean_selected_inputs,
            (IS_TENSOR, MASK_EXPANDS, SUM_FITS),
        ),
        Form(picked_by_index, masked, vector_inputs, (BOOLEAN_MASK, IS_TENSOR, VECTOR_MASK)),
    ),
    replaces=("NonZero", "NonZeroV2", "Index", "IndexByTensor", "GatherV2", "MaskedSelect"),
    becomes=("ReduceAny", "ReduceSum", "ReduceMin", "ReduceMax", "SelectV2"),
    passes=(3, 2),
    requires="torch_npu>=2.1",
    needs_whole=True,
    valid=(
        # the positions themselves are needed
        """
def f(x: torch.Tensor):
    i = (x > 0).nonzero().squeeze(1)
    return x[i].sum(), i
""",
        # on the host
        """
def keep(items):
    return [i for i in items if len(torch.nonzero(torch.tensor(i["null"]).float())) == 0]
""",
        # the zeros would be seen
        """
def f(x: torch.Tensor):
    return x[x > 0].median()
""",
        # the smallest of each column, with its place; of integers, which have no infinity
        """
def f(x: torch.Tensor, n: torch.LongTensor):
    return x[x > 0].min(0), n[n > 0].min()
""",
        # matrices are picked, not elements
        """
def f(x: torch.Tensor, mask: torch.BoolTensor):
    n, d, k = x.shape
    (n,) = mask.shape
    return x[mask].sum()
""",
        # an index, not a mask
        """
def f(x: torch.Tensor, index: torch.Tensor):
    return x[index].sum()
""",
        # two coordinates of each place; one sum per column, and one mean
        """
def f(x: torch.Tensor):
    n, k = x.shape
    return x[x > 0].sum(0) + x[x > 0].mean(0) + (x > 0).nonzero().numel()
""",
    ),
    rewritten=(
        Rewritten(
            """
def f(grad: torch.Tensor):
    if len(torch.nonzero(torch.isnan(grad))) > 0:
        return None
    return grad
""",
            """
def f(grad: torch.Tensor):
    if torch.isnan(grad).any().item():
        return None
    return grad
""",
        ),
        Rewritten(
            """
def f(losses: torch.Tensor):
    losses = losses.view(-1)
    i = torch.nonzero(losses > 0).squeeze(1)
    return losses[i].sum()
""",
            """
def f(losses: torch.Tensor):
    losses = losses.view(-1)
    return torch.where(losses > 0, losses, 0).sum()
""",
        ),
        Rewritten(
            """
def loss(pred: torch.Tensor, target: torch.Tensor):
    error = (pred - target).float() ** 2
    return error[target > 0].mean()
""",
            """
def loss(pred: torch.Tensor, target: torch.Tensor):
    error = (pred - target).float() ** 2
    mask = target > 0
    return torch.where(mask, error, 0).sum() / mask.sum()
""",
        ),
        Rewritten(
            """
def loss(pred: torch.Tensor, target: torch.Tensor):
    e = (pred - target) ** 2
    return e[e[..., 0] > 0].mean()
""",
            """
def loss(pred: torch.Tensor, target: torch.Tensor):
    e = (pred - target) ** 2
    mask = e[..., 0] > 0
    return (
        torch.where(mask.unsqueeze(-1), e, 0).sum() / (mask.sum() * e.size(-1))
    )
""",
        ),
        Rewritten(
            """
def loss(pred: torch.Tensor, target: torch.Tensor, mask: torch.Tensor):
    error = (pred - target).float() ** 2
    return error.masked_select(mask[..., None]).mean()
""",
            """
def loss(pred: torch.Tensor, target: torch.Tensor, mask: torch.Tensor):
    error = (pred - target).float() ** 2
    mask_ = mask[..., None]
    return torch.where(mask_, error, 0).sum() / mask_.expand_as(error).sum()
""",
        ),
        Rewritten(
            """
def least(sigmas: torch.Tensor):
    return sigmas[sigmas > 0].min()
""",
            """
def least(sigmas: torch.Tensor):
    return torch.where(sigmas > 0, sigmas, float("inf")).min()
""",
        ),
        Rewritten(
            """
def nanmax(x: torch.Tensor):
    return torch.max(x[~torch.isnan(x)])
""",
            """
def nanmax(x: torch.Tensor):
    return torch.where(~torch.isnan(x), x, float("-inf")).max()
""",
        ),
        Rewritten(
            """
def f(x: torch.Tensor):
    return len(torch.where(x > 0)[0])
""",
            """
def f(x: torch.Tensor):
    return torch.count_nonzero(x > 0).item()
""",
        ),
    ),
)
