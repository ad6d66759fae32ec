"""Launches and times before and after a change as evidence: what saves nothing is not offered."""

from __future__ import annotations

import dataclasses

import pytest

from npufix.advisor.patch.profitability import Prices, Profitability, kernel_types, weigh
from npufix.advisor.patch.verdicts import report_verdict
from npufix.reports.wording.report import launches as in_words
from npufix.reports.wording.report import synchronisations as waits_in_words
from npufix.reports.wording.report import times as times_in_words
from npufix.rewriters.verification.verdict import (
    Launches,
    Status,
    Synchronisations,
    Times,
    Timing,
    Verdict,
)
from npufix.rules.registry import all_rules

EAGER = ("aclnnPowTensorScalar", "aclnnMean", "aclnnMul")
TRADE = Launches(("aclnnGather",), ("aclnnArange", "aclnnIndex"))
TABLE = "launches 1 -> 2: Gather for Arange, Index; Gather is slow by the table of the rules"


def verdict(launches: Launches | None, status: Status = Status.EQUIVALENT) -> Verdict:
    return Verdict(status, "torch", "f", on="virtual-npu", launches=launches)


def weighed(
    given: Verdict,
    replaces: tuple[str, ...],
    becomes: tuple[str, ...],
    prices: Prices | None = None,
) -> Profitability:
    rule = dataclasses.replace(all_rules()[0], replaces=replaces, becomes=becomes)
    return weigh(given, rule, lambda: prices)


@pytest.mark.parametrize(
    ("launches", "replaces", "becomes"),
    [
        (Launches(EAGER, ("aclnnRmsNorm",)), ("Pow", "Mul"), ("RmsNorm",)),
        # Forward launches as much, backward less.
        (Launches(EAGER, EAGER, EAGER, ()), ("Pow",), ("RmsNorm",)),
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
    assert weighed(verdict(launches), replaces, becomes) == Profitability()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (("item",), (), Profitability()),
        ((), ("item", "item"), Profitability(pays=False, why="synchronisations 0 -> 2")),
        (
            ("item",),
            ("item",),
            Profitability(pays=False, why="launches 3 -> 3, and no slow kernel goes"),
        ),
    ],
)
def test_a_wait_counts_more_than_launches(
    before: tuple[str, ...], after: tuple[str, ...], expected: Profitability
) -> None:
    given = verdict(Launches(EAGER, EAGER))
    given = dataclasses.replace(given, synchronisations=Synchronisations(before, after))
    assert weighed(given, ("Pow",), ("RmsNorm",)) == expected


def test_waits_are_told_in_words_and_in_json() -> None:
    found = Synchronisations(("item", "nonzero"), ("item",))
    given = dataclasses.replace(verdict(None), synchronisations=found)
    told = report_verdict(given).synchronisations
    assert told is not None
    assert (told.original, told.patched, told.saved) == (("item", "nonzero"), ("item",), 1)
    assert waits_in_words(told) == "synchronisations 2 -> 1: item, nonzero"
    never = report_verdict(dataclasses.replace(given, synchronisations=Synchronisations()))
    assert never.synchronisations is not None
    assert not waits_in_words(never.synchronisations)


@pytest.mark.parametrize("after", [EAGER, (*EAGER, "aclnnAdd")])
def test_a_change_that_launches_all_that_it_replaces_says_so(after: tuple[str, ...]) -> None:
    found = weighed(verdict(Launches(EAGER, after)), ("Pow",), ("RmsNorm",))
    assert found == Profitability(
        pays=False, why=f"launches 3 -> {len(after)}, and no slow kernel goes"
    )


def test_a_slow_kernel_is_traded_by_the_table_where_there_is_no_dump() -> None:
    assert weighed(verdict(TRADE), ("Gather",), ("Index",)) == Profitability(pays=True, why=TABLE)


@pytest.mark.parametrize(
    ("here", "anywhere", "expected"),
    [
        # At the place itself, Gather is slower than it is on average.
        (
            {"GatherV2": 90_000.0},
            {"GatherV2": 5_000.0, "Range": 4_000.0, "Index": 20_000.0},
            Profitability(pays=True, why="90 µs -> 24 µs"),
        ),
        (
            {},
            {"GatherV2": 9_000.0, "Range": 4_000.0, "Index": 20_000.0},
            Profitability(pays=False, why="9 µs -> 24 µs"),
        ),
        # Of several Types, the dearest for what comes, the cheapest for what goes.
        (
            {"GatherV2": 9_000.0, "GatherElements": 500_000.0},
            {"Range": 4_000.0, "Index": 5_000.0, "IndexAiCore": 50_000.0},
            Profitability(pays=False, why="9 µs -> 54 µs"),
        ),
    ],
)
def test_the_times_of_a_dump_decide_on_a_trade(
    here: dict[str, float], anywhere: dict[str, float], expected: Profitability
) -> None:
    found = weighed(verdict(TRADE), ("Gather",), ("Index",), Prices(here, anywhere))
    assert found.pays is expected.pays
    trade = "launches 1 -> 2: Gather for Arange, Index"
    assert found.why == f"{trade}, {expected.why} by the times of the dump"


def test_a_dump_without_one_of_the_kernels_leaves_it_to_the_table() -> None:
    known = Prices({}, {"Index": 1.0})
    assert weighed(verdict(TRADE), ("Gather",), ("Index",), known) == Profitability(
        pays=True, why=TABLE
    )


@pytest.mark.parametrize(
    ("patched", "expected"),
    [
        (Timing(4.5, 4.4, 4.6), Profitability()),
        (Timing(12.5, 12.2, 12.8), Profitability()),
        (Timing(15.0, 14.0, 16.0), Profitability(pays=False, why="slower: 12.3 µs -> 15 µs")),
    ],
)
def test_times_on_a_device_decide_before_launches(patched: Timing, expected: Profitability) -> None:
    measured = Times(Timing(12.3, 12.0, 13.0), patched, 20, "x=float[2, 3]")
    given = dataclasses.replace(verdict(Launches(EAGER, EAGER)), times=measured)
    assert weighed(given, ("Pow",), ("RmsNorm",)) == expected


def test_a_refutation_is_not_weighed() -> None:
    refuted = verdict(Launches(EAGER, EAGER), Status.REFUTED)
    assert weighed(refuted, ("Pow",), ("RmsNorm",)) == Profitability()


def test_a_launch_has_the_types_that_a_profile_may_give_it() -> None:
    assert kernel_types("aclnnMean") == ("ReduceMean",)
    assert "Add" in kernel_types("aclnnInplaceAdds")
    assert kernel_types("ScaledMaskedSoftmax") == ("ScaledMaskedSoftmax",)


def test_launches_are_one_short_line() -> None:
    found = report_verdict(
        verdict(Launches(EAGER, ("aclnnRmsNorm",), EAGER, ("aclnnRmsNormGrad",)))
    )
    assert found.launches is not None
    assert in_words(found.launches) == "launches 3 -> 1: aclnnRmsNorm; backward 3 -> 1"
    assert found.launches.saved == 4


def test_times_are_one_line() -> None:
    measured = Times(
        Timing(12.3, 12, 13), Timing(4.5, 4.4, 4.6), 20, "x=float[2]", with_backward=True
    )
    found = report_verdict(dataclasses.replace(verdict(None), times=measured))
    assert found.times is not None
    assert times_in_words(found.times) == (
        "12.3 µs -> 4.5 µs, median of 20 (forward and backward; half of them 12 µs to 13 µs ->"
        " 4.4 µs to 4.6 µs), for x=float[2]"
    )
