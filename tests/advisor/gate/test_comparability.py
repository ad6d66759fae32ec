"""Green means seen and good: what nobody can tell is inconclusive, and says why."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from gate_runs import MACHINE, MS, a_run, baseline_of, measured, runs
from scipy import stats

from npufix.advisor.gate.gating import Asked, gate
from npufix.advisor.gate.reading import RunError, check_together
from npufix.advisor.gate.significance import SESSION, Wanted, compare, runs_to_decide
from npufix.advisor.project.gate_settings import Acceptance, GateSettings, MetricSettings
from npufix.reports.baseline import BaselineMetric
from npufix.reports.measurement import MeasuredMetric, MeasuredOperator

if TYPE_CHECKING:
    from npufix.reports.baseline import Baseline
    from npufix.reports.gate_report import GateReport
    from npufix.reports.measurement import Measurement

TODAY = dt.date(2026, 11, 21)
STEADY = (100, 101, 99, 100.5, 99.5)


def gated(
    baseline: Baseline | None, current: list[Measurement], settings: GateSettings | None = None
) -> GateReport:
    asked = Asked(settings or GateSettings(), Path("b.json"), baseline, TODAY)
    return gate(measured(current), asked)


def ops(*rows: tuple[str, str, float, float]) -> list[MeasuredOperator]:
    """Return operators of Type, shapes, calls and ms in a step."""
    return [MeasuredOperator(kind, shapes, "AI_CORE", n, ms * MS) for kind, shapes, n, ms in rows]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ((95, 99, 100, 101, 111), (97, 116, 118)),  # +16%, but a run is as fast as before
        (STEADY, (100, 112, 113)),
        (STEADY, (99, 101, 109, 110, 111)),  # the median is slower, the mean less so
        ((100, 120, 80, 110, 90), (109, 111, 90)),
    ],
)
def test_a_change_that_may_be_noise_is_never_green(
    before: tuple[float, ...], now: tuple[float, ...]
) -> None:
    made = gated(baseline_of(*before), runs(*now))
    assert (made.verdict, made.exit_status) == ("inconclusive", 3)
    assert "too few runs to tell it from noise" in made.headline
    assert "run" in made.headline.rpartition(";")[2]


@pytest.mark.parametrize(
    ("before", "now"),
    [([96, 100, 104], [104, 108, 112]), ([94, 99, 101, 106, 100], [101, 110, 108])],
)
@pytest.mark.parametrize("alpha", [0.01, 0.001])
def test_as_many_more_runs_as_are_said_decide_it(
    before: list[float], now: list[float], alpha: float
) -> None:
    seen, wanted = compare(before, now, 1.0), Wanted(0.02, alpha, 0.15, 1 / 3)
    more = runs_to_decide(seen, len(before), len(now), wanted)
    assert more is not None
    own = seen.error / (1 / len(before) + 1 / len(now)) ** 0.5

    def is_proof(old: int, new: int) -> bool:
        """Tell whether as many more runs that are like these prove it."""
        freedom = seen.freedom + old + new
        error = own * (1 / (len(before) + old) + 1 / (len(now) + new)) ** 0.5
        by_luck = stats.t.sf((seen.size - SESSION) / error, freedom)
        within = stats.t.sf((seen.size - math.log1p(wanted.tolerance)) / error, freedom)
        return bool(by_luck < alpha / 3 and within < wanted.doubt)

    assert is_proof(*more)
    assert not is_proof(more[0] and more[0] - 1, more[1] - 1)
    assert runs_to_decide(compare([100] * 3, [99] * 3, 1.0), 3, 3, wanted) is None
    assert runs_to_decide(compare([100] * 3, [150] * 3, 1.0), 3, 3, wanted) is None


def test_runs_that_differ_by_more_than_half_show_nothing() -> None:
    made = gated(baseline_of(100, 170, 60), runs(100, 60, 165))
    assert made.exit_status == 3
    assert "would not have been seen" in made.headline


def test_an_acceptance_covers_no_more_than_its_size() -> None:
    names = ("step-time", "compute", "exposed-communication")
    accept = tuple(Acceptance(TODAY, "known", metric=name, increase=0.04) for name in names)
    noisy = (95, 99, 100, 101, 111)
    made = gated(baseline_of(*noisy), runs(104, 118, 120), GateSettings(accept=accept))
    assert made.exit_status == 3
    assert "beyond what is accepted" in made.headline


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (  # half the length
            (("MatMulV2", "4096,512", 64, 50), ("Attention", "4096", 16, 20), ("Adam", "9", 1, 20)),
            (("MatMulV2", "2048,512", 64, 25), ("Attention", "2048", 16, 5), ("Adam", "9", 1, 20)),
        ),
        (  # half as many steps of accumulation, or half as deep
            (("MatMulV2", "4096,512", 64, 50), ("Attention", "4096", 16, 20), ("Adam", "9", 1, 20)),
            (("MatMulV2", "4096,512", 32, 25), ("Attention", "4096", 8, 10), ("Adam", "9", 1, 20)),
        ),
        (  # batches of more lengths, of which the baseline had two
            (("MatMulV2", "4096,512", 32, 30), ("MatMulV2", "2048,512", 32, 15)),
            tuple(("MatMulV2", f"{n},512", 16, n / 250) for n in (2048, 4096, 8192, 16384)),
        ),
        (  # twice the batch
            (("MatMulV2", "4096,512", 64, 50), ("Mul", "8", 16, 40)),
            (("MatMulV2", "8192,512", 64, 99), ("Mul", "8", 16, 40)),
        ),
    ],
)
@pytest.mark.parametrize("step_ms", [50, 100, 200])
def test_other_work_is_neither_better_nor_worse(before: Any, now: Any, step_ms: float) -> None:
    baseline = baseline_of(*STEADY, operators=ops(*before))
    made = gated(baseline, runs(*[step_ms * luck for luck in (1, 1.01, 0.99)], operators=ops(*now)))
    assert (made.verdict, made.exit_status) == ("inconclusive", 3)
    assert "did other work than the baseline: MatMulV2" in made.headline
    assert "baseline update" not in made.headline


@pytest.mark.parametrize(
    ("now", "status"),
    [
        # A fused operator in place of three, three matrix products joined, a layer recomputed.
        ((("MatMulV2", "4096,512", 64, 50), ("RmsNorm", "4096", 16, 4), ("Adam", "9", 1, 20)), 0),
        (
            (
                ("MatMulV2", "4096,512", 48, 38),
                ("MatMulV2", "4096,1536", 16, 10),
                ("Adam", "9", 1, 20),
            ),
            0,
        ),
        (
            (
                ("MatMulV2", "4096,512", 64, 50),
                ("Mul", "4096", 96, 20),
                ("Pow", "4096", 32, 9),
                ("Adam", "9", 1, 20),
            ),
            0,
        ),
    ],
)
def test_a_changed_program_does_the_same_work(now: Any, status: int) -> None:
    before = (
        ("MatMulV2", "4096,512", 64, 50), ("Mul", "4096", 48, 10), ("Pow", "4096", 16, 5),
        ("Adam", "9", 1, 20),
    )  # fmt: skip
    made = gated(
        baseline_of(*STEADY, operators=ops(*before)), runs(100, 99, 101, operators=ops(*now))
    )
    assert made.exit_status == status, made.headline


def test_shapes_that_follow_the_data_are_no_other_work() -> None:
    varying = [
        a_run(step, origin=f"run{n}", operators=ops(
            ("MatMulV2", f"{4000 + n},512", 64, 50), ("Adam", "9", 1, 20)
        ))
        for n, step in enumerate((100, 101, 99, 100, 102, 99))
    ]  # fmt: skip
    from npufix.advisor.gate.baselines import merge_baseline

    assert gated(merge_baseline(varying[:3]), varying[3:]).exit_status == 0


def test_the_runs_of_the_baseline_are_known_by_their_numbers() -> None:
    from npufix.advisor.gate.baselines import merge_baseline

    old = [each.measurement for each in measured(runs(*STEADY))]
    baseline = merge_baseline(old)
    stale = [msgspec.structs.replace(old[1], origin="elsewhere")]
    made = gate(
        [replace(measured(stale)[0], measurement=stale[0])],
        Asked(GateSettings(), Path("b.json"), baseline, TODAY),
    )
    assert made.exit_status == 3
    assert "elsewhere is one of the runs that b.json was made of" in made.headline
    assert gated(baseline, runs(101)).exit_status == 0


def test_a_copy_and_a_rank_are_no_further_run() -> None:
    one = a_run(100, origin="a")
    with pytest.raises(RunError, match="b is a copy of a"):
        check_together([one, a_run(101, origin="x"), a_run(100, origin="b")])
    other = msgspec.structs.replace(MACHINE, rank=1)
    with pytest.raises(RunError, match="the ranks of a job are one run"):
        check_together([one, a_run(100.1, origin="b", environment=other)])
    # Of whole jobs the slowest rank may be another each time.
    check_together([a_run(100, ranks=4), a_run(101, ranks=4, environment=other)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ranks": 4}, "ranks 1, now 4"),
        ({"bounds": "kernels"}, "step times recorded, now from kernels"),
        ({"bounds": "marks"}, "step times recorded, now from mark to mark"),
        ({"averaged": True}, "step times recorded, now recorded, averages of a report"),
    ],
)
def test_what_is_measured_in_another_way_is_not_compared(change: Any, said: str) -> None:
    made = gated(baseline_of(*STEADY, bounds="stated"), runs(100, **{"bounds": "stated", **change}))
    assert made.exit_status == 3
    assert said in made.headline


def test_what_is_not_recorded_is_said() -> None:
    bare = msgspec.structs.replace(MACHINE, chip=None, cann=None)
    made = gated(baseline_of(*STEADY, environment=bare), runs(100, environment=bare))
    assert any(p.what.endswith("the same: chip, cann") for p in made.problems)
    shapeless = ops(("MatMulV2", "", 64, 50))
    made = gated(baseline_of(*STEADY, operators=shapeless), runs(100, operators=shapeless))
    assert any("holds no shapes" in p.what for p in made.problems)


def test_a_metric_that_must_hold_and_is_missing_is_never_green() -> None:
    compute = {"compute": MeasuredMetric(60 * MS, "ns")}
    assert gated(baseline_of(*STEADY, metrics=compute), runs(100, metrics=compute)).exit_status == 3
    memory = a_run().metrics | {"peak-memory": MeasuredMetric(1e9, "bytes")}
    made = gated(baseline_of(*STEADY), runs(100, metrics=memory))
    assert (made.exit_status, made.headline) == (3, "peak-memory: the baseline does not have it")
    named = dict(GateSettings().metrics)
    named["peak-memory"] = MetricSettings("error", required=True)
    assert gated(baseline_of(*STEADY), runs(100), GateSettings(metrics=named)).exit_status == 3


@pytest.mark.parametrize("step", [0.0, 1e30])
def test_absurd_times_are_no_measurement(step: float) -> None:
    metrics = a_run().metrics | {"step-time": MeasuredMetric(step, "ns")}
    assert gated(baseline_of(*STEADY), runs(100, metrics=metrics)).exit_status == 3


def test_settings_with_which_nothing_fails_are_named() -> None:
    said = [
        problem.what
        for settings in (
            GateSettings(tolerance=5.0),
            GateSettings(alpha=0.9999),
            GateSettings(fail_on=frozenset()),
            GateSettings(alpha=1e-9),
            GateSettings(fail_on=frozenset({"budget"})),
            GateSettings(floor=60 * MS),
            GateSettings(metrics={name: MetricSettings("warn") for name in GateSettings().metrics}),
            GateSettings(accept=(Acceptance(dt.date.max, "ever", metric="compute", increase=2.0),)),
        )
        for problem in gated(baseline_of(*STEADY), runs(100), settings).problems
    ]
    for part in (
        "the tolerance of step-time is", "alpha is 0.9999", "fail-on is empty",
        "compute is accepted until 9999-12-31", "compute may grow by 200", "alpha is 1e-09",
        "fail-on is without regression", "the floor of step-time is 60 ms of 100 ms",
        "no time is an error",
    ):  # fmt: skip
        assert any(part in what for what in said), part
    assert not gated(baseline_of(*STEADY), runs(100)).problems


def test_an_improvement_offers_the_new_baseline() -> None:
    made = gated(baseline_of(*STEADY), runs(90, 91, 89))
    assert made.exit_status == 0
    assert made.next_steps == ["npufix baseline update run0 run1 run2 -o b.json"]


def test_a_baseline_that_names_the_same_number_twice_is_still_one() -> None:
    """Runs may agree in four digits."""
    baseline = baseline_of(100, 100, 100)
    assert baseline.metrics["step-time"] == BaselineMetric("us", [100_000] * 3, 0.01)


def test_a_program_that_breaks_off_is_no_faster_one() -> None:
    whole = ops(("MatMulV2", "4096 bf16", 64, 50), ("FlashAttentionScore", "8,4096 bf16", 32, 30))
    before = baseline_of(*STEADY, operators=whole)
    for left in ([], ops(("MatMulV2", "4096 bf16", 1, 0.8))):
        made = gated(before, runs(1, 1.01, 1.02, operators=left))
        assert made.exit_status == 3
        assert "did other work than the baseline" in made.headline
    # What is fused has something in its place, and what is no longer recomputed is still there.
    for faster in (
        ops(("FusedLayer", "4096 bf16", 32, 60)),
        ops(("MatMulV2", "4096 bf16", 64, 50), ("FlashAttentionScore", "8,4096 bf16", 16, 15)),
    ):
        assert gated(before, runs(80, 81, 79, operators=faster)).exit_status == 0


@pytest.mark.parametrize("operators", [[], ops(("MatMulV2", "", 64, 50))])
def test_less_time_is_no_gain_where_nothing_tells_the_work(operators: Any) -> None:
    """Half of the batch takes half of the time."""
    baseline = baseline_of(*STEADY, operators=operators)
    made = gated(baseline, runs(50, 50.5, 49.5, operators=operators))
    assert (made.verdict, made.exit_status) == ("inconclusive", 3)
    assert "this may be another batch" in made.headline
    assert gated(baseline, runs(100, 101, 99.5, operators=operators)).exit_status == 0
    assert gated(baseline, runs(150, 151, 152, operators=operators)).exit_status == 1


def test_the_runs_of_a_baseline_without_digests_are_known_by_what_is_left() -> None:
    baseline = msgspec.structs.replace(baseline_of(*STEADY), run_digests=[])
    made = gated(baseline, runs(*STEADY))
    assert made.exit_status == 3
    assert "run0 is one of the runs that b.json was made of" in made.headline
    assert gated(baseline, runs(100.3, 99.7, 100.7)).exit_status == 0


def test_ranks_without_a_number_are_known_by_their_time() -> None:
    nameless = msgspec.structs.replace(MACHINE, rank=None)

    def started(after_ms: float, step_ms: float) -> Measurement:
        begin = 10**18 + round(after_ms * MS)
        return a_run(step_ms, origin=f"{step_ms}", environment=nameless, started_ns=begin)

    with pytest.raises(RunError, match="ran at the same time"):
        check_together([started(0, 100), started(2, 100.1)])
    check_together([started(0, 100), started(9000, 100.1), started(-9000, 100.2)])


def test_one_rank_is_no_faster_job() -> None:
    alone = a_run().metrics | {"exposed-communication": MeasuredMetric(0.0, "ns")}
    made = gated(baseline_of(*STEADY), runs(70, metrics=alone))
    assert made.exit_status == 3
    assert "it waits for no other rank" in made.headline
