"""Judge two observations by a third: original and patched code against float64.

An element passes if it is as close to the float64 value as twice the error that the original
makes at elements of that magnitude, or within two units in the last place of the original; or, as
a sum that cancels may be off by more, as close as the original, rounded otherwise, is to itself.

In float16, where the original has 0.4998 and float64 says 0.50012, the error made is 0.0003: 0.5006
passes, which is within twice of that, and 0.503 does not.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import torch

from npufix.rewriters.verification.calls.leaves import spell_apart, tells_apart
from npufix.rewriters.verification.judge.allowances import (
    ZERO,
    Further,
    Triple,
    find_kinks,
    find_limits,
    find_noise,
    find_overflown,
    find_restored,
    find_rounded_zeros,
    largest_gradient,
    make_real,
    max_magnitude,
    relative_error,
)
from npufix.rewriters.verification.verdict import Measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import TypeAlias

    from npufix.rewriters.verification.calls.observe import CallRecord

    Earned: TypeAlias = Mapping[tuple[str, torch.dtype], float]

_FACTOR = 2.0
"""How much worse than the original's error the patched error may be."""
_ULPS = 2.0
"""Half an ulp each for the two roundings, and as much again for another order of operations."""
_SCALE_ULPS = 0.5
"""Of the largest element that matters: what cancellation leaves of one rounding of an operand."""
_CREDIBLE_ULPS = 32.0
"""An error beyond this is not carried over to other cases: it belongs to its own input."""
_ZERO_ULPS = 4.0
"""And in other dtypes, where the same sum cancels."""
_NOISE_S = 12.0
"""For other roundings of all cases; they are asked for until one of them explains nothing."""
_SUBNORMAL = 4.0
"""Units of the smallest number of a dtype, below which its numbers are not rounded but cut off."""
_MANY = 1 << 16
"""Elements that are looked at once, in the end: smaller calls show as well what is certain."""
_CREDIBLE = 0.1
"""An original further off than this, for all cancellation, has overflowed or taken a branch."""


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


def _place(what: str) -> Seen:
    if what.startswith(("gradient of ", "requires_grad of ")):
        return Seen.GRADIENT
    return (
        Seen.RESULT
        if what.startswith(("result", "type of result", "order of result"))
        else Seen.EFFECT
    )


class _Errors(NamedTuple):
    original: float
    patched: float


