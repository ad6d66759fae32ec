"""Calls made once more after others, where they leave something behind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.values import MadeArgument, Spec, Tensor, Value
from npufix.rewriters.verification.inputs.arguments import is_integral
from npufix.rewriters.verification.inputs.objects.offers import let_fail
from npufix.rewriters.verification.judge.observe_case import CaseRun, observe_original

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.verification.calls.observe import CallRecord
    from npufix.rewriters.verification.inputs.target import Assignment, CallCase, Target
    from npufix.rewriters.verification.judge.evidence import Proof

_MOST_AGAIN = 6
_MOST_AFTER_OTHERS = 10
"""The same for calls after one with other arguments."""
_MOST_IN_OTHER = 2
"""The same for calls after one in another dtype."""
_AFTER = {torch.float32: torch.bfloat16, torch.bfloat16: torch.float32}
_CACHES = "cache"


def call_again(
    run: Proof, original: Target, one: CaseRun, after: CallRecord, compared: Sequence[CaseRun]
) -> Iterator[CaseRun]:
    """Yield the same call after others, if calls leave something behind: a cache, a counter.

    After the same one; after a longer or a shorter one, for which a table was made; after one that
    differs in a single size, which its key may leave out; after one whose functions have failed;
    and after the same in another dtype, in which the table was made.
    """
    case = one.case
    own = [
        name
        for seen in (one.original, after)
        for name in seen.changed
        if name in seen.around or name.startswith("self.")
    ]
    keeps = own or case.assignment.recipe is not None or _CACHES in run.job.patched
    plain = case.flavour == "ordinary" and not case.seed and not case.steps
    if not keeps or not plain or one.dtype not in _AFTER:
        return
    ways: list[tuple[Assignment | None, torch.dtype | None]] = []
    other = None
    if one.dtype == torch.float32:
        other = _find_of_another_size(case, compared)
        specs = case.assignment.specs
        failing = let_fail(specs)
        failed = None if failing == specs else replace(case.assignment, specs=failing)
        near = _find_nearby(case, compared)
        ways = [(case.assignment, None), (other, None), (near, None), (failed, None)]
    for earlier, dtype in (*ways, (case.assignment, _AFTER[one.dtype])):
        again = None
        if dtype is not None and not _keeps_a_cache(run, case):
            continue
        kind = earlier is case.assignment, dtype, one.dtype
        before = [_kind_of_again(c) == kind for c in run.called_again]
        most = _MOST_AGAIN if kind[0] else _MOST_AFTER_OTHERS
        if earlier is not None and sum(before) < (most if dtype is None else _MOST_IN_OTHER):
            again = observe_original(
                original,
                replace(case, earlier=earlier, earlier_dtype=dtype),
                one.dtype,
                inference=run.job.inference,
                modes=(one.gradients,),
                second=one.second,
            )
        if again is not None:
            run.called_again.append(again)
            yield again


def _find_of_another_size(case: CallCase, compared: Sequence[CaseRun]) -> Assignment | None:
    """Return the last arguments of another size that the same object was called with."""
    own, size = case.assignment, case.size
    known = {id(own)}
    for seen in (c.case for c in reversed(compared) if c.case.flavour == "ordinary"):
        other = seen.assignment
        if id(other) in known:
            continue
        known.add(id(other))
        alike = other.recipe == own.recipe and other.specs.keys() == own.specs.keys()
        if alike and seen.size != size and not is_integral(other.specs):
            return other
    return None


def _find_nearby(case: CallCase, compared: Sequence[CaseRun]) -> Assignment | None:
    """Return the last arguments that one size or whole number alone tells from those of a call."""
    own = case.assignment
    for seen in (c.case for c in reversed(compared) if c.case.flavour == "ordinary"):
        other = seen.assignment
        alike = other.recipe == own.recipe and other.specs.keys() == own.specs.keys()
        if alike and len(set(_list_unlike(own.specs, other.specs))) == 1:
            return other
    return None


def _list_unlike(left: Mapping[str, Spec], right: Mapping[str, Spec]) -> Iterator[tuple[int, ...]]:
    """Yield the sizes and whole numbers that differ; two of nothing where all else does."""
    for spec, other in ((s, right[n]) for n, s in left.items() if s != right[n]):
        match spec, other:
            case Tensor(), Tensor() if replace(spec, shape=other.shape) == other:
                pairs = zip(spec.shape, other.shape, strict=False)
                yield from (pair for pair in pairs if pair[0] != pair[1])
                yield from ((), (0,)) * (len(spec.shape) != len(other.shape))
            case Value(value=int(one)), Value(value=int(two)):
                yield one, two
            case _:
                yield from ((), (0,))


def _keeps_a_cache(run: Proof, case: CallCase) -> bool:
    """Say whether a call leaves nothing more behind when it is made again, in any dtype.

    What averages all calls, or has weights or a model, is of one dtype for good.
    """
    if any(isinstance(s, MadeArgument) for s in case.assignment.specs.values()):
        return False
    alike = (c for c in run.called_again if c.case.earlier == case.assignment == c.case.assignment)
    seen = next((c.original for c in alike if c.case.earlier_dtype is None), None)
    if seen is None or seen.weighted:
        return False
    return not any(name in seen.around or name.startswith("self.") for name in seen.changed)


def _kind_of_again(one: CaseRun) -> tuple[bool, torch.dtype | None, torch.dtype]:
    case = one.case
    return case.earlier == case.assignment, case.earlier_dtype, one.dtype
