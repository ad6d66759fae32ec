"""Launches before and after a change as evidence: what saves nothing is not offered."""

from __future__ import annotations

import pytest

from npufix.advisor.verdicts import NO_LAUNCH_SAVED, shown, with_launches_judged
from npufix.reports.wording import launches as in_words
from npufix.rewriters.verdict import Launches, Status, Verdict

EAGER = ("aclnnPowTensorScalar", "aclnnMean", "aclnnMul")


def verdict(launches: Launches | None, status: Status = Status.EQUIVALENT) -> Verdict:
    return Verdict(status, "torch", "f", on="virtual-npu", launches=launches)


@pytest.mark.parametrize(
    ("launches", "replaces", "becomes"),
    [
        (Launches(EAGER, ("aclnnRmsNorm",)), ("Pow", "Mul"), ("RmsNorm",)),
        # Forward launches as much, backward less.
        (Launches(EAGER, EAGER, EAGER, ()), ("Pow",), ("RmsNorm",)),
        # A slow kernel is traded for two others.
        (Launches(("aclnnGather",), ("aclnnArange", "aclnnIndex")), ("Gather",), ("Index",)),
        # Copies from the host are in no list of launches.
        (Launches(("aclnnMul",), ("aclnnInplaceOne", "aclnnMul")), ("MemcpyAsync",), ("Fill",)),
        # The same kernel, in a dtype that it is fast for.
        (Launches(("aclnnCumsum",), ("aclnnCast", "aclnnCumsum")), ("Cumsum",), ("Cumsum",)),
        (None, ("Pow",), ("RmsNorm",)),
    ],
)
def test_what_is_saved_or_cannot_be_seen_is_offered(
    launches: Launches | None, replaces: tuple[str, ...], becomes: tuple[str, ...]
) -> None:
    given = verdict(launches)
    assert with_launches_judged(given, replaces, becomes) is given


@pytest.mark.parametrize("after", [EAGER, (*EAGER, "aclnnAdd")])
def test_a_change_that_launches_all_that_it_replaces_says_so(after: tuple[str, ...]) -> None:
    judged = with_launches_judged(verdict(Launches(EAGER, after)), ("Pow",), ("RmsNorm",))
    assert judged.reason == NO_LAUNCH_SAVED
    assert judged.status is Status.EQUIVALENT


def test_a_refutation_keeps_its_reason() -> None:
    refuted = verdict(Launches(EAGER, EAGER), Status.REFUTED)
    assert with_launches_judged(refuted, ("Pow",), ("RmsNorm",)) is refuted


def test_launches_are_one_short_line() -> None:
    found = shown(verdict(Launches(EAGER, ("aclnnRmsNorm",), EAGER, ("aclnnRmsNormGrad",))))
    assert found.launches is not None
    assert in_words(found.launches) == "launches 3 -> 1: aclnnRmsNorm; backward 3 -> 1"
    assert found.launches.saved == 4
