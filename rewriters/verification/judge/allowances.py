"""What may explain numbers that are further off than rounding usually leaves them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from npufix.rewriters.verification.calls.observe import CallRecord

_T = TypeVar("_T")
ZERO = 1e-12
"""What is left in float64 of a gradient that is zero, of the others of the same call."""
_ZERO_TIMES = 16.0
"""In other dtypes, of what is left in the original, if that is nothing beside the others."""
_ZERO_SHARE = 1e-3
_KINK = 0.02
"""Of the largest gradient: what is no other gradient on another side."""
_SMALL_KINK, _SMALL_SHARE = 1e-3, 0.1
"""The same of kinks that are smaller themselves: and how far beyond their sides is within them."""
_SIDES, _ENOUGH_SIDES = 4, 16
"""Where as many are the same everywhere, there is no kink."""
_FAR_OFF = 0.01
"""Of the largest gradient: beyond what rounding leaves of sums that do not cancel."""
_EXACT = 1e-9
"""In float64, of the largest gradient: what is the same."""
_LIMIT = 0.02
"""How far a gradient where it tends to may be from that at a large number."""
NOISES = 8.0
"""How many times as far off as the worst of a few other roundings a result may be."""
_SUM_ULPS = 2.0
"""Of gradients, which are sums of several rounded products."""
_WORTHLESS = 0.25
"""Of a gradient in halves: as far off, no digit of it is right."""
_TINY_ULPS, _ENOUGH_NOISE = 64, 4
_FACTOR = 2.0
"""How much worse than the original's error the patched error may be."""
ULPS = 2.0
"""Half an ulp each for the two roundings, and as much again for another order of operations."""
_SCALE_ULPS = 0.5
"""Of the largest element that matters: what cancellation leaves of one rounding of an operand."""
CREDIBLE_ULPS = 32.0
"""An error beyond this is not carried over to other cases: it belongs to its own input."""
_ZERO_ULPS = 4.0
"""And in other dtypes, where the same sum cancels."""
_SUBNORMAL = 4.0
"""Units of the smallest number of a dtype, below which its numbers are not rounded but cut off."""
_CREDIBLE = 0.1
"""An original further off than this, for all cancellation, has overflowed or taken a branch."""


@dataclass(frozen=True, slots=True)
class Triple:
    """One tensor as the original, the patched code and the oracle left it."""

    what: str
    original: torch.Tensor
    patched: torch.Tensor
    oracle: torch.Tensor | None
    noise: float = 0.0
    """The largest gradient in float64 of the same call, for a gradient: what it may be zero to."""
    error: float = 0.0
    """Of the original against the oracle, relative to the largest element."""
    terms: int = 1
    """What each element may be the sum of: as many inputs are there for each."""

    @property
    def sum_ulps(self) -> float:
        """How far off a gradient may be, as a sum of rounded products, of its largest element.

        Of many terms that are added one after the other the roundings walk, where the original adds
        them in pairs.
        """
        walks = self.original.dtype == torch.float32
        return max(_SUM_ULPS, math.sqrt(self.terms) * walks)


class KnownNoise:
    """What was nothing but rounding in several calls, as their other roundings have told.

    Where as little is off in the same gradient of another call, nobody need make that six times
    more: of some hundred calls of a model, there was no time for the last ones.
    """

    def __init__(self) -> None:
        """Know of none."""
        self._found: dict[tuple[str, torch.dtype], list[float]] = {}

    def add(self, triple: Triple) -> None:
        """Remember a gradient that is off by rounding alone."""
        self._found.setdefault((triple.what, triple.original.dtype), []).append(_share(triple))

    def covers(self, triple: Triple) -> bool:
        """Say whether no more is off than was by rounding, and that hardly anything."""
        known = self._found.get((triple.what, triple.original.dtype), [])
        tiny = _TINY_ULPS * eps_of(triple.original.dtype)
        return len(known) >= _ENOUGH_NOISE and _share(triple) <= min(max(known), tiny)


def _share(triple: Triple) -> float:
    """Return how much of the largest gradient of its call is off."""
    if triple.oracle is None or not triple.noise:
        return math.inf
    off = (triple.patched.double() - triple.oracle.double()).abs()
    return (
        float(off.max()) / triple.noise if off.numel() and bool(off.isfinite().all()) else math.inf
    )


