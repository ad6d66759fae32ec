"""What fails is larger than the tolerance, than the floor, and than luck; all else does not."""

from __future__ import annotations

import datetime as dt
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from benchmarks.gate_power import NOISES, shares_failed
from gate_runs import MACHINE, MS, a_finding, a_run, baseline_of, known, measured, runs
from scipy import stats

from npufix.advisor.gate import significance
from npufix.advisor.gate.gating import Asked, gate
from npufix.advisor.gate.new_findings import pair_of
from npufix.advisor.gate.significance import Wanted, compare, detectable, holm
from npufix.advisor.project.gate_settings import METRICS, Acceptance, GateSettings, MetricSettings
from npufix.reports.baseline import BaselineMetric
from npufix.reports.baseline import from_json as read_baseline
from npufix.reports.baseline import to_json as baseline_to_json
from npufix.reports.measurement import MeasuredMetric, MeasuredOperator
from npufix.reports.report import Problem
from npufix.reports.wording.gate import word_made

if TYPE_CHECKING:
    from npufix.reports.baseline import Baseline
    from npufix.reports.gate_report import GatedMetric, GateReport
    from npufix.reports.measurement import Measurement
    from npufix.reports.report import Finding

TODAY = dt.date(2026, 11, 21)
STEADY = (100, 101, 99, 100.5, 99.5)


def gated(
    baseline: Baseline | None,
    current: list[Measurement],
    settings: GateSettings | None = None,
    **more: Any,
) -> GateReport:
    asked = Asked(settings or GateSettings(), Path("b.json"), baseline, TODAY)
    return gate(measured(current, **more), asked)


def step_of(made: GateReport) -> GatedMetric:
    return next(metric for metric in made.metrics if metric.name == "step-time")


def test_without_a_prior_it_is_students_test_of_runs_that_nothing_disturbs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(significance, "_WEIGHT", 0.0)
    monkeypatch.setattr(significance, "SESSION", 0.0)
    before, after = [100, 103], [104, 109]
    seen = compare(before, after, 1.0)
    logs = ([math.log(x) for x in group] for group in (after, before))
    assert seen.slower == pytest.approx(stats.ttest_ind(*logs, alternative="greater").pvalue)
    assert seen.slower is not None
    assert seen.faster == pytest.approx(1 - seen.slower)


def test_runs_that_agree_by_luck_prove_nothing() -> None:
    seen = compare([100, 100, 100], [101, 101, 101], 1.0)
    assert seen.slower is not None
    assert seen.slower > 0.01


def test_pairs_are_held_against_their_partners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(significance, "_WEIGHT", 0.0)
    before, after = [100, 110, 121, 105], [103, 112, 126, 109]
    seen = compare(before, after, 1.0, paired=True)
    logs = ([math.log(x) for x in group] for group in (after, before))
    assert seen.slower == pytest.approx(stats.ttest_rel(*logs, alternative="greater").pvalue)


def test_what_drifts_for_both_is_no_noise_of_pairs() -> None:
    before = [100, 106, 103, 95, 92]
    after = [value * 1.08 for value in before]
    apart, paired = compare(before, after, 1.0), compare(before, after, 1.0, paired=True)
    assert paired.noise == pytest.approx(0.0, abs=1e-9)
    assert paired.doubt(0.05) < 0.05 < apart.doubt(0.05)


def test_runs_as_slow_as_disturbed_ones_prove_nothing() -> None:
    disturbed = (100, 101, 100, 110, 109)
    made = gated(baseline_of(*disturbed), runs(109, 110, 109.5))
    assert made.exit_status == 3
    assert "2 runs of the baseline took as long" in made.headline
    # One of these is disturbed beyond the others: so these are not.
    assert gated(baseline_of(*disturbed), runs(109, 120, 109.5)).exit_status == 1


def test_holm_is_bonferroni_for_the_smallest_and_never_falls() -> None:
    even = dict.fromkeys("abc", 1.0)
    assert holm({"a": 0.01, "b": 0.04, "c": 0.02}, even) == {"a": 0.03, "c": 0.04, "b": 0.04}
    assert holm({"a": 0.9, "b": 0.8}, even) == {"b": 1.0, "a": 1.0}
    assert holm({}, {}) == {}
    weighted = holm({"a": 0.01, "b": 0.03}, {"a": 3.0, "b": 1.0})
    assert weighted == pytest.approx({"a": 0.01 * 4 / 3, "b": 0.03})