@dataclass(slots=True)
class Judge:
    """Collects cases; tolerance is earned over all of them before any is judged."""

    differences: list[Difference] = field(default_factory=list)
    """What is not a matter of rounding at once; the values after ``decide``."""
    cases: int = 0
    without_oracle: bool = False
    kinks: set[str] = field(default_factory=set)
    """Gradients that are others where there is none: at two equal maxima, at the 0 of a ReLU."""
    undecided: str = ""
    """What differs, and there was no time to ask how large noise is."""
    _triples: list[tuple[str, int, Triple, Further | None]] = field(default_factory=list)
    _certain: list[Difference] = field(default_factory=list)
    _looked_at: int = 0
    """How many of the tensors those were sought in."""

    def add(  # noqa: PLR0913 - one run each
        self,
        case: str,
        size: int,
        original: CallRecord,
        patched: CallRecord,
        oracle: CallRecord | None,
        *,
        further: Further | None = None,
        any_numbers: bool = True,
    ) -> None:
        """Take a case in which the original ran without an exception.

        ``any_numbers``: fused operators may draw other random numbers, or from elsewhere.
        """
        self.cases += 1
        still = not (original.flows or patched.flows)

        def differs(text: str, what: str = "", seen: Seen | None = None) -> None:
            at = _place(what) if seen is None else seen
            # ``if rows.numel():`` leaves an expert without tokens out; without it there are zeros.
            moved = original.moves(what) or patched.moves(what)
            rests = still or (what.startswith("gradient of ") and not moved)
            self.differences.append(Difference(text, case, size, what=what, seen=at, still=rests))

        if patched.error:
            during = " in backward" if patched.stage == "backward" else ""
            text = f"the original runs, the patched code raises {patched.error}{during}"
            differs(text, seen=Seen.ERROR)
            return
        if patched.without_second and not original.without_second:
            why = patched.without_second
            text = f"the gradients of the patched code have none themselves: {why}"
            differs(text, seen=Seen.GRADIENT)
        unlike = _own_affair(original, patched)
        nothing = (n for n, t in original.tensors.items() if t is not None and not t.numel())
        unlike |= {f"requires_grad of {name}" for name in nothing}
        if patched.without_second or original.without_second:
            every = original.tensors.keys() | patched.tensors.keys()
            unlike |= {n for n in every if n.startswith("gradient of the gradients by ")}
        original, patched, oracle = _with_surroundings(original, patched, oracle)
        for text, name in _of_plain_values(original, patched, unlike):
            differs(text, name)
        for name in sorted(patched.left_at.keys() - original.left_at.keys()) * (not any_numbers):
            text = f"the patched code draws random numbers from {name}, the original none"
            differs(text, f"random numbers of {name}")
        for text, name, seen in _of_memory(original, patched):
            differs(text, f"memory of {name}", seen)
        for text, name in _of_strides(original, patched):
            differs(text, f"strides of {name}", Seen.STRIDES)
        for text, name in self._of_tensors(
            case, size, (original, patched, oracle), unlike, further
        ):
            differs(text, name)

    def _of_tensors(
        self,
        case: str,
        size: int,
        seen: tuple[CallRecord, CallRecord, CallRecord | None],
        unlike: set[str],
        further: Further | None,
    ) -> Iterator[tuple[str, str]]:
        """Yield where tensors are not of one kind; keep the others to be judged."""
        original, patched, oracle = seen
        # Of an empty result, or of nothing but NaN, no gradient tells; nor without elements.
        results = [t for n, t in original.tensors.items() if n.startswith("result")]
        empty = bool(results) and all(t is None or bool(t.isnan().all()) for t in results)
        noise = largest_gradient(oracle)
        names = [*original.tensors, *(patched.tensors.keys() - original.tensors.keys())]
        for name in (n for n in names if n not in unlike):
            left, right = original.tensors.get(name), patched.as_number(name, original)
            text = tell_apart(name, left, right)
            given = [t for t in (left, right) if t is not None]
            alone = len(given) == 1 and not given[0].numel()
            nothing = (empty or alone) and name.startswith("gradient of ")
            if text and not nothing:
                yield text, name
            if text or nothing or left is None or right is None:
                continue
            found = oracle.tensors.get(name) if oracle is not None and not oracle.error else None
            reference = found if found is not None and found.shape == left.shape else None
            self.without_oracle |= left.is_floating_point() and reference is None
            own = noise if name.startswith("gradient of ") else 0.0
            reference = None if reference is None else make_real(reference)
            left, right = make_real(left), make_real(right)
            error, terms = relative_error(left, reference), size // max(left.numel(), 1)
            triple = Triple(name, left, right, reference, own, error, terms)
            self._triples.append((case, size, triple, further))

    def earned(self) -> Earned:
        """Return the largest error of the original over all cases, for each tensor and dtype."""
        earned: dict[tuple[str, torch.dtype], float] = {}
        for _, _, triple, _ in self._triples:
            if triple.error <= _CREDIBLE_ULPS * _eps(triple.original.dtype):
                key = (triple.what, triple.original.dtype)
                earned[key] = max(earned.get(key, 0.0), triple.error)
        return earned

    def find_certain(self) -> list[Difference]:
        """Return where values are others in float32, whatever the cases to come may earn.

        One of them is held against other roundings: beyond it ``decide`` asks of no other either.
        """
        new, self._looked_at = self._triples[self._looked_at :], len(self._triples)
        for case, size, triple, further in new:
            if not size or triple.original.numel() > _MANY or _is_delicate(triple):
                continue
            wrong = ~find_accepted(triple, _CREDIBLE_ULPS * _eps(triple.original.dtype))
            if wrong.any() and further is not None and not self._certain:
                wrong &= ~(find_noise(triple, further) | self._find_kinks(triple, further, case))
            if wrong.any():
                self._certain.append(_difference(triple, wrong, case, size))
        return self._certain

    def decide(self, other: Earned | None = None, *, hopeless: bool = False) -> None:
        """Judge the values of all cases, with the tolerance that ``other`` cases have earned.

        ``hopeless``: something else refutes them, so that nobody need know what is noise.
        """
        earned = {**self.earned(), **(other or {})}
        deadline = time.process_time() + _NOISE_S
        for case, size, triple, further in self._triples:
            wrong = ~find_accepted(triple, earned.get((triple.what, triple.original.dtype), 0.0))
            if wrong.any():
                ways = find_rounded_zeros, find_limits, find_overflown
                wrong &= ~torch.stack([find(triple, further) for find in ways]).any(0)
            asks = further is not None and not hopeless
            if wrong.any() and asks and time.process_time() > deadline:
                self.undecided = self.undecided or f"{triple.what}, for {case}"
                continue
            if wrong.any() and further is not None and asks:
                wrong &= ~(find_noise(triple, further) | self._find_kinks(triple, further, case))
                # What is off by more than noise once is not worth the question again.
                hopeless = bool(wrong.any()) and not _is_delicate(triple)
            if wrong.any():
                found = _difference(triple, wrong, case, size)
                # What may be noise is no counterexample where there is another.
                found.visible &= further is None or asks or not _is_delicate(triple)
                self.differences.append(found)

    def _find_kinks(self, triple: Triple, further: Further, case: str) -> torch.Tensor:
        found = find_kinks(triple, further)
        self.kinks |= {f"{triple.what}, for {case}"} if found.any() else set()
        return found

    def take(self, other: Judge) -> None:
        """Add what another judge has seen and decided."""
        self.differences += other.differences
        self.cases += other.cases
        self.without_oracle |= other.without_oracle
        self.kinks |= other.kinks
        self.undecided = self.undecided or other.undecided
        self._triples += other._triples

    def measures(self, changed: set[str]) -> tuple[Measure, ...]:
        """Return the worst errors per tensor and dtype, leaving out what no call touched."""
        worst: dict[tuple[str, str], _Errors] = {}
        for _, _, triple, _ in self._triples:
            name = triple.what.removesuffix(" after the call")
            if name != triple.what and name not in changed:
                continue
            key = (triple.what, str(triple.original.dtype).removeprefix("torch."))
            reference = triple.original if triple.oracle is None else triple.oracle
            same = torch.equal(triple.original, triple.patched)
            patched = triple.error if same else relative_error(triple.patched, reference)
            found = _Errors(triple.error, patched)
            if key not in worst or found.patched >= worst[key].patched:
                worst[key] = found
        return tuple(
            Measure(what, dtype, errors.original, errors.patched)
            for (what, dtype), errors in worst.items()
        )


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
    eps = _eps(original.dtype)
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
    if made > max(_CREDIBLE * scale, _CREDIBLE_ULPS * eps * scale):
        made = 0.0
    allowed = _FACTOR * max(made, earned * scale)
    near_oracle = (right - reference).abs() <= (
        allowed
        + eps * (_ULPS * reference.abs() + (triple.sum_ulps if sums else _SCALE_ULPS) * scale)
    )
    near_oracle &= reference.isfinite()  # everything is within a tolerance that is infinite
    near_original = left.isfinite() & ((right - left).abs() <= eps * _ULPS * left.abs())
    cut_off = _SUBNORMAL * eps * torch.finfo(original.dtype).smallest_normal
    near_original |= left.isfinite() & ((right - left).abs() <= cut_off)
    near_oracle |= (right - reference).abs() <= cut_off
    # Where nearly everything cancels, the original itself is noise.
    near_oracle |= finite & ((right - reference).abs() <= _FACTOR * (left - reference).abs())
    if sums and scale <= ZERO * triple.noise:
        near_oracle |= finite & (right.abs() <= _ZERO_ULPS * eps * triple.noise)
    least = scale if sums else 0.0
    near_oracle |= find_restored(left, right, reference, _CREDIBLE_ULPS * eps, least)
    # Where the original overflows and float64 does not, the patched value may be either.
    at_oracle = (rounded == patched) | (rounded.isnan() & patched.isnan())
    return same | at_oracle | (right.isfinite() & (near_oracle | near_original))