class Spread(NamedTuple):
    """The original, in one place."""

    plain: CallRecord
    """As it is written."""
    noisy: Iterable[CallRecord]
    """With other roundings, each made when it is asked for."""
    again: Callable[[], CallRecord | None] = lambda: None
    """As it is written, once more."""

    def repeats(self, what: str) -> bool:
        """Say whether the original makes the same once more, but for its rounding.

        What counts its calls, ``x + next(NUMBERS)``, makes another with every rounding, too.
        """
        again = self.again()
        if again is None:
            return True
        first, second = self.plain.tensors.get(what), again.tensors.get(what)
        if first is None or second is None or first.shape != second.shape:
            return first is second
        left, right = make_real(first).double(), make_real(second).double()
        off = (left - right).abs().nan_to_num(0.0, 0.0, 0.0)
        largest = max_magnitude(left, left.isfinite())
        return (
            max_magnitude(off, left.isfinite()) <= NOISES * eps_of(make_real(first).dtype) * largest
        )


class Further(NamedTuple):
    """What can be found out about a call whose numbers are off."""

    spread: Callable[[], Spread | None]
    """What other roundings make of the original."""
    exact: Callable[[], CallRecord | None] = lambda: None
    """The patched code in float64."""
    large: Callable[[], CallRecord | None] = lambda: None
    """The original in float64, with large numbers where the arguments hold an Inf."""
    near: Callable[[], Iterable[CallRecord]] = tuple
    """The original in float64, with arguments that are moved a little."""
    moved: Callable[[], Iterable[CallRecord]] = tuple
    """The same, with all that is passed moved by a rounding of its dtype."""


class Kept(Generic[_T]):
    """What is made when it is first asked for, and given again to who asks later."""

    def __init__(self, made: Iterator[_T]) -> None:
        """Have nothing made yet."""
        self._made, self._known = made, list[_T]()

    def __iter__(self) -> Iterator[_T]:
        """Yield what is known, then what is made."""
        yield from self._known
        for one in self._made:
            self._known.append(one)
            yield one


def find_accepted(triple: Triple, earned: float) -> torch.Tensor:
    """Return for each element whether the patched value may stand for the original.

    ``earned`` is the largest relative error of the original's tensor over all cases.
    """
    original, patched = triple.original, triple.patched
    if original.dtype == patched.dtype and torch.equal(original, patched):
        return torch.ones_like(original, dtype=torch.bool)
    same = (original == patched) | (original.isnan() & patched.isnan())
    if not original.is_floating_point() or bool(same.all()):
        return same
    eps = eps_of(original.dtype)
    left, right = original.double(), patched.double()
    reference = left if triple.oracle is None else triple.oracle.double()
    rounded = reference.to(original.dtype)
    finite = left.isfinite() & reference.isfinite() & right.isfinite()
    # Only elements that differ set the scale: a fill value of -1e9 must not excuse the others.
    # Gradients are sums: an element where they cancel is as far off as the one next to it.
    sums = triple.what.startswith("gradient of ")
    scale = max_magnitude(
        reference, finite if sums else ~same & reference.isfinite() & right.isfinite()
    )
    comparable = finite & (reference.abs() <= scale)
    made = max_magnitude(left - reference, comparable)
    if made > max(_CREDIBLE * scale, CREDIBLE_ULPS * eps * scale):
        made = 0.0
    allowed = _FACTOR * max(made, earned * scale)
    near_oracle = (right - reference).abs() <= (
        allowed
        + eps * (ULPS * reference.abs() + (triple.sum_ulps if sums else _SCALE_ULPS) * scale)
    )
    near_oracle &= reference.isfinite()  # everything is within a tolerance that is infinite
    near_original = left.isfinite() & ((right - left).abs() <= eps * ULPS * left.abs())
    cut_off = _SUBNORMAL * eps * torch.finfo(original.dtype).smallest_normal
    near_original |= left.isfinite() & ((right - left).abs() <= cut_off)
    near_oracle |= (right - reference).abs() <= cut_off
    # Where nearly everything cancels, the original itself is noise.
    near_oracle |= finite & ((right - reference).abs() <= _FACTOR * (left - reference).abs())
    if sums and scale <= ZERO * triple.noise:
        near_oracle |= finite & (right.abs() <= _ZERO_ULPS * eps * triple.noise)
    least = scale if sums else 0.0
    near_oracle |= find_restored(left, right, reference, CREDIBLE_ULPS * eps, least)
    # Where the original overflows and float64 does not, the patched value may be either.
    at_oracle = (rounded == patched) | (rounded.isnan() & patched.isnan())
    return same | at_oracle | (right.isfinite() & (near_oracle | near_original))


def is_delicate(triple: Triple) -> bool:
    """Say whether numbers are beyond what says whether a patch is right: gradients, half dtypes."""
    return triple.what.startswith("gradient of ") or is_half(triple)


def is_half(triple: Triple) -> bool:
    """Say whether numbers are none of float32, whose roundings are small.

    Whole ones are none either: what no rounding makes of them is another result.
    """
    return triple.original.is_floating_point() and triple.original.dtype != torch.float32


