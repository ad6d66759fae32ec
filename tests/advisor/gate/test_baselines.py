"""A baseline is small, the same whatever the order of the runs, and never misread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gate_runs import MACHINE, a_finding, a_run, baseline_of, known, runs
from hypothesis import given, settings
from hypothesis import strategies as st

from npufix.advisor.gate import baselines
from npufix.reports.baseline import Baseline, from_json, round_measure, to_json
from npufix.reports.measurement import MeasuredMetric, MeasuredOperator, Measurement
from npufix.reports.report import ReportError

FEW = settings(max_examples=25)
_times = st.floats(1e-3, 1e12)
_operators = st.lists(
    st.builds(
        MeasuredOperator,
        type=st.sampled_from(["MatMulV2", "Add", "Ca|st"]),
        shapes=st.sampled_from(["", "4,8 float", "4;8" * 80]),
        core=st.sampled_from(["AI_CORE", "MIX"]),
        calls=st.floats(0.1, 1e6),
        total_ns=_times,
    ),
    max_size=4,
)
_findings = st.sets(st.integers(0, 5)).map(lambda numbers: known(*map(a_finding, numbers)))
_measurements = st.builds(
    lambda step, memory, operators, findings: a_run(
        step / 1e6,
        metrics={
            "step-time": MeasuredMetric(step, "ns", 0.01),
            **({"peak-memory": MeasuredMetric(memory, "bytes")} if memory else {}),
        },
        operators=operators,
        findings=findings,
    ),
    _times, st.floats(0, 1e12), _operators, _findings,
)  # fmt: skip


@FEW
@given(made=st.lists(_measurements, min_size=1, max_size=5), data=st.data())
def test_the_order_of_the_runs_is_no_matter(made: list[Measurement], data: st.DataObject) -> None:
    text = to_json(baselines.merge_baseline(made))
    assert to_json(baselines.merge_baseline(data.draw(st.permutations(made)))) == text
    read = from_json(text)
    assert to_json(read) == text
    assert read == baselines.merge_baseline(made)


@FEW
@given(made=st.lists(_measurements, min_size=2, max_size=5), at=st.integers(1, 4))
def test_runs_may_come_one_after_the_other(made: list[Measurement], at: int) -> None:
    at = min(at, len(made) - 1)
    earlier = from_json(to_json(baselines.merge_baseline(made[:at])))
    appended, together = (
        baselines.merge_baseline(made[at:], earlier),
        baselines.merge_baseline(made),
    )
    assert appended.metrics == together.metrics
    assert appended.findings == together.findings
    assert appended.run_count == together.run_count
    assert {k: o.runs for k, o in appended.hot_ops.items()} == {
        k: o.runs for k, o in together.hot_ops.items()
    }


def test_the_file_is_small_sorted_and_rounded() -> None:
    text = to_json(baseline_of(100.12345, 99, 101, findings=known(a_finding(2), a_finding(1))))
    content = json.loads(text)
    assert content["metrics"]["step-time"]["runs"] == [99_000, 100_100, 101_000]
    assert content["metrics"]["step-time"]["unit"] == "us"
    assert list(content["metrics"]) == sorted(content["metrics"])
    assert content["findings"] == [f"NPU104:mlp.py:{n:016x}" for n in (1, 2)]
    assert content["hot_ops"]["MatMulV2|4096,5120 bf16"]["calls"] == 64
    assert len(text.splitlines()) < 24 + len(content["run_digests"])
    assert (round_measure(768_123.4), round_measure(0.0123456), round_measure(0)) == (
        768_100,
        0.01235,
        0,
    )


def test_fields_of_a_later_version_are_left_alone() -> None:
    content = json.loads(to_json(baseline_of(100, 101)))
    content["weather"] = {"sun": True}
    content["metrics"]["step-time"]["median"] = 1
    content["environment"]["kernel"] = "6.1"
    assert from_json(json.dumps(content)) == baseline_of(100, 101)


def broken(**changes: Any) -> str:
    return json.dumps({**json.loads(to_json(baseline_of(100, 101))), **changes})


def metric(**changes: Any) -> str:
    plain = {"unit": "us", "runs": [1.0, 2.0], "mad_within": 0.1, "better": "lower"}
    return broken(metrics={"step-time": {**plain, **changes}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (to_json(baseline_of(100))[:200], "not a baseline: Input data was truncated"),
        ("", "not a baseline"),
        ("[]", "not a baseline"),
        (b"\xff\xfe", "not a baseline"),
        (broken(schema=2), "schema 2 is newer than 1"),
        (broken(schema=0), "there never was a baseline schema 0"),
        (broken(schema="1"), "not a baseline"),
        (broken(run_count=0), "it holds no run"),
        (broken(run_count=-1), "run_count is -1"),
        (broken(metrics={}), "it holds no metric"),
        (broken(findings=["NPU104"]), "not RULE:path:fingerprint"),
        (metric(runs=[1.0, -2.0]), "metrics.step-time.runs holds -2.0"),
        (metric(runs=[1.0, float("nan")]), "not a baseline"),
        (metric(runs=[]), "metrics.step-time.runs holds 0 numbers of 2 runs"),
        (metric(runs=[1, 2, 3]), "metrics.step-time.runs holds 3 numbers of 2 runs"),
        (metric(runs="1"), "not a baseline: Expected `array`"),
        (metric(unit="ms"), "metrics.step-time.unit is 'ms', not us, bytes, count"),
        (metric(better="higher"), "metrics.step-time.better is 'higher'"),
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(ReportError, match=" -- ") as error:
        from_json(text)
    assert said in str(error.value)
    path = tmp_path / "b.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(baselines.BaselineError) as named:
        baselines.read(path)
    assert named.value.message.startswith(f"{path}: ")
    assert named.value.remedy


def test_a_report_and_a_wrong_unit_are_named(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text('{"tool": "npufix 1", "headline": "x", "schema": 2}')
    with pytest.raises(baselines.BaselineError, match="a report, not a baseline"):
        baselines.read(path)
    path.write_text(metric(unit="count"))
    with pytest.raises(baselines.BaselineError, match="unit is 'count', not 'us'"):
        baselines.read(path)


@FEW
@given(cut=st.integers(0, len(to_json(baseline_of(100, 101))) - 3))
def test_no_part_of_a_file_is_a_baseline(cut: int) -> None:
    with pytest.raises(ReportError):
        from_json(to_json(baseline_of(100, 101))[:cut])


def test_a_file_is_written_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "b.json"
    baselines.write(path, baseline_of(100))
    before = path.read_bytes()
    path.chmod(0o640)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(baselines.BaselineError, match="No space left"):
            baselines.write(path, baseline_of(200))
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]
    baselines.write(path, baseline_of(200))
    assert baselines.read(path) == baseline_of(200)
    assert path.stat().st_mode & 0o777 == 0o640


def test_environments_differ_by_what_changes_numbers() -> None:
    one = baselines.environment_of(a_run())
    other = msgspec.structs.replace(MACHINE, chip="Ascend910B3", rank=3, devices=[3], cann=None)
    said = baselines.differences(one, baselines.environment_of(a_run(environment=other)))
    assert said == ["chip Ascend910B2, now Ascend910B3", "cann 8.0.0, now not recorded"]


def test_a_baseline_is_a_typical_run() -> None:
    baseline: Baseline = baseline_of(100, 104, 99, findings=known(a_finding(1)))
    typical = baselines.typical(baseline)
    assert typical.metrics["step-time"].value == 100e6
    assert typical.operators[0].total_ns == 50e6
    assert typical.findings[0].fingerprint == f"{1:016x}"
    assert runs(100)[0].metrics["step-time"].unit == typical.metrics["step-time"].unit


def test_kernels_that_take_far_longer_than_the_step_are_of_another_unit() -> None:
    text = to_json(baseline_of(100, 101))
    wrong = text.replace(
        '"compute": {"unit": "us", "runs": [60000', '"compute": {"unit": "us", "runs": [60000000'
    )
    assert wrong != text
    with pytest.raises(ReportError, match="compute is more than 100 times"):
        from_json(wrong)