def test_no_false_alarm_and_true_changes_are_found() -> None:
    """A small part of what ``python -m benchmarks.gate_power`` prints."""
    noise = NOISES[1]
    false, found, sure = shares_failed(noise, (5, 3), 40)
    assert (false, sure) == (0, 1)
    assert found >= 0.75
    assert shares_failed(noise, (1, 1), 40, [0.0]) == [0]
    assert shares_failed(replace(noise, drift=0.05), (5, 5), 40, [0.0, 0.15]) == [0, 1]


def test_the_smallest_detectable_change_shrinks_with_runs_and_grows_with_tests() -> None:
    few, many = compare(STEADY[:3], STEADY[:3], 1.0), compare(STEADY * 2, STEADY, 1.0)
    figures = [detectable(each, Wanted(0.0, 0.01, 0.15, 1 / tests)) or 0.0
               for each in (few, many) for tests in (4, 1)]  # fmt: skip
    assert figures == sorted(figures, reverse=True)
    assert detectable(many, Wanted(0.2, 0.01, 0.15)) > 0.2
    assert detectable(compare([1], [1], 1.0), Wanted(0.0, 0.01, 0.15)) is None


def test_a_regression_fails_and_is_explained() -> None:
    attention = MeasuredOperator("FlashAttentionScore", "8,4096 bf16", "MIX", 32, 60 * MS)
    before = [MeasuredOperator("MatMulV2", "4096,5120 bf16", "AI_CORE", 64, 50 * MS), attention]
    slower = [
        MeasuredOperator("MatMulV2", "4096,5120 bf16", "AI_CORE", 128, 58 * MS),
        MeasuredOperator("Add", "8 float", "AI_CORE", 1, 1 * MS),
        attention,
    ]
    made = gated(baseline_of(*STEADY, operators=before), runs(108, 109, 107, operators=slower))
    assert (made.verdict, made.exit_status) == ("fail", 1)
    step = step_of(made)
    assert (step.verdict, step.level) == ("regression", "error")
    assert step.change == pytest.approx(0.08)
    assert step.p_value is not None
    assert step.p_value < 0.01
    assert step.noise == pytest.approx(0.0085, rel=0.2)
    assert step.why[0].what == "MatMulV2 on 4096,5120 bf16"
    assert made.headline.startswith("step-time: +8.0% (100 ms -> 108 ms), noise 0.8%; p = ")
    assert len(made.explanation) <= 3
    assert made.explanation[0] == (
        "MatMulV2 on 4096,5120 bf16: +8 ms a step of +8 ms, 128 calls instead of 64,"
        " most of this Type at mlp.py:12"
    )


@pytest.mark.parametrize(
    ("current", "verdict"),
    [
        ((104, 105, 103), "ok"),  # within the tolerance
        ((92, 91, 93), "improvement"),
        ((112,), "regression"),
    ],
)
def test_noise_passes(current: tuple[float, ...], verdict: str) -> None:
    made = gated(baseline_of(*STEADY), runs(*current))
    assert step_of(made).verdict == verdict
    assert made.exit_status == (verdict == "regression")


@pytest.mark.parametrize(
    ("current", "verdict", "status"),
    [(104, "ok", 0), (108, "inconclusive", 3), (112, "regression", 1), (80, "improvement", 0)],
)
def test_two_runs_are_no_test(current: float, verdict: str, status: int) -> None:
    made = gated(baseline_of(100), runs(current))
    step = step_of(made)
    assert (step.verdict, made.exit_status) == (verdict, status)
    assert "too few for a test" in step.reason
    assert (step.p_value, step.noise, step.detectable, step.tolerance) == (None, None, None, 0.1)


def test_too_few_runs_on_a_side_are_inconclusive_where_it_matters() -> None:
    made = gated(baseline_of(100, 104, 96), runs(113))
    assert made.exit_status == 3
    assert "too few runs to tell it from noise" in made.reasons[0]


def test_what_is_below_the_floor_does_not_matter() -> None:
    assert gated(baseline_of(0.1, 0.1, 0.1), runs(0.14, 0.14, 0.14)).exit_status == 0
    strict = GateSettings(floor=1.0)
    assert gated(baseline_of(0.1, 0.1, 0.1), runs(0.14, 0.14, 0.14), strict).exit_status == 1


def test_communication_that_was_not_there_before_fails() -> None:
    none = a_run().metrics | {"exposed-communication": MeasuredMetric(0.0, "ns")}
    some = a_run().metrics | {"exposed-communication": MeasuredMetric(9 * MS, "ns")}
    made = gated(baseline_of(*STEADY, metrics=none), runs(100, 100, 100, metrics=some))
    assert made.headline.startswith("exposed-communication: 0 µs -> 9 ms")
    assert gated(baseline_of(*STEADY, metrics=none), runs(1, 1, 1, metrics=none)).exit_status == 0


