"""A whole tensor is sorted, and only its first elements are used.

What: ``x.sort(descending=True)[0][:k]``, ``x.argsort(dim=1, descending=True)[:, :k]`` and their
relatives, where nobody needs the rest.

Why it is slow on the NPU: Sort orders all elements, and of long rows in several kernels through
memory, of int64 on the AI CPU. ``topk`` keeps the ``k`` best.

Safety: the same values in the same order. Of equal values ``sort`` and ``topk`` may name different
positions, as two runs of ``sort`` on two devices do (condition ``no-ties``); a tensor with fewer than
``k`` elements is cut short by a slice, but refused by ``topk`` (``enough-elements``). NaN counts as
the largest in both.

References: torch.topk; ports of detection heads in Ascend ModelZoo, which select by topk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import unknown
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution, either

if TYPE_CHECKING:
    from torch import Tensor


def largest(x: Tensor, k: int) -> Tensor:
    """Sort the last dimension, and take the first values."""
    return x.sort(dim=-1, descending=True)[0][..., :k]


def largest_few(x: Tensor, k: int) -> Tensor:
    """Take the largest."""
    return x.topk(k, dim=-1)[0]


def largest_of_vector(x: Tensor, k: int) -> Tensor:
    """Sort a vector, and take the first values."""
    return x.sort(dim=either(-1, 0), descending=True)[0][:k]


def largest_of_rows(x: Tensor, k: int) -> Tensor:
    """Sort the rows of a matrix, and take the first columns."""
    return x.sort(dim=either(-1, 1), descending=True)[0][:, :k]


def places(x: Tensor, k: int) -> Tensor:
    """Sort the last dimension, and take the first positions."""
    return either(x.argsort(dim=-1, descending=True), x.sort(dim=-1, descending=True)[1])[..., :k]


def few_places(x: Tensor, k: int) -> Tensor:
    """Take where the largest are."""
    return x.topk(k, dim=-1)[1]


def places_of_vector(x: Tensor, k: int) -> Tensor:
    """Sort a vector, and take the first positions."""
    order = either(
        x.argsort(dim=either(-1, 0), descending=True),
        x.sort(dim=either(-1, 0), descending=True)[1],
    )
    return order[:k]


def places_of_rows(x: Tensor, k: int) -> Tensor:
    """Sort the rows of a matrix, and take the first columns of positions."""
    order = either(
        x.argsort(dim=either(-1, 1), descending=True),
        x.sort(dim=either(-1, 1), descending=True)[1],
    )
    return order[:, :k]


def _drawn(draw: Draw, *shape: int) -> dict[str, Any]:
    import torch

    count = 1
    for length in shape:
        count *= length
    order = torch.argsort(draw.floats(count, dtype=torch.float32))
    return {"x": order.to(torch.float32).reshape(shape) - 2, "k": draw.integer(1, shape[-1])}


def inputs(draw: Draw) -> dict[str, Any]:
    """Return different numbers of any rank, and how many of them are wanted."""
    return _drawn(draw, *draw.choice([(5,), (2, 4), (2, 3, 4)]))


def vector_inputs(draw: Draw) -> dict[str, Any]:
    """Return a vector of different numbers."""
    return _drawn(draw, draw.integer(1, 6))


def matrix_inputs(draw: Draw) -> dict[str, Any]:
    """Return a matrix of different numbers."""
    return _drawn(draw, draw.integer(1, 3), draw.integer(1, 5))


def _has_rank(rank: int) -> Any:  # noqa: ANN401 - a function of a site
    def holds(site: Site) -> bool | None:
        known = site.ndim("x")
        return None if known is None else known == rank

    return holds


def _counts(site: Site) -> bool | None:
    value = site.literal("k")
    if value is not None:
        return isinstance(value, int) and not isinstance(value, bool) and value > 0
    return False if site.is_tensor("k") else None


ENOUGH = Condition("enough-elements", "there are at least k elements to choose from", _counts)
ENOUGH_LEFT = Condition(
    "enough-elements",
    "there are at least k elements to choose from",
    lambda site: False if _counts(site) is False else None,
)
TIES = Condition("no-ties", "no two of the values at the edge are equal", unknown)
IS_TENSOR = Condition("is-tensor", "the object is a torch tensor", lambda site: site.is_tensor("x"))
VECTOR = Condition("vector", "the tensor has one dimension", _has_rank(1))
MATRIX = Condition("two-dimensions", "the tensor has two dimensions", _has_rank(2))
VALUES = (IS_TENSOR, ENOUGH_LEFT)
PLACES = (IS_TENSOR, ENOUGH_LEFT, TIES)

RULE = Substitution(
    id="NPU224",
    name="sorted-for-few",
    summary="a whole tensor is sorted for its first elements",
    table="affinity",
    forms=(
        Form(largest, largest_few, inputs, VALUES),
        Form(largest_of_rows, largest_few, matrix_inputs, (*VALUES, MATRIX)),
        Form(largest_of_vector, largest_few, vector_inputs, (*VALUES, VECTOR)),
        Form(places, few_places, inputs, PLACES),
        Form(places_of_rows, few_places, matrix_inputs, (*PLACES, MATRIX)),
        Form(places_of_vector, few_places, vector_inputs, (*PLACES, VECTOR)),
    ),
    replaces=("Sort", "SortV2"),
    becomes=("TopK", "TopKV2"),
    passes=(1, 1),
    requires="torch_npu>=2.1",
    needs_whole=True,
    valid=(
        # what is left is needed too
        """
def f(x: torch.Tensor, k: int):
    y = x.sort(dim=-1, descending=True)[0]
    return y[..., :k], y[..., k:]
""",
        # along another dimension
        """
def f(x: torch.Tensor, k: int):
    return x.sort(dim=0, descending=True)[0][:, :k]
""",
        # without those at the end
        """
def f(x: torch.Tensor):
    return x.sort(dim=-1, descending=True)[0][..., :-1]
""",
        # a list
        """
def f(x: list, k: int):
    return sorted(x)[:k]
""",
    ),
    rewritten=(
        Rewritten(
            """
def f(x: torch.Tensor, k: int):
    return torch.sort(x, dim=-1, descending=True)[0][..., :k]
""",
            """
def f(x: torch.Tensor, k: int):
    return x.topk(k, dim=-1)[0]
""",
        ),
        Rewritten(
            """
def f(scores: torch.Tensor, k: int):
    scores = scores.flatten()
    return scores.argsort(descending=True)[:k]
""",
            """
def f(scores: torch.Tensor, k: int):
    scores = scores.flatten()
    return scores.topk(k, dim=-1)[1]
""",
        ),
        Rewritten(
            """
def f(scores: torch.Tensor):
    n, c = scores.shape
    order = torch.argsort(scores, dim=1, descending=True)
    return order[:, :4]
""",
            """
def f(scores: torch.Tensor):
    n, c = scores.shape
    return scores.topk(4, dim=-1)[1]
""",
        ),
    ),
)
