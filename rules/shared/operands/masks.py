"""What the rules about boolean masks share: the conditions on ``x`` and its ``mask``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.rules.substitution import Condition, all_hold

if TYPE_CHECKING:
    from npufix.rules.substitution import Site


def _vectors(site: Site) -> bool | None:
    ranks = site.ndim("x"), site.ndim("mask")
    return all_hold(None if rank is None else rank == 1 for rank in ranks)


# What has a vector at each place is called so, in most cases: a mask of it is one of places.
_OF_VECTORS = re.compile(
    r"(^|_)(pos|xyz|coo?rds?|vecs?|points?|pts|(bb)?ox(es)?|feat(ure)?s?|emb(ed(ding)?)?s?"
    r"|hidden(_states)?|context|memory|encoder_out(put)?s?|obs(ervations?)?)$"
)


_OF_PADDING = re.compile(r"(^|_)(pad(ding)?|attention)_masks?$")
"""A mask of the places of a batch, which of a tensor of numbers has all dimensions."""
_OF_ROWS = re.compile(r"(^|_)(sample|batch|seq(uence)?|segment|doc(ument)?|graph|image)_ids?$")
"""What a mask compares that says of each row whose it is: ``scale[sample_id == 0] = 1``."""
_OF_NUMBERS = re.compile(
    r"(ids?|tokens?|labels?|targets?|tgt|masks?|(weight|score|prob|len|length|position|time)s?"
    r"|attn|attention|dots?|energy|sims?"
    r"|loss(es)?|ind(ex|ices)|seqs?|y)\d*$"
)


def holds_vectors(site: Site) -> bool:
    """Tell whether the names say that the tensor has a vector at each place of the mask."""
    names = site.called("x")
    padded = any(map(_OF_PADDING.search, site.called("mask")))
    named = bool(names) and not any(map(_OF_NUMBERS.search, names))
    of_rows = any(map(_OF_ROWS.search, site.called("mask", in_test=True)))
    return any(map(_OF_VECTORS.search, names)) or ((padded or of_rows) and named)


def _same_rank(site: Site) -> bool | None:
    same = site.same_ndim("x", "mask")
    by_element = site.is_test_of("mask", "x") or site.covers("mask", "x")
    if same is None and not by_element and holds_vectors(site):
        return False
    # An index has no more dimensions than the tensor; one without any covers a vector as well.
    return True if same is None and (by_element or site.ndim("x") == 1) else same


def _is_mask(site: Site) -> bool | None:
    """Tell whether an index is a mask; positions are none: ``x[torch.where(kept)[0]] = 0``."""
    return False if site.is_position("mask") else site.is_bool_tensor("mask")


BOOLEAN_MASK = Condition(
    "boolean-mask",
    "the index is a tensor of dtype bool",
    # a comparison of the tensor with something is one, if the tensor is none of NumPy
    lambda site: site.is_test_of("mask", "x") or _is_mask(site),
)
MASK_DESPITE_NAME = Condition(
    "mask-despite-name",
    "the index is a mask, although its name speaks of positions",
    # asked apart: who allows masks of a whole program does not speak of ``y[idx] = 0.0``
    lambda site: True if site.is_bool_tensor("mask") or not site.is_called_index("mask") else None,
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
