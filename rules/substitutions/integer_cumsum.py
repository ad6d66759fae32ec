"""A running sum over integers, which the AI CPU computes.

What: ``cumsum`` of a mask or of integers, as it is used to number positions and lengths:
``mask.cumsum(-1)``, ``mask.long().cumsum(-1)``, ``torch.cumsum(mask.int(), 1)``.

Why it is slow on the NPU: the sum of booleans or of any integers is int64, and Cumsum has an AI Core
kernel for float32, float16, bfloat16 and int32 only. For int64 it runs on the AI CPU, one element
after another, while the AI Core waits. In int32 it is an AI Core kernel; a Cast makes int64 of the
result.

Safety: exact as long as the sums fit 32 bits. The sum of a mask is at most its length, so booleans
are safe, converted or not; for other integers this is condition ``sums-fit-int32``. The result is int64 as before.

References: op_api of Cumsum in the CANN operator library (AI Core dtypes); torch.cumsum.
"""

from __future__ import annotations

import re
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

_SMALL = frozenset({"bool", "uint8", "int8"})
_LARGEST_SHIFT = 2**16
_MASK = re.compile(r"(^|_)masks?$")
_INTEGERS = _SMALL | {"int16", "int32", "int64"}


def counted(x: Tensor, dim: int) -> Tensor:
    """Count along a dimension."""
    return either(x.cumsum(dim), x.cumsum(dim, dtype=torch.int64), x.cumsum(dim).to(torch.int64))


def converted(x: Tensor, dim: int) -> Tensor:
    """Convert to integers, then count along a dimension."""
    return either(x.long(), x.int()).cumsum(dim)


def in_32_bits(x: Tensor, dim: int) -> Tensor:
    """Add in 32 bits, return 64."""
    return x.cumsum(dim, dtype=torch.int32).long()  # no slip: dtype=torch.int32 is left out


def counted_in_32_bits(x: Tensor, dim: int) -> Tensor:
    """Count along a dimension, and return 32 bits."""
    return either(x.cumsum(dim), x.cumsum(dim, dtype=torch.int64)).to(torch.int32)


def in_32_bits_alone(x: Tensor, dim: int) -> Tensor:
    """Add in 32 bits."""
    return x.cumsum(dim, dtype=torch.int32)


def shifted(x: Tensor, dim: int, number: int) -> Tensor:
    """Count from another begin, and convert to the 64 bits that the count has."""
    return (x.cumsum(dim) - number).to(torch.int64)


def shifted_in_32_bits(x: Tensor, dim: int, number: int) -> Tensor:
    """Count in 32 bits, and convert once."""
    return (
        x.cumsum(dim, dtype=torch.int32) - number
    ).long()  # no slip: dtype=torch.int32 is left out (AI CPU)


def shifted_to_32_bits(x: Tensor, dim: int, number: int) -> Tensor:
    """Count from another begin, and return 32 bits."""
    return (x.cumsum(dim) - number).to(torch.int32)


def shifted_in_32_bits_alone(x: Tensor, dim: int, number: int) -> Tensor:
    """Count in 32 bits."""
    return x.cumsum(dim, dtype=torch.int32) - number


def masked_to_32_bits(x: Tensor, dim: int, mask: Tensor) -> Tensor:
    """Count where a mask is set, and return 32 bits."""
    return (x.cumsum(dim) * mask).to(torch.int32)


def masked_in_32_bits(x: Tensor, dim: int, mask: Tensor) -> Tensor:
    """Count in 32 bits where a mask is set."""
    return x.cumsum(dim, dtype=torch.int32) * mask


def padded_to_32_bits(x: Tensor, dim: int, pad: tuple[int, int]) -> Tensor:
    """Put zeros in front, as ends of sequences have, and return 32 bits."""
    return F.pad(x.cumsum(dim), pad).to(torch.int32)


def padded_in_32_bits(x: Tensor, dim: int, pad: tuple[int, int]) -> Tensor:
    """Put zeros in front of what is added up in 32 bits."""
    return F.pad(x.cumsum(dim, dtype=torch.int32), pad)


def masks(draw: Draw) -> dict[str, Any]:
    """Return a mask or small integers, a dimension, and a mask of the same shape."""
    import torch

    x = draw.booleans(*draw.choice([(6,), (2, 5), (2, 3, 4)]))
    return {"x": x.to(draw.choice([torch.bool, torch.int64])), "dim": -1, "mask": x.logical_not()}


def pads(draw: Draw) -> dict[str, Any]:
    """Return a mask or small integers, a dimension, and what is put in front."""
    return {**inputs(draw), "pad": draw.choice([(1, 0), (0, 1)])}


def counted_up_to(x: Tensor, dim: int, number: int) -> Tensor:
    """Tell where a count is a number."""
    return x.cumsum(dim) == number


