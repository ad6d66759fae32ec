"""What the rules about attention share: the operands to try and the conditions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Site, all_hold

if TYPE_CHECKING:
    from torch import Tensor

_BATCH_HEADS_LENGTH_SIZE = 4
_VERY_NEGATIVE = -1e4


def operands(draw: Draw) -> dict[str, Any]:
    """Return query, key and value of four dimensions, a scale and a dropout."""
    import torch

    heads, size = draw.integer(2, 3), draw.choice([8, 12])
    queries, keys = draw.integer(3, 6), draw.integer(3, 6)
    # In float32 the backward pass of a fused kernel is a few roundings less exact than eager code.
    dtype = draw.choice([torch.bfloat16, torch.float16])
    return {
        "q": draw.floats(2, heads, queries, size, dtype=dtype) * 0.5,
        "k": draw.floats(2, heads, keys, size, dtype=dtype),
        "v": draw.floats(2, heads, keys, size, dtype=dtype),
        "scale": draw.choice([1.0, 0.3, 0.5]),
        "divisor": draw.choice([math.sqrt(size), 0.7]),
        "p": draw.choice([0.0, 0.4]),
        "training": draw.choice([True, False]),
    }


def shown_keys(draw: Draw, given: dict[str, Any]) -> Tensor:
    """Return a bool mask of the keys that each query sees: at least one."""
    batch, heads, queries = given["q"].shape[:3]
    keys = given["k"].shape[2]
    shape = draw.choice(
        [(batch, 1, 1, keys), (batch, heads, queries, keys), (queries, keys), (1, 1, queries, keys)]
    )
    shown = draw.booleans(*shape)
    shown[..., :2] = True  # the gradient of a query with one key is zero but for rounding
    return shown


def fill_value(draw: Draw, given: dict[str, Any]) -> float:
    """Return what masked scores are set to."""
    import torch

    return draw.choice([-math.inf, torch.finfo(given["q"].dtype).min, -6e4])


def _four_dimensional(site: Site) -> bool | None:
    known = {rank for name in "qkv" if (rank := site.ndim(name)) is not None}
    if not known:
        return None
    return known == {_BATCH_HEADS_LENGTH_SIZE}


def _same_dtype(site: Site) -> bool | None:
    """Products take no mixed dtypes, so only a cast of one operand alone can make a difference."""
    return True if len({site.dtype(name) for name in "qkv"}) == 1 else None


def _number_scale(site: Site) -> bool | None:
    return all_hold(site.is_scalar(name) for name in ("scale", "divisor"))


def _without_dropout(site: Site) -> bool | None:
    return True if site.literal("p") == 0 or site.literal("training") is False else None


def _very_negative(site: Site, name: str = "value") -> bool | None:
    value = site.number(name)
    return None if value is None else value <= _VERY_NEGATIVE


FOUR_DIMENSIONAL = Condition(
    "four-dimensional",
    "query, key and value have four dimensions: batch, heads, length, size of a head",
    _four_dimensional,
)
SAME_DTYPE = Condition("same-dtype", "query, key and value have the same dtype", _same_dtype)
SAME_HEADS = Condition(
    "same-heads",
    "query, key and value have the same batch size and number of heads",
    lambda site: site.same_heads("q", "k", "v"),
)
NUMBER_SCALE = Condition(
    "number-scale",
    "the scale is a Python number, not a tensor or a trained parameter",
    _number_scale,
)
NOT_FUSED_YET = Condition(
    "no-fused-branch",
    "the function does not choose between this code and a fused attention",
    lambda site: not site.has_fused_branch(),
)
VERY_NEGATIVE = Condition(
    "very-negative-fill",
    "the scores of hidden keys are set to -10000 or less, and the others are small beside that",
    _very_negative,
)
ALSO_VERY_NEGATIVE = Condition(
    VERY_NEGATIVE.name, VERY_NEGATIVE.text, lambda site: _very_negative(site, "other")
)
SHOWN_LEAVES_A_KEY = Condition(
    "no-fully-masked-row",
    "every query sees at least one key",
    lambda site: site.leaves_a_key("shown", kept=True),
)
HIDDEN_LEAVES_A_KEY = Condition(
    "no-fully-masked-row",
    "every query sees at least one key",
    lambda site: site.leaves_a_key("hidden", kept=False),
)
MASK_IS_BOOLEAN = Condition(
    "mask-is-boolean",
    "what is added to the scores holds nothing but 0 and numbers of -10000 or less, and takes no "
    "gradient",
    lambda site: site.is_boolean_bias("added"),
)
LEAVES_A_KEY = Condition("no-fully-masked-row", "every query sees at least one key", lambda _: None)
RANDOM_NUMBERS = Condition(
    "other-random-numbers",
    "in training the fused operator may drop other weights than the code does from the same seed",
    _without_dropout,
)
ATTENTION = (
    NOT_FUSED_YET,
    FOUR_DIMENSIONAL,
    SAME_HEADS,
    SAME_DTYPE,
    NUMBER_SCALE,
    RANDOM_NUMBERS,
)