def find_far(triple: Triple, wrong: torch.Tensor) -> torch.Tensor:
    """Return where a float32 gradient is off by a share of the largest one of its call.

    Where all of them cancel, what is left may be off by itself, but not by as much as that.
    """
    if is_half(triple) or triple.oracle is None or not triple.noise:
        return torch.zeros_like(wrong)
    off = (triple.patched.double() - triple.original.double()).abs()
    return wrong & (off > _FAR_OFF * triple.noise)


def rank_doubt(triple: Triple, wrong: torch.Tensor) -> tuple[int, float]:
    """Return how much of a difference may be rounding: least of a float32 result that is far off.

    By how far off the worst of these elements is, in roundings of the largest one.
    """
    rank = is_delicate(triple) + is_half(triple)
    if not triple.original.is_floating_point():
        return rank, -math.inf
    left, right = triple.original.double(), triple.patched.double()
    off = (right - left).abs().nan_to_num(math.inf)
    scale = max(max_magnitude(left, left.isfinite()), triple.noise) or 1.0
    return rank, -max_magnitude(off, wrong) / scale / eps_of(triple.original.dtype)


def eps_of(dtype: torch.dtype) -> float:
    """Return the distance of 1 to the next number, 0 for whole numbers."""
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def find_excused(triple: Triple, further: Further | None) -> torch.Tensor:
    """Return where a gradient is zero, what it tends to, or overflows."""
    ways = find_rounded_zeros, find_limits, find_overflown
    return torch.stack([find(triple, further) for find in ways]).any(0)


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


def find_overflown(triple: Triple, further: Further | None) -> torch.Tensor:
    """Return where a gradient overflows in one version, in halves: so far off is the original.

    Of two nearly equal numbers in a group, what is left of large ones, divided by their deviation.
    In float64 the patched code must have the gradient itself. Where it alone overflows, no digit of
    the original may be right: both divide by what rounding has left.
    """
    nowhere = torch.zeros_like(triple.original, dtype=torch.bool)
    half = triple.original.dtype in {torch.float16, torch.bfloat16}
    if further is None or triple.oracle is None or not half or not triple.noise:
        return nowhere
    most, real = torch.finfo(triple.original.dtype).max, triple.oracle.double()
    before, after = triple.original.isfinite(), triple.patched.isfinite()
    lost, left = ~before & after & (real.abs() <= most), before & ~after
    off = max_magnitude(triple.original.double() - real, left)
    lost |= left & (off > 0 and off >= _WORTHLESS * max_magnitude(real, left))
    seen = further.exact() if bool(lost.any()) else None
    exact = None if seen is None else seen.tensors.get(triple.what)
    if exact is None or exact.shape != lost.shape:
        return nowhere
    return lost & ((exact.double() - real).abs() <= _EXACT * triple.noise)


def find_kinks(triple: Triple, further: Further) -> torch.Tensor:
    """Return where the original has no gradient, and both versions choose one of those beside it.

    Of two equal maxima each may get it, or both a half; not both all of it: sums must be between
    those beside it as well. Where the original makes NaN, in float64 too, so must the other be.
    """
    nowhere = torch.zeros_like(triple.original, dtype=torch.bool)
    oracle = triple.original if triple.oracle is None else triple.oracle
    lost = triple.original.isnan() & oracle.isnan()
    original = torch.where(lost, triple.patched, triple.original)
    finite = original.isfinite().all() and triple.patched.isfinite().all()
    if not triple.what.startswith("gradient of ") or not finite:
        return nowhere
    beside = _stack_sides(triple, further, any_spread=bool(lost.any()))
    if beside is None or not beside.isfinite().all():
        return nowhere
    largest = max(beside.abs().max().item(), triple.noise)
    least, fine = _KINK * largest, _SMALL_KINK * largest
    both, spread = (original.double(), triple.patched.double()), beside.amax(0) - beside.amin(0)
    small = spread <= 2 * least

    def are_between(
        versions: Sequence[torch.Tensor], others: torch.Tensor, off: torch.Tensor | float
    ) -> torch.Tensor:
        low, high = others.amin(0) - off, others.amax(0) + off
        return torch.stack([(low <= one) & (one <= high) for one in versions]).all(0)

    if not bool(are_between(both, beside, least).all()):
        return nowhere
    near = ~small | are_between(both, beside, _SMALL_SHARE * spread)
    found = lost | ((spread > 2 * fine) & near)
    for axis in range(nowhere.dim()):
        sums, others = (
            [one.sum(axis, keepdim=True) for one in both],
            beside.sum(axis + 1).unsqueeze(axis + 1),
        )
        kept, closely = (are_between(sums, others, off) for off in (least, fine))
        found &= torch.where(small & ~lost, closely, kept)
    return found