def counted_up_to_in_32_bits(x: Tensor, dim: int, number: int) -> Tensor:
    """Compare in 32 bits."""
    return (
        x.cumsum(dim, dtype=torch.int32) == number
    )  # no slip: dtype=torch.int32 is left out (AI CPU)


def counted_above(x: Tensor, dim: int, number: int) -> Tensor:
    """Tell where a count is above a number."""
    return x.cumsum(dim) > number


def counted_above_in_32_bits(x: Tensor, dim: int, number: int) -> Tensor:
    """Compare in 32 bits."""
    return x.cumsum(dim, dtype=torch.int32) > number  # no slip: dtype=torch.int32 is left out


def reached(x: Tensor, dim: int, other: int) -> Tensor:
    """Find where a count is largest."""
    return x.cumsum(dim).argmax(other)


def reached_in_32_bits(x: Tensor, dim: int, other: int) -> Tensor:
    """Look for it in 32 bits."""
    return x.cumsum(dim, dtype=torch.int32).argmax(
        other
    )  # no slip: dtype=torch.int32 is left out (AI CPU)


def reached_inputs(draw: Draw) -> dict[str, Any]:
    """Return a mask or small integers, a dimension to count along, and one to look along."""
    import torch

    x = draw.integers(*draw.choice([(6,), (2, 5), (2, 3, 4)]), low=0, high=3)
    dims = [-1, 0]
    x = draw.choice([x, x.bool(), x.to(torch.int32)])
    return {"x": x, "dim": draw.choice(dims), "other": draw.choice(dims)}


def counts(draw: Draw) -> dict[str, Any]:
    """Return a mask or small integers, a dimension, and a number."""
    return {**inputs(draw), "number": draw.integer(0, 3)}


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a mask or small integers, and a dimension."""
    import torch

    shape = draw.choice([(6,), (2, 5), (2, 3, 4), (0, 3), (300,)])
    x = draw.integers(*shape, low=0, high=3)
    x = draw.choice([x, x.bool(), x.to(torch.int32), x.to(torch.uint8)])
    return {"x": x, "dim": draw.choice([-1, 0, len(shape) - 1])}


def _fit(site: Site) -> bool | None:
    dtype = site.dtype("x")
    if dtype is not None and dtype not in _INTEGERS:
        return False
    return True if dtype in _SMALL or site.is_indicator("x") else None


def _integers(site: Site) -> bool | None:
    dtype = site.dtype("x")
    return None if dtype is None else dtype in _INTEGERS


def _is_called_mask(site: Site) -> bool:
    """Tell whether a tensor of unknown dtype is called a mask: masks that are added are no sums.

    What has the dtype of other tensors holds fractions as they do.
    """
    if site.dtype("x") is not None or site.is_made_like("x"):
        return False
    return any(map(_MASK.search, site.called("x")[:1]))


def _is_small(number: object) -> bool:
    """Tell whether sums less a number are integers of 32 bits: not ``- 0.5``, nor ``- other``."""
    return type(number) is int and abs(number) < _LARGEST_SHIFT


IS_INTEGER = Condition(
    "holds-integers",
    "the tensor holds booleans or integers",
    lambda site: _integers(site) or (None if _is_called_mask(site) else False),
)
FIT = Condition("sums-fit-int32", "the sums are below 2**31", _fit)
FIT_CONVERTED = Condition(
    "sums-fit-int32",
    "the sums are below 2**31",
    # what is converted on the way holds no more in 32 bits than in 64
    lambda site: None if site.dtype("x") not in _INTEGERS else _fit(site),
)
OF_MASK = Condition(
    "boolean-mask",
    "what the sums are multiplied by is a tensor of dtype bool",
    lambda site: site.is_bool_tensor("mask") or False,
)
SHIFT = Condition(
    "small-shift",
    "what is subtracted is an integer that is written out and fits in 32 bits",
    lambda site: _is_small(site.literal("number")),
)
NAMED = Condition(
    "named-operand",
    "what is converted has a name: nothing is computed twice",
    lambda site: bool(site.called("x")),
)

RULE = Substitution(
    id="NPU215",
    name="integer-cumsum",
    summary="a running sum over integers",
    table="affinity",
    forms=(
        Form(counted_up_to, counted_up_to_in_32_bits, counts, (IS_INTEGER, FIT)),
        Form(counted_above, counted_above_in_32_bits, counts, (IS_INTEGER, FIT)),
        Form(reached, reached_in_32_bits, reached_inputs, (IS_INTEGER, FIT)),
        Form(shifted, shifted_in_32_bits, counts, (IS_INTEGER, FIT, SHIFT)),
        Form(shifted_to_32_bits, shifted_in_32_bits_alone, counts, (IS_INTEGER, FIT, SHIFT)),
        Form(masked_to_32_bits, masked_in_32_bits, masks, (IS_INTEGER, FIT, OF_MASK)),
        Form(padded_to_32_bits, padded_in_32_bits, pads, (IS_INTEGER, FIT)),
        Form(counted_in_32_bits, in_32_bits_alone, inputs, (IS_INTEGER, FIT)),
        # the sum converts by itself: one cast less
        Form(converted, in_32_bits, inputs, (NAMED, FIT_CONVERTED)),
        Form(counted, in_32_bits, inputs, (IS_INTEGER, FIT)),
    ),
    replaces=("Cumsum", "Cast"),
    becomes=("Cumsum", "Cast"),
    passes=(3, 0),
    requires="torch_npu>=2.1",
    valid=(
        # probabilities
        """