def _is_delicate(triple: Triple) -> bool:
    """Say whether numbers are beyond what says whether a patch is right: gradients, half dtypes."""
    return triple.what.startswith("gradient of ") or triple.original.dtype != torch.float32


def _with_surroundings(
    original: CallRecord, patched: CallRecord, oracle: CallRecord | None
) -> tuple[CallRecord, CallRecord, CallRecord | None]:
    """Add what the calls have changed in their modules, as far as both modules know the name."""
    roots = original.known & patched.known

    def is_known(name: str) -> bool:
        plain = name.rpartition(" of ")[2]  # its type, state or order
        return any(plain == r or plain.startswith((f"{r}[", f"{r}.")) for r in roots)

    wrote = original.changed | patched.changed
    names = {n for n in wrote if n in original.around or n in patched.around}
    chosen = {n for n in names if is_known(n)}

    def added(record: CallRecord) -> CallRecord:
        here = {f"{n} after the call": record.around[n] for n in chosen if n in record.around}
        tensors = {n: v for n, v in here.items() if isinstance(v, torch.Tensor)}
        plain = {n: v for n, v in here.items() if n not in tensors}
        return replace(
            record, tensors={**record.tensors, **tensors}, plain={**record.plain, **plain}
        )

    if not chosen:
        return original, patched, oracle
    return added(original), added(patched), None if oracle is None else added(oracle)


