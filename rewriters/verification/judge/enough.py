"""When the differences that were found refute, so that no more calls are needed."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.values import list_dimensions
from npufix.rewriters.verification.judge.difference import Difference, Seen
from npufix.rewriters.verification.judge.judge import Judge
from npufix.rewriters.verification.judge.observe_case import (
    CaseRun,
    choose_dtypes,
    observe_again,
    observe_in_float64,
)
from npufix.rewriters.verification.judge.plausibility import set_aside
from npufix.rewriters.verification.verdict import NotVerifiedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from npufix.rewriters.verification.inputs.target import CallCase, Target
    from npufix.rewriters.verification.judge.evidence import Proof

_ENOUGH = 12
_AT_ONCE = 8
"""Cases that run in all their dtypes at once, for those that take long."""
_IS_NAN = re.compile(r"\bis nan in the original\b")
_HELD = math.nan, 7.0
"""What memory holds while the original is called again: is what differs a matter of luck?"""


def list_runs(
    cases: Iterable[CallCase], original: Target, is_refuted: Callable[[], bool]
) -> Iterator[tuple[CallCase, tuple[torch.dtype, ...]]]:
    """Yield the cases, each with dtypes to run it in: in those of fewer bits after all others.

    And no longer where the others have refuted the change: most differences show in float32.
    """
    later = []
    for number, case in enumerate(cases):
        first, *others = choose_dtypes(case, original)
        if number < _AT_ONCE or not others:
            yield case, (first, *others)
        else:
            yield case, (first,)
            later.append((case, tuple(others)))
    if later and not is_refuted():
        yield from later


def is_enough(
    run: Proof, original: Target, compared: Sequence[CaseRun], most: int = _ENOUGH
) -> bool:
    """Say whether there are more than ``most`` differences, of those that refute."""
    found = [*run.judge.differences, *run.judge.find_certain()]
    if len(found) <= (max(most, run.looked_at) if most else 0):
        return False
    run.looked_at = len(found) + _ENOUGH
    kept, _ = set_aside(run.job, found, compared, so_far=True)
    # Whether all results share memory, or those of some sizes, the others tell; and whether a
    # gradient that is none flows at all. That nothing is refused may be all that differs, or hide
    # what does.
    full = {c.label for c in compared if 0 not in list_dimensions(c.case.assignment.specs)}
    told = (d for d in kept if not (d.still or re.match(r"^memory of result", d.what)))
    sure = [d for d in told if d.case in full]
    if len(sure) <= most:
        return False
    first = min(sure, key=lambda d: d.rank)
    one = next((c for c in compared if c.label == first.case), None)
    return one is None or _repeats(run, original, one, first)


def leave_out_unrepeated(run: Proof, original: Target, compared: list[CaseRun]) -> None:
    """Leave out what the original itself computes otherwise when it is called again.

    The gradient of a convolution in bfloat16, of few columns, holds what was in memory before.

    Raises:
        NotVerifiedError: results in float32 are of that kind, and nothing else differs.

    """
    calls, left = {c.label: c for c in reversed(compared)}, list(run.judge.differences)
    by_luck = False
    for first in sorted(left, key=lambda d: d.rank):
        one = calls.get(first.case)
        if first not in left:
            continue
        # Where some of it is what was in memory, so may NaN be, and no gradient tells more.
        unclear = first.seen is Seen.GRADIENT or _IS_NAN.search(first.text) is not None
        if one is None or (not (by_luck and unclear) and _repeats(run, original, one, first)):
            break
        whole = first.seen is Seen.RESULT
        by_luck = by_luck or whole
        left = [d for d in left if d.case != first.case or not (whole or d.what == first.what)]
    if len(left) < len(run.judge.differences):
        run.notes.append("some numbers of the original are others with every call")
        for out in (d for d in run.judge.differences if not left and d.seen is Seen.RESULT):
            if out.case in calls and calls[out.case].dtype == torch.float32:
                raise NotVerifiedError(
                    f"{out.text}, for {out.case}, where the original is another with every call"
                )
        run.judge.differences = left


def _repeats(run: Proof, original: Target, one: CaseRun, difference: Difference) -> bool:
    """Say whether the original does the same again, called again, where something differs."""
    if difference.seen not in {Seen.RESULT, Seen.GRADIENT}:
        return True
    reference, unlike = lru_cache(lambda: observe_in_float64(original, one)), Judge()
    for held in _HELD:
        again = observe_again(original, one, difference.what, held)
        unlike.add(one.label, one.case.size, one.original, again, reference)
    unlike.decide(run.judge)
    return all(d.what != difference.what for d in unlike.differences)