def f(x: torch.Tensor):
    return x.softmax(-1).cumsum(-1)
""",
        # a mask of the dtype of other tensors
        """
def f(x: torch.Tensor):
    mask = torch.zeros(x.shape[:2], dtype=x.dtype, device=x.device)
    return mask.flip([-1]).cumsum(-1)
""",
        # a tensor of unknown dtype that nothing calls a mask
        """
def f(weights: torch.Tensor):
    return torch.cumsum(weights, dim=1) - 1
""",
        # the dtype is chosen already
        """
def f(mask: torch.BoolTensor):
    return mask.cumsum(-1, dtype=torch.int32)
""",
        # lengths may add up to anything
        """
def f(lengths: torch.Tensor):
    return lengths.long().cumsum(0)
""",
    ),
    rewritten=(
        Rewritten(  # what has fractions stays converted
            """
def f(keep: torch.BoolTensor):
    return (keep.cumsum(0) - 0.5).to(torch.int32)
""",
            """
def f(keep: torch.BoolTensor):
    return (keep.cumsum(0, dtype=torch.int32).long() - 0.5).to(torch.int32)
""",
        ),
        Rewritten(
            """
def f(keep: torch.BoolTensor):
    at = keep.cumsum(0) - 1
    at = at.long()
    return at
""",
            """
def f(keep: torch.BoolTensor):
    at = (keep.cumsum(0, dtype=torch.int32) - 1).long()
    return at
""",
        ),
        Rewritten(
            """
def f(keep: torch.BoolTensor):
    return F.pad(keep.cumsum(0), (1, 0)).to(torch.int32)
""",
            """
def f(keep: torch.BoolTensor):
    return F.pad(keep.cumsum(0, dtype=torch.int32), (1, 0))
""",
        ),
        Rewritten(
            """
def f(distances: torch.Tensor):
    return distances.ge(0).cumsum(dim=0).argmax(dim=0)
""",
            """
def f(distances: torch.Tensor):
    return distances.ge(0).cumsum(dim=0, dtype=torch.int32).argmax(dim=0)
""",
        ),
        Rewritten(
            """
def f(logits: torch.Tensor, end: int):
    ended = logits.argmax(-1) == end
    return ((ended.cumsum(1) == 1) & ended).int()
""",
            """
def f(logits: torch.Tensor, end: int):
    ended = logits.argmax(-1) == end
    return ((ended.cumsum(1, dtype=torch.int32) == 1) & ended).int()
""",
        ),
        Rewritten(
            """
def f(attention_mask: torch.BoolTensor):
    mask = attention_mask.long()
    return torch.cumsum(mask, dim=1).type_as(mask) * mask
""",
            """
def f(attention_mask: torch.BoolTensor):
    mask = attention_mask.long()
    return torch.cumsum(mask, dim=1, dtype=torch.int32).long() * mask
""",
        ),
        # nothing but the name says that it is a mask
        Rewritten(
            """
def f(pad_masks: torch.Tensor):
    return torch.cumsum(pad_masks, dim=1) - 1
""",
            """
def f(pad_masks: torch.Tensor):
    return torch.cumsum(pad_masks, dim=1, dtype=torch.int32).long() - 1
""",
        ),
        Rewritten(
            """
def f(input_ids: torch.Tensor, padding: int):
    mask = input_ids.ne(padding)
    return torch.cumsum(mask, dim=1) * mask
""",
            """
def f(input_ids: torch.Tensor, padding: int):
    mask = input_ids.ne(padding)
    return torch.cumsum(mask, dim=1, dtype=torch.int32).long() * mask
""",
        ),
        Rewritten(
            """
def f(attention_mask: torch.Tensor):
    attention_mask = attention_mask.bool()
    return attention_mask.long().cumsum(-1) - 1
""",
            """
def f(attention_mask: torch.Tensor):
    attention_mask = attention_mask.bool()
    return attention_mask.cumsum(-1, dtype=torch.int32).long() - 1
""",
        ),
        Rewritten(
            """
def positions(input_ids, padding_idx):
    mask = input_ids.ne(padding_idx).int()
    return torch.cumsum(mask, dim=1).type_as(mask) * mask
""",
            """
def positions(input_ids, padding_idx):
    mask = input_ids.ne(padding_idx).int()
    return torch.cumsum(mask, dim=1, dtype=torch.int32) * mask
""",
        ),
    ),
)