def _stack_sides(triple: Triple, further: Further, *, any_spread: bool) -> torch.Tensor | None:
    """Return the gradients beside a call; None if there are too few, or soon no kink is seen."""
    known = (seen.tensors.get(triple.what) for seen in further.near())
    every = (make_real(v).double() for v in known if v is not None)
    sides = list(itertools.islice(every, _ENOUGH_SIDES))
    if len(sides) < _SIDES or len({triple.original.shape, *(side.shape for side in sides)}) > 1:
        return None
    beside = torch.stack(sides)
    if not any_spread and bool(
        (beside.amax(0) - beside.amin(0) <= _SMALL_KINK * triple.noise).all()
    ):
        return None
    sides += every
    return torch.stack(sides) if len({side.shape for side in sides}) == 1 else None


def largest_gradient(oracle: CallRecord | None) -> float:
    """Return the largest element of all gradients of a call."""
    found = [] if oracle is None else oracle.tensors.items()
    return max(
        (
            max_magnitude((value.abs() if value.is_complex() else value).double(), value.isfinite())
            for name, value in found
            if value is not None and name.startswith("gradient of ")
        ),
        default=0.0,
    )


def find_restored(
    original: torch.Tensor,
    patched: torch.Tensor,
    oracle: torch.Tensor,
    share: float,
    least: float = 0.0,
) -> torch.Tensor:
    """Return where the patched code, but for this share, has what the original loses to rounding.

    The mean square of small numbers is 0 in float16, and what is divided by its root is NaN.
    ``least``: what a share is taken of at least; of a gradient, which is a sum, the largest one.
    """
    near = (patched - oracle).abs() <= share * oracle.abs().clamp(min=least)
    return ~original.isfinite() & oracle.isfinite() & near


def find_noise(triple: Triple, further: Further, wrong: torch.Tensor) -> torch.Tensor:
    """Return for each element whether the original, rounded otherwise, is as far off."""
    nowhere = torch.zeros_like(triple.original, dtype=torch.bool)
    found = further.spread()
    plain = None if found is None else found.plain.tensors.get(triple.what)
    if found is None or plain is None:
        return nowhere
    if triple.original.is_floating_point():
        explained = _is_within_noise(triple, found, plain, wrong)
    else:
        explained = _is_decided_by_noise(triple, found)
    return explained if not (explained & wrong).any() or found.repeats(triple.what) else nowhere


def _is_within_noise(
    triple: Triple, found: Spread, plain: torch.Tensor, wrong: torch.Tensor
) -> torch.Tensor:
    """Return where numbers are as far off as other roundings are from each other.

    No more of these are tried once they explain all that is ``wrong``.
    """
    center, spread = make_real(plain).double(), torch.zeros_like(triple.original).double()
    right, accepted = triple.patched.double(), torch.zeros_like(triple.original, dtype=torch.bool)
    means = [v.double() for v in (triple.original, triple.oracle) if v is not None]
    for other in found.noisy:
        value = other.tensors.get(triple.what)
        if value is not None and make_real(value).shape == spread.shape == center.shape:
            spread = spread.maximum((make_real(value).double() - center).abs().nan_to_num(0, 0, 0))
        for one in means:
            accepted |= right.isfinite() & ((right - one).abs() <= NOISES * spread)
        if not bool((wrong & ~accepted).any()):
            break
    return accepted


def _is_decided_by_noise(triple: Triple, found: Spread) -> torch.Tensor:
    """Return where a whole number or a flag is another as soon as the original rounds otherwise.

    The nearest of three codes that are equally far: which it is says nothing of the code.
    """
    others = [other.tensors.get(triple.what) for other in found.noisy]
    accepted = torch.zeros_like(triple.original, dtype=torch.bool)
    for value in (*others, triple.oracle):
        if (
            value is not None
            and value.shape == accepted.shape
            and value.dtype == triple.patched.dtype
        ):
            accepted |= value == triple.patched
    return accepted


def make_real(value: torch.Tensor) -> torch.Tensor:
    """Return complex numbers as pairs, which are compared like other numbers."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def max_magnitude(value: torch.Tensor, where: torch.Tensor) -> float:
    """Return the largest magnitude there, 0 if there is none."""
    return value.abs().masked_fill_(~where, 0).max().item() if value.numel() else 0.0


def relative_error(value: torch.Tensor, oracle: torch.Tensor | None) -> float:
    """Return how far a tensor is off, of the largest element that is finite in both."""
    if oracle is None or not value.is_floating_point() or not value.numel():
        return 0.0
    left, right = value.double(), oracle.double()
    apart = (left - right).abs_().max().item()
    if math.isfinite(apart):  # then both are, everywhere
        magnitude = right.abs().max().item()
        return apart / magnitude if magnitude else apart
    finite = left.isfinite() & right.isfinite()
    error, magnitude = max_magnitude(left - right, finite), max_magnitude(right, finite)
    return error / magnitude if magnitude else error
