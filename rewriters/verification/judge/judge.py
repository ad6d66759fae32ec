"""Judge two observations by a third: original and patched code against float64.

An element passes if it is as close to the float64 value as twice the error that the original
makes at elements of that magnitude, or within two units in the last place of the original; or, as
a sum that cancels may be off by more, as close as the original, rounded otherwise, is to itself.

In float16, where the original has 0.4998 and float64 says 0.50012, the error made is 0.0003: 0.5006
passes, which is within twice of that, and 0.503 does not.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import torch

from npufix.rewriters.verification.calls.leaves import (
    spell_apart,
    tell_apart,
    tells_apart,
)
from npufix.rewriters.verification.calls.surroundings import (
    find_changed_around,
    with_changed_around,
)
from npufix.rewriters.verification.judge.allowances import (
    CREDIBLE_ULPS,
    Further,
    KnownNoise,
    Triple,
    eps_of,
    find_accepted,
    find_excused,
    find_far,
    find_kinks,
    find_noise,
    is_delicate,
    is_half,
    largest_gradient,
    make_real,
    rank_doubt,
    relative_error,
)
from npufix.rewriters.verification.judge.difference import (
    Difference,
    Seen,
    describe_difference,
    place_of,
)
from npufix.rewriters.verification.judge.rounding.small_numbers import find_lost
from npufix.rewriters.verification.verdict import Measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from npufix.rewriters.verification.calls.observe import CallRecord

    Key: TypeAlias = tuple[str, torch.dtype]
    """What is compared, and its dtype."""

_NOISE_S = 12.0
"""For other roundings of all cases; they are asked for until one of them explains nothing."""
_ENOUGH_CERTAIN = 3
"""Of numbers that are further off than other roundings make them, nobody need ask more."""
_MOST_DOUBTS = 2
_MANY = 1 << 16
"""Elements that are looked at once, in the end: smaller calls show as well what is certain."""


class _Errors(NamedTuple):
    original: float
    patched: float


class _Pair(NamedTuple):
    what: str
    original: torch.Tensor
    patched: torch.Tensor

    @property
    def key(self) -> Key:
        return self.what, make_real(self.original).dtype

    @property
    def alike(self) -> bool:
        """Whether all numbers are the same."""
        if torch.equal(self.original, self.patched):
            return True
        left, right = make_real(self.original), make_real(self.patched)
        return bool(((left == right) | (left.isnan() & right.isnan())).all())


class _Values(NamedTuple):
    """The tensors of a case that can be compared."""

    case: str
    size: int
    pairs: Sequence[_Pair]
    oracle: Callable[[], CallRecord | None]
    """Runs it in float64."""
    surroundings: set[str]
    """What is changed in the modules."""


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
    alike: list[_Values] = field(default_factory=list)
    """Cases of the same numbers in both versions, which nobody has run in float64."""
    asked: set[Key] = field(default_factory=set)
    """What none of them holds."""
    earned: dict[Key, float] = field(default_factory=dict)
    """The largest error of the original in the others, for each tensor and dtype."""
    _triples: list[tuple[str, int, Triple, Further | None]] = field(default_factory=list)
    _certain: list[Difference] = field(default_factory=list)
    _looked_at: int = 0
    """How many of the tensors those were sought in."""
    _doubts: int = 0
    """How many gradients that are far off were so by rounding, or have none there."""

    def add(  # noqa: PLR0913 - one run each
        self,
        case: str,
        size: int,
        original: CallRecord,
        patched: CallRecord,
        oracle: Callable[[], CallRecord | None],
        *,
        further: Further | None = None,
        any_numbers: bool = True,
    ) -> None:
        """Take a case in which the original ran without an exception.

        ``oracle`` runs the original in float64: of the same numbers nobody need know how far they
        are off. ``any_numbers``: fused operators may draw other random numbers, or from elsewhere.
        """
        self.cases += 1
        still = cache(lambda: not (original.flows or patched.flows))

        def differs(text: str, what: str = "", seen: Seen | None = None) -> None:
            at = place_of(what) if seen is None else seen
            # ``if rows.numel():`` leaves an expert without tokens out; without it there are zeros.
            moved = original.moves(what) or patched.moves(what)
            rests = still() or (what.startswith("gradient of ") and not moved)
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
        chosen = find_changed_around(original, patched)
        original, patched = (with_changed_around(seen, chosen) for seen in (original, patched))
        for text, name in _of_plain_values(original, patched, unlike):
            differs(text, name)
        for name in sorted(patched.left_at.keys() - original.left_at.keys()) * (not any_numbers):
            text = f"the patched code draws random numbers from {name}, the original none"
            differs(text, f"random numbers of {name}")
        for text, name, seen in _of_memory(original, patched):
            differs(text, f"memory of {name}", seen)
        for text, name in _of_strides(original, patched):
            differs(text, f"strides of {name}", Seen.STRIDES)
        pairs: list[_Pair] = []
        for text, name in _of_tensors(original, patched, unlike, pairs):
            differs(text, name)
        self._take_values(_Values(case, size, pairs, oracle, chosen), further)

    def _take_values(self, values: _Values, further: Further | None) -> None:
        if all(pair.alike for pair in values.pairs):
            self.alike.append(values)
            self.asked.clear()
        else:
            self._keep(values, further)

    def _keep(self, values: _Values, further: Further | None = None) -> None:
        """Keep tensors to be judged by the float64 run of their call."""
        oracle, size = values.oracle(), values.size
        oracle = None if oracle is None else with_changed_around(oracle, values.surroundings)
        noise = largest_gradient(oracle)
        for name, *both in values.pairs:
            left, right = both
            found = oracle.tensors.get(name) if oracle is not None and not oracle.error else None
            reference = found if found is not None and found.shape == left.shape else None
            self.without_oracle |= left.is_floating_point() and reference is None
            own = noise if name.startswith("gradient of ") else 0.0
            reference = None if reference is None else make_real(reference)
            left, right = map(make_real, both)
            error, terms = relative_error(left, reference), size // max(left.numel(), 1)
            triple = Triple(name, left, right, reference, own, error, terms)
            self._triples.append((values.case, size, triple, further))
            if error <= CREDIBLE_ULPS * eps_of(left.dtype):
                key = name, left.dtype
                self.earned[key] = max(self.earned.get(key, 0.0), error)

    def ask(self, key: Key) -> float:
        """Return the error of the original over all cases, those that were not asked of as well."""
        self.asked.add(key)
        every, self.alike = self.alike, []
        for one in every:
            if any(pair.key == key for pair in one.pairs):
                self._keep(one)
            else:
                self.alike.append(one)
        return self.earned.get(key, 0.0)

    def _find_wrong(self, triple: Triple, judges: Sequence[Judge]) -> torch.Tensor:
        """Return where a patched value is off by more than the original is in all cases.

        Those with the same numbers are asked of where what they may say is decisive.
        """
        key = triple.what, triple.original.dtype
        wrong = ~find_accepted(triple, max(one.earned.get(key, 0.0) for one in judges))
        if wrong.any() and any(one.alike and key not in one.asked for one in judges):
            most = find_accepted(triple, CREDIBLE_ULPS * eps_of(triple.original.dtype))
            if (wrong & most).any():
                wrong = ~find_accepted(triple, max(one.ask(key) for one in judges))
        return wrong

    def find_certain(self) -> list[Difference]:
        """Return where values are others in float32, whatever the cases to come may earn.

        One of them is held against other roundings: beyond it ``decide`` asks of no other either.
        Gradients that are far off are, where no result is, until a few were nothing but rounding.
        """
        new, self._looked_at = self._triples[self._looked_at :], len(self._triples)
        for case, size, triple, further in new:
            if not size or triple.original.numel() > _MANY or is_half(triple):
                continue
            delicate = is_delicate(triple)
            told = delicate and any(known.case == case for known in self._certain)
            if told or (delicate and (self._doubts >= _MOST_DOUBTS or further is None)):
                continue
            wrong = ~find_accepted(triple, CREDIBLE_ULPS * eps_of(triple.original.dtype))
            wrong = find_far(triple, wrong) if delicate else wrong
            if wrong.any() and further is not None and not self._certain:
                wrong &= ~find_excused(triple, further)
                wrong = self._leave_out_noise(wrong, triple, further, case)
                self._doubts += delicate and not wrong.any()
            if wrong.any():
                self._certain.append(describe_difference(triple, wrong, case, size))
        return self._certain

    def decide(
        self,
        other: Judge | None = None,
        *,
        hopeless: bool = False,
        refutes: Callable[[], bool] = lambda: True,
    ) -> None:
        """Judge the values of all cases, with the tolerance that those of ``other`` have earned.

        ``hopeless``: something else refutes them, so that nobody need know what is noise. So does
        what is off by far more, if ``refutes`` says that not all of it is set aside.
        """
        judges = [self] if other is None else [self, other]
        deadline, known, certain = time.process_time() + _NOISE_S, KnownNoise(), 0
        every = enumerate((self._find_wrong(one[2], judges), one) for one in list(self._triples))
        doubtful = [(at, wrong, one) for at, (wrong, one) in every if wrong.any()]
        # What is furthest off is noise least of all: after it, nobody need ask of the others.
        doubtful.sort(key=lambda one: rank_doubt(one[2][2], one[1]))
        before, places = len(self.differences), list[int]()
        for at, off, (case, size, triple, further) in doubtful:
            if known.covers(triple):
                continue
            wrong = off & ~find_excused(triple, further)
            asks = further is not None and not hopeless
            if wrong.any() and asks and time.process_time() > deadline:
                self.undecided = self.undecided or f"{triple.what}, for {case}"
                continue
            if wrong.any() and further is not None and asks:
                wrong = self._leave_out_noise(wrong, triple, further, case)
                certain += bool(wrong.any())
                if not wrong.any():
                    known.add(triple)
            if wrong.any():
                found = describe_difference(triple, wrong, case, size)
                # What may be noise is no counterexample where there is another.
                found.visible &= further is None or asks or not is_delicate(triple)
                self.differences.append(found)
                places.append(at)
                # What is off by more than noise once is not worth the question again.
                far = find_far(triple, wrong) if is_delicate(triple) else wrong
                enough = bool(far.any()) or certain >= _ENOUGH_CERTAIN
                hopeless = hopeless or (asks and enough and refutes())
        # The first call that tells them apart is shown, not the one that does most.
        in_order = sorted(zip(places, self.differences[before:], strict=True), key=itemgetter(0))
        self.differences[before:] = [found for _, found in in_order]
        if not self.differences[before:] and not hopeless:
            lost = itertools.islice(find_lost(self._triples), 1)
            self.differences += [describe_difference(t, w, case, size) for case, size, t, w in lost]

    def _leave_out_noise(
        self, wrong: torch.Tensor, triple: Triple, further: Further, case: str
    ) -> torch.Tensor:
        wrong = wrong & ~find_noise(triple, further, wrong)
        kinks = wrong & find_kinks(triple, further) if wrong.any() else None  # of many calls
        if kinks is None or not kinks.any():
            return wrong
        self.kinks.add(f"{triple.what}, for {case}")
        return wrong & ~kinks

    def take(self, other: Judge) -> None:
        """Add what another judge has seen and decided."""
        self.differences += other.differences
        self.cases += other.cases
        self.without_oracle |= other.without_oracle
        self.kinks |= other.kinks
        self.undecided = self.undecided or other.undecided
        self._triples += other._triples
        self.alike, self.asked = self.alike + other.alike, self.asked & other.asked
        for key, error in other.earned.items():
            self.earned[key] = max(self.earned.get(key, 0.0), error)

    def measures(self, changed: set[str]) -> tuple[Measure, ...]:
        """Return the worst errors per tensor and dtype, leaving out what no call touched.

        Where all numbers are the same, those of the first call.
        """
        for one in self.alike:
            known = {(triple.what, triple.original.dtype) for _, _, triple, _ in self._triples}
            if not known.issuperset(pair.key for pair in one.pairs):
                self._keep(one)
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
        in_order = sorted(worst, key=lambda key: key[1] != "float32")
        return tuple(Measure(*key, *worst[key]) for key in in_order)


def _of_tensors(
    original: CallRecord, patched: CallRecord, unlike: set[str], pairs: list[_Pair]
) -> Iterator[tuple[str, str]]:
    """Yield where tensors are not of one kind; keep the others, to be judged."""
    # Of an empty result, or of nothing but NaN, no gradient tells; nor without elements.
    results = [t for n, t in original.tensors.items() if n.startswith("result")]
    empty = bool(results) and all(t is None or bool(t.isnan().all()) for t in results)
    names = [*original.tensors, *(patched.tensors.keys() - original.tensors.keys())]
    for name in (n for n in names if n not in unlike):
        left, right = original.tensors.get(name), patched.as_number(name, original)
        text = tell_apart(name, left, right)
        given = [t for t in (left, right) if t is not None]
        alone = len(given) == 1 and not given[0].numel()
        nothing = (empty or alone) and name.startswith("gradient of ")
        if text and not nothing:
            yield text, name
        if not (text or nothing or left is None or right is None):
            pairs.append(_Pair(name, left, right))


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


def _names(names: frozenset[str] | None) -> str:
    return " and ".join(sorted(names)) if names else "nothing"