def test_a_budget_holds_whatever_the_baseline_says() -> None:
    limits = dict(GateSettings().metrics) | {"step-time": MetricSettings("error", budget=99 * MS)}
    made = gated(baseline_of(*STEADY), runs(100, 101, 99), GateSettings(metrics=limits))
    assert made.exit_status == 1
    assert made.headline.startswith("step-time: 100 ms are more than the budget of 99 ms; ")
    lenient = GateSettings(metrics=limits, fail_on=frozenset({"regression"}))
    assert gated(baseline_of(*STEADY), runs(100, 101, 99), lenient).exit_status == 0


@pytest.mark.parametrize(
    ("until", "increase", "step_ms", "status"),
    [
        (TODAY, 0.08, 110, 0),
        (TODAY, 0.08, 125, 1),
        (TODAY - dt.timedelta(1), 0.08, 110, 1),
    ],
)
def test_an_acceptance_holds_until_its_day_and_up_to_its_size(
    until: dt.date, increase: float, step_ms: float, status: int
) -> None:
    accept = tuple(Acceptance(until, "known, #1", metric=name, increase=increase)
                   for name in ("step-time", "compute", "exposed-communication"))  # fmt: skip
    made = gated(baseline_of(*STEADY), runs(step_ms, step_ms, step_ms),
                 GateSettings(accept=accept))  # fmt: skip
    assert made.exit_status == status
    assert (step_of(made).verdict == "accepted") == (status == 0)
    assert any("the acceptance of step-time ended" in p.what for p in made.problems) == (
        until < TODAY
    )


def test_a_new_finding_fails_and_a_known_one_does_not() -> None:
    baseline = baseline_of(*STEADY, findings=known(a_finding(1), a_finding(2)), source="src")
    same = runs(100, 100, 100, source="src")
    assert gated(baseline, same, findings=[a_finding(1)]).exit_status == 0
    made = gated(baseline, same, findings=[a_finding(1), a_finding(3)])
    assert made.exit_status == 1
    assert made.reasons == ["new finding: NPU104 eager-attention mlp.py:7"]
    assert [f.fingerprint for f in made.new_findings] == [f"{3:016x}"]
    assert made.gone == [f"NPU104 mlp.py ({2:016x})"]
    of_run = a_finding(4, kind="run", rule="NPU401", name="host-bound-step")
    told = gated(baseline, same, findings=[of_run])
    assert told.exit_status == 0
    assert any("NPU401" in problem.what for problem in told.problems)
    strict = GateSettings(findings_fail_on=("npu4",))
    assert gated(baseline, same, strict, findings=[of_run, a_finding(3)]).reasons == [
        "new finding: NPU401 host-bound-step mlp.py:7"
    ]
    accept = GateSettings(accept=(Acceptance(TODAY, "known", finding="NPU104:mlp.py"),))
    assert gated(baseline, same, accept, findings=[a_finding(3)]).exit_status == 0
    without = replace(GateSettings(), only_new=False)
    assert gated(baseline, same, without, findings=[a_finding(1)]).exit_status == 1


def test_a_baseline_without_a_source_knows_of_no_finding() -> None:
    made = gated(baseline_of(*STEADY), runs(100, source="src"), findings=[a_finding(3)])
    assert made.exit_status == 0
    assert "the baseline was made without a source" in made.problems[-1].what


@pytest.mark.parametrize(
    "change", [{"chip": "Ascend910B3"}, {"world_size": 16}, {"cann": "8.1"}, {"torch_npu": None}]
)
def test_another_environment_is_never_green(change: dict[str, Any]) -> None:
    other = msgspec.structs.replace(MACHINE, **change)
    made = gated(baseline_of(*STEADY), runs(100, 100, 100, environment=other))
    assert (made.exit_status, step_of(made).verdict) == (3, "inconclusive")
    (name,) = change
    assert name.replace("_", " ") in made.headline
    lenient = GateSettings(on_different_environment="warn")
    told = gated(baseline_of(*STEADY), runs(100, 100, 100, environment=other), lenient)
    assert told.exit_status == 0
    assert any("another environment" in problem.what for problem in told.problems)


def test_missing_data_is_never_green() -> None:
    whole = baseline_of(*STEADY, metrics=a_run().metrics | {
        "peak-memory": MeasuredMetric(1e9, "bytes")
    })  # fmt: skip
    assert gated(whole, runs(100, 100, 100)).exit_status == 3
    assert gated(baseline_of(*STEADY), runs(100, partial=["x.csv: cut off"])).exit_status == 3
    assert gated(baseline_of(*STEADY), runs(200, partial=["x.csv: cut off"])).exit_status == 3
    assert gated(baseline_of(*STEADY), runs(100, metrics={})).exit_status == 3
    assert gated(None, runs(100)).exit_status == 3
    assert gated(None, runs(100), GateSettings(on_missing_baseline="pass")).exit_status == 0


