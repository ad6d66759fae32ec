"""What the rules about boolean masks share: the conditions on ``x`` and its ``mask``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.substitution import Condition

if TYPE_CHECKING:
    from npufix.rules.substitution import Site


def _vectors(site: Site) -> bool | None:
    ranks = [site.ndim("x"), site.ndim("mask")]
    if any(rank not in {None, 1} for rank in ranks):
        return False
    return True if None not in ranks else None


def _same_rank(site: Site) -> bool | None:
    same = site.same_ndim("x", "mask")
    # An index has no more dimensions than the tensor; one without any covers a vector as well.
    least = site.is_test_of("mask", "x") or site.covers("mask", "x") or site.ndim("x") == 1
    return True if same is None and least else same


BOOLEAN_MASK = Condition(
    "boolean-mask",
    "the index is a tensor of dtype bool",
    # a comparison of the tensor with something is one, if the tensor is none of NumPy
    lambda site: site.is_test_of("mask", "x") or site.is_bool_tensor("mask"),
)
SAME_RANK_MASK = Condition(
    "same-rank-mask",
    "the mask has as many dimensions as the tensor it is used on",
    _same_rank,
)
VECTOR_MASK = Condition(
    "vector-mask",
    "the tensor and the mask have one dimension",
    _vectors,
)
WRITTEN_TENSOR = Condition(
    "is-tensor",
    "the object that is written to is a torch tensor, not a NumPy array",
    lambda site: site.is_tensor("x"),
)
SAME_DEVICE = Condition(
    "same-device",
    "the mask is on the device of the tensor",
    lambda site: site.same_device("x", "mask"),
)
