"""What tells two versions apart: where it is seen, how far off it is, in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.leaves import name_kind

if TYPE_CHECKING:
    from npufix.rewriters.verification.judge.allowances import Triple


class Seen(IntEnum):
    """Where a difference is seen; the first say most about what is wrong."""

    RESULT = 0
    EFFECT = 1
    """On arguments, the object, the module, the state of random numbers, settings of torch."""
    GRADIENT = 2
    ERROR = 3
    MEMORY = 4
    """Whose memory a result shares."""
    STRIDES = 5


@dataclass(slots=True)
class Difference:
    """Something that tells the two apart."""

    text: str
    case: str
    size: int
    visible: bool = True
    """Whether a person sees it in the printed numbers."""
    what: str = ""
    """The tensor or fact that differs; empty for an exception."""
    least: float = 0.0
    """Half of the difference, which is beyond rounding by far."""
    seen: Seen = Seen.RESULT
    leaks: bool = False
    """Whether a result or an effect is finite in the original and is not in the patched code."""
    still: bool = False
    """Whether all gradients of the call are zero, or this one is in both versions."""

    @property
    def rank(self) -> tuple[bool, bool, int, int]:
        """Smallest is the best counterexample: one that is seen, in a result, on little data."""
        return self.size == 0, not self.visible, self.seen, self.size


def place_of(what: str) -> Seen:
    """Return where what has this name is seen."""
    if what.startswith(("gradient of ", "requires_grad of ")):
        return Seen.GRADIENT
    return (
        Seen.RESULT
        if what.startswith(("result", "type of result", "order of result"))
        else Seen.EFFECT
    )


def describe_difference(triple: Triple, wrong: torch.Tensor, case: str, size: int) -> Difference:
    """Describe the element that is furthest off."""
    off = (triple.patched.double() - triple.original.double()).abs()
    off = (off / triple.original.double().abs().clamp(min=1e-30)).nan_to_num(1e300, posinf=1e300)
    off = torch.where(wrong, off, -1.0)
    at = tuple((off == off.max()).nonzero()[0].tolist())
    left, right = triple.original[at].item(), triple.patched[at].item()
    reference = "" if triple.oracle is None else f" (float64: {triple.oracle[at].item():.6g})"
    where = f" at {list(at)}" if at else ""
    count = f"; {int(wrong.sum())} of {wrong.numel()} elements differ" if wrong.numel() > 1 else ""
    text = (
        f"{triple.what} {name_kind(triple.original)}{where} is {left:.6g} in the original, "
        f"{right:.6g} in the patched code{reference}{count}"
    )
    visible = f"{left:.3g}" != f"{right:.3g}"
    least = abs(left - right) / 2
    least = least if math.isfinite(least) else 0.0
    place = place_of(triple.what)
    finite = triple.original[wrong].isfinite() & ~triple.patched[wrong].isfinite()
    leaks = place is not Seen.GRADIENT and bool(finite.any())
    return Difference(text, case, size, visible, triple.what, least, place, leaks)
