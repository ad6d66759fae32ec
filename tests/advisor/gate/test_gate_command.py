"""``npufix baseline`` and ``npufix gate`` on dumps, as a CI job runs them."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from benchmarks.gate_power import STEPS, write_slowed

from npufix.advisor.diagnose.diagnosis import Options
from npufix.advisor.gate.measuring import measure, measure_report
from npufix.reports.report import from_json

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.xdist_group("gate")
_LUCK = {"a": 1.0, "b": 1.01, "c": 0.99, "d": 1.005, "slow1": 1.09, "slow2": 1.1, "slow3": 1.11}


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return runs of one program, four alike and three slower ones."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: write_slowed(
            folder / f"{name}_ascend_pt", [luck * 1.002**n for n in range(STEPS)], kernels=200
        )
        for name, luck in _LUCK.items()
    }


@pytest.fixture(scope="module")
def written(dumps: dict[str, Path], inside: Run, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("baseline") / "perf" / "baseline.json"
    done = inside("baseline", "update", dumps["a"], dumps["b"], dumps["c"], "-o", path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "3 runs, 6 metrics" in done.stderr
    return path.read_bytes()


@pytest.fixture
def baseline(written: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "baseline.json"
    path.write_bytes(written)
    return path


def test_a_slower_program_fails_and_the_same_one_passes(
    dumps: dict[str, Path], baseline: Path, npufix: Run, tmp_path: Path
) -> None:
    """Through real processes."""
    passes = npufix("gate", dumps["d"], "--baseline", baseline)
    assert passes.returncode == 0, passes.stderr
    assert passes.stdout.startswith("PASS: no regression; step-time +0.5%")
    report = tmp_path / "gate.json"
    slow = [dumps[name] for name in ("slow1", "slow2", "slow3")]
    fails = npufix("gate", *slow, "--baseline", baseline, "-o", f"json={report}")
    assert fails.returncode == 1, fails.stderr
    assert fails.stdout.startswith("FAIL: step-time: +10.0% (")
    made = json.loads(report.read_text())
    assert (made["verdict"], made["exit_status"]) == ("fail", 1)
    assert {"step-time", "compute"} <= {
        m["name"] for m in made["metrics"] if m["verdict"] == "regression"
    }
    assert 1 <= len(made["explanation"]) <= 3


def test_the_medians_are_those_of_the_steps(dumps: dict[str, Path]) -> None:
    fast, slow = (measure(dumps[name], None, Options()) for name in ("a", "slow2"))
    assert fast.steps == STEPS
    for name in ("step-time", "compute", "exposed-communication", "free-time"):
        assert slow.metrics[name].value == pytest.approx(fast.metrics[name].value * 1.1, rel=1e-4)
    assert slow.metrics["launches"] == fast.metrics["launches"]
    total = sum(operator.total_ns for operator in fast.operators)
    assert total == pytest.approx(fast.metrics["compute"].value, rel=0.02)


def test_a_report_stands_for_its_dump(dumps: dict[str, Path], inside: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(inside("diagnose", dumps["a"], "--json").stdout)
    one, other = measure_report(from_json(path.read_text())), measure(dumps["a"], None, Options())
    for name, metric in one.metrics.items():
        assert metric.value == pytest.approx(other.metrics[name].value, rel=0.02)
    done = inside("baseline", "update", path, "-o", tmp_path / "b.json")
    assert done.returncode == 0, done.stderr
    assert "1 of 3 runs: the noise between runs is unknown" in done.stderr
    path.write_text(path.read_text()[:5000])
    cut = inside("gate", path, "--baseline", tmp_path / "b.json")
    assert (cut.returncode, cut.stderr.count("\n")) == (2, 1)
    assert "not a report" in cut.stderr


def test_a_baseline_is_the_same_in_any_order_and_grows(
    dumps: dict[str, Path], baseline: Path, inside: Run, tmp_path: Path
) -> None:
    other = tmp_path / "other.json"
    inside("baseline", "update", dumps["c"], dumps["a"], "-o", other)
    inside("baseline", "update", dumps["b"], "--append", "-o", other)
    assert other.read_bytes() == baseline.read_bytes()
    twice = inside("baseline", "update", dumps["b"], "--append", "-o", other)
    assert twice.returncode == 2
    assert "is in the baseline already" in twice.stderr
    shown = inside("baseline", "show", baseline)
    assert shown.returncode == 0
    assert "step-time" in shown.stdout
    assert inside("baseline", "show", baseline, "--json").stdout == baseline.read_text()


def test_a_broken_dump_is_never_green(
    dumps: dict[str, Path], baseline: Path, inside: Run, tmp_path: Path
) -> None:
    copy = tmp_path / "cut_ascend_pt"
    shutil.copytree(dumps["a"], copy)
    (table,) = copy.rglob("kernel_details.csv")
    table.write_bytes(table.read_bytes()[:20_000])
    done = inside("gate", copy, dumps["b"], "--baseline", baseline)
    assert done.returncode == 3
    assert "is not whole" in " ".join(done.stdout.split())
    refused = inside("baseline", "update", copy, "-o", tmp_path / "b.json")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--allow-partial" in refused.stderr


def test_a_baseline_that_cannot_be_used_is_never_green(
    dumps: dict[str, Path], baseline: Path, inside: Run, tmp_path: Path
) -> None:
    text = baseline.read_text()
    missing = inside("gate", dumps["a"], "--baseline", tmp_path / "none.json")
    assert missing.returncode == 3
    assert "npufix baseline update" in missing.stdout
    for content, status, said in (
        (text[:300], 2, "not a baseline"),
        (text.replace('"schema": 1', '"schema": 7'), 2, "install the npufix that wrote it"),
        (
            text.replace('"profiler_level": "Level1"', '"chip": "Ascend910B3"'),
            3,
            "chip Ascend910B3",
        ),
        (text.replace('"profiler_level"', '"world_size": 8, "profiler_level"'), 3, "world size 8"),
    ):
        baseline.write_text(content)
        done = inside("gate", dumps["a"], "--baseline", baseline)
        assert done.returncode == status, done.stdout
        assert said in " ".join((done.stdout + done.stderr).split())
        assert "Traceback" not in done.stderr


def test_what_the_user_types_is_checked(
    dumps: dict[str, Path], baseline: Path, inside: Run, tmp_path: Path
) -> None:
    for words, said in (
        ([dumps["a"]], "nothing to compare with; give --baseline FILE"),
        ([dumps["a"], dumps["a"], "--baseline", baseline], "is given twice"),
        ([baseline, "--baseline", baseline], "is a baseline, not a run"),
        ([dumps["a"], "--baseline", baseline, "--tolerance", "5"], "not a percentage"),
        ([dumps["a"], "--budget", "step-tme=5 ms"], "did you mean step-time?"),
        ([tmp_path / "nothing", "--baseline", baseline], "nothing"),
    ):
        done = inside("gate", *words)
        assert done.returncode == 2, done.stdout
        assert said in done.stderr


def test_budgets_and_exit_zero(dumps: dict[str, Path], inside: Run) -> None:
    tight, wide = "step-time=1 µs", "step-time=1 s"
    assert inside("gate", dumps["a"], "--budget", wide).returncode == 0
    over = inside("gate", dumps["a"], "--budget", tight)
    assert over.returncode == 1
    assert "more than the budget of 1 µs" in over.stdout
    assert inside("gate", dumps["a"], "--budget", tight, "--exit-zero").returncode == 0


def test_several_runs_in_one_folder_are_not_ranks_of_one(
    dumps: dict[str, Path], baseline: Path, inside: Run
) -> None:
    done = inside("gate", dumps["a"].parent, "--baseline", baseline)
    assert done.returncode == 2
    assert "dumps of rank 0, so several runs -- name the folder of each run" in done.stderr


def test_a_mistake_of_ours_is_no_regression(
    baseline: Path, dumps: dict[str, Path], inside: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own exit status for an exception is 1, that of a failed gate."""
    monkeypatch.setattr("npufix.advisor.gate.gating.gate", lambda *_: {}["x"])
    done = inside("gate", dumps["a"], "--baseline", baseline)
    assert done.returncode == 2
    assert "KeyError" in done.stderr