def _of_plain_values(
    original: CallRecord, patched: CallRecord, unlike: set[str]
) -> Iterator[tuple[str, str]]:
    """Yield what differs and is no tensor."""
    for name in sorted((original.plain.keys() | patched.plain.keys()) - unlike):
        none = False if name.startswith("requires_grad of ") else None
        before, after = original.plain.get(name, none), patched.plain.get(name, none)
        if (type(before) is not type(after) or before != after) and tells_apart(
            name, before, after
        ):
            this, that = spell_apart(before, after)
            yield f"{name} is {this} in the original, {that} in the patched code", name


def _of_memory(original: CallRecord, patched: CallRecord) -> Iterator[tuple[str, str, Seen]]:
    """Yield what differs in who holds which memory, whose it is, and where that is seen.

    Who writes into a result that shares what it did not share before changes something else.
    """
    for name in original.aliases.keys() | patched.aliases.keys():
        mine, theirs = original.aliases.get(name), patched.aliases.get(name)
        left, right = original.tensors.get(name), patched.tensors.get(name)
        both = left is not None and right is not None and left.shape == right.shape
        if both and mine != theirs:
            yield (
                (
                    f"{name} shares memory with {_names(mine)} in the original, "
                    f"with {_names(theirs)} in the patched code"
                ),
                name,
                Seen.EFFECT if theirs and not theirs <= (mine or frozenset()) else Seen.MEMORY,
            )
    for name in sorted(patched.replaced & original.changed - original.replaced):
        yield (
            f"{name} is written into by the original, the patched code replaces it",
            name,
            Seen.MEMORY,
        )


def _of_strides(original: CallRecord, patched: CallRecord) -> Iterator[tuple[str, str]]:
    """Yield the results that are contiguous in the original alone."""
    for name in sorted(patched.strides.keys() - original.strides.keys()):
        left, right = original.tensors.get(name), patched.tensors.get(name)
        if left is not None and right is not None and left.shape == right.shape:
            yield (
                (
                    f"{name} {list(left.shape)} is contiguous in the original, in the patched "
                    f"code it has the strides {list(patched.strides[name])}: a later .view raises"
                ),
                name,
            )


def _own_affair(original: CallRecord, patched: CallRecord) -> set[str]:
    """Return what one version keeps in an attribute that the other does not have.

    Each speaks for its own: what the original gives back cannot be the changed code's affair.
    """
    first, second = (o.plain.keys() | o.tensors.keys() for o in (original, patched))
    own = ((first - second, original.idle), (second - first, patched.idle))
    return {n for names, idle in own for n in names if n.removesuffix(" after the call") in idle}


def tell_apart(name: str, left: torch.Tensor | None, right: torch.Tensor | None) -> str:
    """Say what keeps two tensors from being compared; empty if nothing."""
    if left is None and right is None:
        return ""
    if left is None or right is None:
        absent, present = ("original", "patched code")[:: 1 if left is None else -1]
        return f"{name} is None in the {absent} and a tensor in the {present}"
    if left.dtype != right.dtype or left.shape != right.shape:
        return f"{name} is {_kind(left)} in the original, {_kind(right)} in the patched code"
    return ""


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def _kind(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _names(names: frozenset[str] | None) -> str:
    return " and ".join(sorted(names)) if names else "nothing"


def _difference(triple: Triple, wrong: torch.Tensor, case: str, size: int) -> Difference:
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
        f"{triple.what} {_kind(triple.original)}{where} is {left:.6g} in the original, "
        f"{right:.6g} in the patched code{reference}{count}"
    )
    visible = f"{left:.3g}" != f"{right:.3g}"
    least = abs(left - right) / 2
    least = least if math.isfinite(least) else 0.0
    place = _place(triple.what)
    finite = triple.original[wrong].isfinite() & ~triple.patched[wrong].isfinite()
    leaks = place is not Seen.GRADIENT and bool(finite.any())
    return Difference(text, case, size, visible, triple.what, least, place, leaks)