def test_nothing_that_may_fail_compared_is_never_green() -> None:
    other = baseline_of(*STEADY)
    other = msgspec.structs.replace(other, metrics={"launches": BaselineMetric("count", [9.0])})
    made = gated(other, runs(100, 100, 100))
    assert made.exit_status == 3
    assert any("nothing that may fail is compared" in reason for reason in made.reasons)
    off = GateSettings(metrics={name: MetricSettings("off") for name in METRICS})
    made = gated(baseline_of(*STEADY, source="src"), runs(100, 100, 100), off, source="")
    assert made.exit_status == 3
    with_source = gated(baseline_of(*STEADY, source="src"), runs(100, source="src"), off)
    assert (with_source.exit_status, with_source.headline) == (
        0,
        "no new finding; every metric is off",
    )


def test_a_green_headline_hides_no_regression() -> None:
    slow, only_budgets = runs(130, 131, 129), GateSettings(fail_on=frozenset({"budget"}))
    made = gated(baseline_of(*STEADY), slow, only_budgets)
    assert made.exit_status == 0
    assert re.fullmatch(r"step-time \+\d+\.\d%; \d+ warnings, nothing that fails", made.headline)
    missing = gated(None, runs(100), GateSettings(on_missing_baseline="pass"))
    assert "so nothing is compared" in missing.headline


def test_a_whole_recording_is_no_step() -> None:
    recording = runs(800, unit="recording")
    made = gated(baseline_of(*STEADY), recording)
    assert made.exit_status == 3
    assert "step times recorded, now of the whole recording" in made.headline
    alike = gated(baseline_of(*STEADY, unit="recording"), runs(100, unit="recording"))
    assert alike.exit_status == 0
    assert any("equally many steps" in problem.what for problem in alike.problems)


def test_noise_of_nothing_is_unknown() -> None:
    assert compare([0.0, 0.0, 0.0], [5.0, 6.0, 5.0], 1.0).noise is None


def test_what_every_run_lacks_is_told_once() -> None:
    lacking = [
        replace(each, report=msgspec.structs.replace(each.report, problems=[
            Problem("trace_view.json", "missing", f"make it with analyse({number})")
        ]))
        for number, each in enumerate(measured(runs(100, 101, 99)))
    ]  # fmt: skip
    made = gate(lacking, Asked(GateSettings(), Path("b.json"), baseline_of(*STEADY), TODAY))
    assert [problem.where for problem in made.problems].count("trace_view.json") == 1


def _gone(after_ms: float, *left: Finding, low_us: float = 4_000) -> GateReport:
    """Gate runs of which 6 ms of compute were to be saved, at most, by a finding that is gone."""
    saves = {"kernels_save_ns": (low_us * 1_000, 6 * MS)}
    old = [msgspec.structs.replace(each, **saves) for each in known(a_finding())]
    baseline = baseline_of(100, 100.1, 100.2, findings=old, source="src")
    assert read_baseline(baseline_to_json(baseline)).kernels_save == baseline.kernels_save
    now = measured(runs(after_ms, after_ms + 0.1), left)
    return gate(now, Asked(GateSettings(), Path("b.json"), baseline, TODAY))


@pytest.mark.parametrize(
    ("after_ms", "verdict"), [(92, "held"), (100, "saved less"), (70, "saved more")]
)
def test_what_a_gone_finding_was_to_save_is_held_against_what_it_did(
    after_ms: float, verdict: str
) -> None:
    made = _gone(after_ms).made
    assert made is not None
    assert (made.rules, made.low_ns, made.high_ns) == (["NPU104"], 4 * MS, 6 * MS)
    assert made.measured_ns == pytest.approx(0.6 * (100.1 - after_ms - 0.05) * MS, rel=1e-3, abs=9)
    assert made.verdict == verdict
    assert verdict in word_made(made)


def test_other_findings_that_have_come_leave_nothing_to_be_told() -> None:
    assert _gone(92, a_finding(2)).made is None
    assert _gone(92, a_finding()).made is None, "it is still there"


def test_a_gone_finding_is_a_pair_for_later_predictions_where_noise_allows() -> None:
    report = _gone(92)
    base, now = baseline_of(100, 100.1), runs(92)
    pair = pair_of(report, base, now)
    assert pair is not None
    assert (pair.rule, pair.high_ns, pair.chip) == ("NPU104", 6 * MS, MACHINE.chip)
    assert report.made is not None
    small = msgspec.structs.replace(report.made, high_ns=MS)
    assert pair_of(msgspec.structs.replace(report, made=small), base, now) is None
