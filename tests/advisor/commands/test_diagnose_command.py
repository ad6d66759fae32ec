"""``npufix diagnose`` on the example and on the real dumps, as a user runs it."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Npufix = Callable[..., subprocess.CompletedProcess[str]]

DUMP = "examples/dump"
SOURCE = "examples/bert_like"


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


@pytest.fixture(scope="module")
def example_report(inside: Npufix) -> dict[str, Any]:
    done = inside("diagnose", DUMP, "--source", SOURCE, "--json")
    return dict(json.loads(done.stdout))


def test_the_answer_fits_one_screen_without_escape_sequences(npufix: Npufix) -> None:
    done = npufix("diagnose", DUMP, "--source", SOURCE)
    assert done.returncode == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    said = " ".join(done.stdout.split())
    assert re.search(r"Step \d+ ms █+░+ █ compute .* 9\d\.\d% ░ idle", said), "the step first"
    assert re.search(r"mask takes .* per step .*; \d+ findings could save about", said)
    rows = [line.split() for line in lines if re.match(r" *\d+ +\d+\.\d% ", line)]
    assert rows[0][:2] == ["1", "60.7%"]
    assert rows[0][4:] == ["masked-assignment", "masking.py:30", "NPU201", "*"]
    assert any(line.startswith("Start: npufix patch ") for line in lines)
    assert "Not recorded: modules, device memory" in said


@pytest.mark.parametrize("name", ["alexnet_910b_2ranks/text", "llm_megatron_4ranks"])
def test_real_dumps_fit_one_screen(inside: Npufix, real_dumps: Path, name: str) -> None:
    lines = inside("diagnose", real_dumps / name).stdout.splitlines()
    assert len(lines) <= 24
    # The command that comes next is not cut: it is there to be copied.
    assert all(len(line) <= 80 for line in lines if "FOLDER_OF_YOUR_CODE" not in line)
    table = next(n for n, line in enumerate(lines) if line.lstrip().startswith("of step"))
    assert table < 12
    assert re.match(r" 1 +\d+\.\d% ", lines[table + 1])


def test_sections_are_options(inside: Npufix) -> None:
    shown = inside("diagnose", DUMP, "--operators", "--shapes", "--modules").stdout
    assert "Operator " in shown
    assert "Shapes " in shown
    assert "The dump holds no modules." in shown
    assert "of step  saves" not in shown, "the first screen is for those who ask for nothing"
    everything = inside("diagnose", DUMP, "--source", SOURCE, "-v").stdout
    for title in ("of step  saves", "Operator ", "Line ", "1. NPU201", "To collect it:"):
        assert title in everything


def test_a_narrow_terminal_gets_a_list(inside: Npufix) -> None:
    made = inside("diagnose", DUMP, "--source", SOURCE, width=60).stdout
    assert max(len(line) for line in made.splitlines() if "npufix patch examples" not in line) <= 60
    assert "1. 60.7% masked-assignment NPU201 *" in made


def test_says_that_the_example_is_simulated(inside: Npufix) -> None:
    assert "Simulated dump: " in inside("diagnose", DUMP).stdout


def test_json_is_json_and_agrees_with_the_dump(inside: Npufix, dump: Path) -> None:
    report = json.loads(inside("diagnose", dump, "--source", SOURCE, "--json").stdout)
    steps = table(dump / "ASCEND_PROFILER_OUTPUT" / "step_trace_time.csv")
    mean = sum(float(s["Computing"]) for s in steps) / len(steps)
    assert report["split"]["computing_ns"] == pytest.approx(mean * 1000, abs=1)
    hottest = report["hot_operators"][0]
    assert hottest["type"] == "IndexPutV2"
    assert hottest["where"] == "bert_like/masking.py:30"
    rules = Counter(f["rule"] for f in report["findings"])
    expected = {
        "NPU101": 1,
        "NPU201": 4,
        "NPU202": 2,
        "NPU203": 1,
        "NPU204": 1,
        "NPU205": 1,
        "NPU301": 1,
    }
    assert {rule: rules[rule] for rule in expected} == expected
    code = [f for f in report["findings"] if f["kind"] == "code"]
    assert all(f["safety"] == "safe" for f in code if f["rule"] in expected)
    assert len({(f["path"], f["line"], f["code"]) for f in code}) == len(code)
    total = sum(f["saving"]["high_ns"] for f in report["findings"] if f["saving"])
    assert total <= report["split"]["total_ns"]


def test_findings_are_ranked_by_what_they_are_about(example_report: dict[str, Any]) -> None:
    # Types that are the work itself come behind, and what may save nothing at all.
    findings = example_report["findings"]
    spent = [f["device_ns"] for f in findings if f["saving"] and f["saving"]["low_ns"]]
    assert spent == sorted(spent, reverse=True)
    assert len(spent) > 1


def test_top_limits_the_table(inside: Npufix) -> None:
    report = json.loads(inside("diagnose", DUMP, "--top", "3", "--json").stdout)
    assert len(report["hot_operators"]) == 3


def test_output_writes_a_report(inside: Npufix, tmp_path: Path) -> None:
    done = inside("diagnose", DUMP, "--source", SOURCE, "-o", tmp_path / "report.md")
    assert f"Wrote {tmp_path / 'report.md'}" in done.stderr
    assert (tmp_path / "report.md").read_text(encoding="utf-8").startswith("# ")


def test_a_folder_above_and_the_output_folder_are_the_same_dump(inside: Npufix, dump: Path) -> None:
    reports = [
        json.loads(inside("diagnose", path, "--json").stdout)["hot_operators"]
        for path in (dump, dump.parent, dump / "ASCEND_PROFILER_OUTPUT")
    ]
    assert reports[0] == reports[1] == reports[2]


def test_alexnet_totals_per_type_equal_its_own_statistic(inside: Npufix, real_dumps: Path) -> None:
    folder = real_dumps / "alexnet_910b_2ranks" / "text"
    done = inside("diagnose", folder, "--json", "--top", "1000")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    ours = {(h["type"], h["core"]): (h["calls"], h["total_ns"]) for h in report["hot_operators"]}
    own = next(folder.rglob("op_statistic.csv"))
    theirs = {
        (row["OP Type"], row["Core Type"]): (int(row["Count"]), float(row["Total Time(us)"]))
        for row in table(own)
    }
    assert ours.keys() == theirs.keys()
    for key, (calls, total_us) in theirs.items():
        assert ours[key][0] == calls
        # The dump rounds each kernel to a nanosecond, its statistic only the sum.
        assert ours[key][1] == pytest.approx(total_us * 1000, abs=calls + 1)
    assert report["attributed"] > 0.9


def test_llm_names_the_work_on_the_vocabulary_and_claims_no_lines(
    inside: Npufix, real_dumps: Path
) -> None:
    done = inside("diagnose", real_dumps / "llm_megatron_4ranks", "--json")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    hot = [h for h in report["hot_operators"] if "151936" in h["shapes"]]
    assert "Add" in {h["type"] for h in hot}
    vocabulary = [h for h in report["hot_shapes"] if "151936" in h["shapes"]]
    assert [(h["type"], h["calls"]) for h in vocabulary] == [("Add", 2)]
    shown = inside("diagnose", real_dumps / "llm_megatron_4ranks", "--shapes").stdout
    assert "151936,1024 float; 151936,1024 bf16" in shown.split("Shapes ")[1]
    assert all(h["where"] == "" for h in report["hot_operators"])
    assert report["attributed"] == 0.0
    assert {"NPU501", "NPU502"} <= {f["rule"] for f in report["findings"]}
    assert all(f["kind"] == "run" for f in report["findings"])
    assert any("with_stack=True" in p["remedy"] for p in report["problems"])


def test_what_a_gradient_does_element_by_element_goes_with_what_it_is_of(
    example_report: dict[str, Any],
) -> None:
    kernels = {f["rule"]: set(f["kernels"]) for f in example_report["findings"]}
    # A half that was cut out is put back into zeros; the gradient of a bias is summed all the same.
    assert {"ZerosLike", "ViewCopy"} <= kernels["NPU102"]
    assert "ReduceSum" not in kernels["NPU205"] | kernels["NPU176"]


def test_no_step_is_saved_twice(example_report: dict[str, Any]) -> None:
    findings, split = example_report["findings"], example_report["split"]
    saved = sum(f["saving"]["high_ns"] for f in findings if f["saving"])
    assert saved <= split["total_ns"]
    computing = sum(f["device_ns"] for f in findings if f["kernels"])
    idle = sum(f["device_ns"] for f in findings if not f["kernels"])
    assert computing <= split["computing_ns"]
    assert 0 < idle <= split["free_ns"]
