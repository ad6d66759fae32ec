"""The example program trains, and the committed dump is the one that its sources produce."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAM = EXAMPLES / "bert_like"
RECORDED_ROOT = "/workspace/bert_like/"
[DUMP] = (EXAMPLES / "dump").glob("*_ascend_pt")
OUTPUT = DUMP / "ASCEND_PROFILER_OUTPUT"
FRAME = re.compile(r"^(?P<path>.+)\((?P<line>\d+)\): (?P<function>.+)$")


def run(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments], check=True, capture_output=True, text=True, timeout=1800
    ).stdout


def rows(name: str) -> list[dict[str, str]]:
    with (OUTPUT / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def trace() -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads((OUTPUT / "trace_view.json").read_text("utf-8"))
    return events


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DUMP / "profiler_metadata.json").read_text("utf-8"))
    return content


def test_training_is_deterministic_finite_and_depends_on_the_seed(
    train: Callable[..., str],
) -> None:
    first = run(str(PROGRAM / "train.py"), "--steps", "2", "--seed", "0")
    assert first == train(PROGRAM, "--steps", "2", "--seed", "0")
    losses = [float(line.split()[-1]) for line in first.splitlines()]
    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)
    (other,) = train(PROGRAM, "--steps", "1", "--seed", "1").splitlines()
    assert float(other.split()[-1]) != losses[0]


def test_dump_is_what_the_sources_produce(tmp_path: Path, metadata: dict[str, Any]) -> None:
    made_with = metadata["simulated_with"]
    here = {
        "torch": torch.__version__.partition("+")[0],
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    if made_with != here:
        pytest.skip(f"the dump holds library frames of {made_with}, here is {here}")
    run(str(EXAMPLES / "make_dump.py"), str(tmp_path))
    [made] = tmp_path.iterdir()
    committed = {file.relative_to(DUMP): file.read_bytes() for file in DUMP.rglob("*.*")}
    assert made.name == DUMP.name
    assert {file.relative_to(made): file.read_bytes() for file in made.rglob("*.*")} == committed


def test_dump_is_small_and_says_that_it_is_simulated(metadata: dict[str, Any]) -> None:
    assert "cost model, not from an NPU" in metadata["simulated"]
    assert (OUTPUT / "trace_view.json").stat().st_size < 3_000_000


def test_dump_names_no_folder_of_this_machine() -> None:
    for file in DUMP.rglob("*.*"):
        text = file.read_text("utf-8")
        assert str(EXAMPLES.parent) not in text
        assert sys.prefix not in text or sys.prefix in ("/usr", "/usr/local")


def test_recorded_sources_are_the_committed_ones(metadata: dict[str, Any]) -> None:
    expected = {
        RECORDED_ROOT + file.relative_to(PROGRAM).as_posix(): hashlib.sha256(
            file.read_bytes()
        ).hexdigest()
        for file in PROGRAM.rglob("*.py")
    }
    assert metadata["source_sha256"] == expected


def test_every_recorded_line_is_in_its_function(trace: list[dict[str, Any]]) -> None:
    frames = {
        frame
        for event in trace
        for frame in event.get("args", {}).get("Call stack", "").split(";\r\n")
        if frame.startswith(RECORDED_ROOT)
    }
    assert len(frames) > 50
    for frame in frames:
        match = FRAME.match(frame)
        assert match is not None, frame
        source = (PROGRAM / match["path"].removeprefix(RECORDED_ROOT)).read_text("utf-8")
        before = source.splitlines()[: int(match["line"])]
        assert len(before) == int(match["line"])
        assert before[-1].strip(), frame
        if match["function"] != "<module>":
            definitions = [
                line.split("(")[0].split()[-1] for line in before if " def " in f" {line}"
            ]
            assert definitions[-1] == match["function"], frame


def test_operator_totals_are_those_of_the_kernels() -> None:
    totals: dict[tuple[str, str], list[float]] = defaultdict(list)
    for kernel in rows("kernel_details.csv"):
        totals[kernel["Type"], kernel["Accelerator Core"]].append(float(kernel["Duration(us)"]))
    statistic = {(row["OP Type"], row["Core Type"]): row for row in rows("op_statistic.csv")}
    assert statistic.keys() == totals.keys()
    for key, times in totals.items():
        row = statistic[key]
        assert int(row["Count"]) == len(times)
        assert float(row["Total Time(us)"]) == pytest.approx(sum(times), abs=0.01)
        assert float(row["Max Time(us)"]) == pytest.approx(max(times), abs=0.001)
    assert sum(float(row["Ratio(%)"]) for row in statistic.values()) == pytest.approx(100, abs=0.1)


def test_masked_assignment_dominates_a_busy_device() -> None:
    shares = {
        (row["OP Type"], row["Core Type"]): float(row["Ratio(%)"])
        for row in rows("op_statistic.csv")
    }
    assert 55 < shares["IndexPutV2", "AI_VECTOR_CORE"] < 80
    for step in rows("step_trace_time.csv"):
        assert float(step["Free"]) < 0.1 * float(step["Stage"])


def test_kernels_do_not_overlap_and_fill_the_computing_time() -> None:
    end_ns, computing = 0, defaultdict(float)
    for kernel in rows("kernel_details.csv"):
        assert kernel["Start Time(us)"].endswith("\t")
        start_ns = int(kernel["Start Time(us)"].strip().replace(".", ""))
        assert start_ns > end_ns
        duration = float(kernel["Duration(us)"])
        end_ns = start_ns + round(duration * 1000)
        computing[kernel["Step Id"]] += duration
    steps = {row["Step"]: float(row["Computing"]) for row in rows("step_trace_time.csv")}
    assert steps == pytest.approx(dict(computing))


def test_every_kernel_leads_to_one_host_operator(trace: list[dict[str, Any]]) -> None:
    operators = {
        (event["pid"], event["tid"], event["ts"]): event
        for event in trace
        if event.get("cat") == "cpu_op"
    }
    flows = [event for event in trace if event.get("cat") == "async_npu"]
    begins = {event["id"]: event for event in flows if event["ph"] == "s"}
    ends = {event["ts"]: begins[event["id"]] for event in flows if event["ph"] == "f"}
    kernels = rows("kernel_details.csv")
    launched_by = defaultdict(set)
    for kernel in kernels:
        begin = ends[kernel["Start Time(us)"].strip()]
        operator = operators[begin["pid"], begin["tid"], begin["ts"]]
        launched_by[kernel["Type"]].add(operator["name"])
    assert len(kernels) > 1000
    assert launched_by["IndexPutV2"] == {"aten::index_put_", "aten::index_put"}
    assert launched_by["GatherElements"] == {"aten::gather"}
    assert launched_by["RepeatInterleave"] == {"aten::repeat_interleave"}
    assert launched_by["OneHot"] == {"aten::one_hot"}
