"""What may explain numbers that are further off than rounding usually leaves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npufix.rewriters.verification.calls.observe import CallRecord

ZERO = 1e-12
"""What is left in float64 of a gradient that is zero, of the others of the same call."""
_ZERO_TIMES = 16.0
"""In other dtypes, of what is left in the original, if that is nothing beside the others."""
_ZERO_SHARE = 1e-3
_LIMIT = 0.02
"""How far a gradient where it tends to may be from that at a large number."""
_ROUNDED = 8.0
"""How much more than some roundings of the arguments the patched code may change."""


@dataclass(frozen=True, slots=True)
class Triple:
    """One tensor as the original, the patched code and the oracle left it."""

    what: str
    original: torch.Tensor
    patched: torch.Tensor
    oracle: torch.Tensor | None
    noise: float = 0.0
    """The largest gradient in float64 of the same call, for a gradient: what it may be zero to."""


class Further(NamedTuple):
    """What can be found out about a call whose numbers are off."""

    rounded: Callable[[], list[CallRecord]]
    """The original in float64, with other roundings of the arguments."""
    exact: Callable[[], CallRecord | None] = lambda: None
    """The patched code in float64."""
    large: Callable[[], CallRecord | None] = lambda: None
    """The original in float64, with large numbers where the arguments hold an Inf."""


def find_rounded_zeros(triple: Triple, further: Further | None) -> torch.Tensor:
    """Return where a gradient is what rounding leaves of zero, in the patched code as well."""
    nowhere = torch.zeros_like(triple.original, dtype=torch.bool)
    oracle, zero = triple.oracle, ZERO * triple.noise
    if (
        not triple.noise
        or oracle is None
        or not oracle.isfinite().all()
        or oracle.abs().gt(zero).any()
    ):
        return nowhere
    left, right = triple.original.double(), triple.patched.double()
    most = min(_ZERO_TIMES * max_magnitude(left, left.isfinite()), _ZERO_SHARE * triple.noise)
    small = left.isfinite() & (right.abs() <= most)
    # The gradient of a wrong patch may be as small, but it is not zero in float64.
    seen = further.exact() if further is not None and bool(small.any()) else None
    exact = None if seen is None else seen.tensors.get(triple.what)
    return nowhere if exact is not None and not bool((exact.abs() <= zero).all()) else small


def find_limits(triple: Triple, further: Further | None) -> torch.Tensor:
    """Return where a gradient is what it tends to, and NaN in the original.

    ``torch.where(x.abs() < 1, x * x, x)`` has none at an Inf: zero times the gradient of what it
    has not taken. The NaN itself says nothing; what it is at a large number does.
    """
    nowhere = torch.zeros_like(triple.original, dtype=torch.bool)
    if further is None or not triple.what.startswith("gradient of "):
        return nowhere
    lost = triple.original.isnan() & triple.patched.isfinite()
    seen = further.large() if bool(lost.any()) else None
    limit = None if seen is None else seen.tensors.get(triple.what)
    if limit is None or limit.shape != lost.shape:
        return nowhere
    near = (triple.patched.double() - limit).abs() <= _LIMIT * limit.abs().clamp(min=1.0)
    return lost & limit.isfinite() & near


def find_ill_conditioned(triple: Triple, others: Sequence[CallRecord]) -> torch.Tensor:
    """Return for each element whether rounding the arguments would change it as much."""
    spread = torch.zeros_like(triple.original, dtype=torch.float64)
    if triple.oracle is None:
        return spread.bool()
    reference = triple.oracle.double()
    for other in others:
        found = other.tensors.get(triple.what)
        if found is not None and found.shape == reference.shape:
            spread = spread.maximum((found.double() - reference).abs().nan_to_num())
    right = triple.patched.double()
    return right.isfinite() & ((right - reference).abs() <= _ROUNDED * spread)


def max_magnitude(value: torch.Tensor, where: torch.Tensor) -> float:
    """Return the largest magnitude there, 0 if there is none."""
    return value.abs()[where].max().item() if bool(where.any()) else 0.0
