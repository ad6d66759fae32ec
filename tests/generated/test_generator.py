"""The generator writes what the profiler would: exact headers, exact counts, same bytes again."""

from __future__ import annotations

import csv
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.generator.dump import OUTPUT, TEXT_FILES, write_dump, write_ranks
from benchmarks.generator.files.kernel_details_csv import header
from benchmarks.generator.parameters import VERSIONS, Parameters, Version
from benchmarks.generator.run import simulate
from benchmarks.generator.truth import kernel_truths
from hypothesis import given
from logical_runs import SETTINGS, runs

ROOT = Path(__file__).parents[2]


def files(dump: Path) -> dict[str, bytes]:
    return {str(p.relative_to(dump)): p.read_bytes() for p in dump.rglob("*") if p.is_file()}


def test_same_parameters_same_bytes(tmp_path: Path) -> None:
    first = write_dump(Parameters(kernels=90), tmp_path / "a", "both", with_truth=True)
    again = write_dump(Parameters(kernels=90), tmp_path / "b", "both", with_truth=True)
    other = write_dump(Parameters(kernels=90, seed=1), tmp_path / "c", "both", with_truth=True)
    assert files(first) == files(again)
    assert files(first) != files(other)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("schedule", [True, False])
def test_every_row_has_the_columns_of_its_version(
    tmp_path: Path,
    version: Version,
    level: int,
    schedule: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    own = Parameters(kernels=140, version=version, level=level, schedule=schedule)
    path = write_dump(own, tmp_path, only=["kernel_details.csv"]) / OUTPUT / "kernel_details.csv"
    with path.open(newline="", encoding="utf-8") as file:
        names, *rows = csv.reader(file)
    assert len(rows) == own.kernels
    assert {len(row) for row in rows} == {len(names)}
    assert ("Step Id" in names) == schedule
    assert ("Block Num" in names) == (version == "newest")
    assert ("Device_id" in names) == (version in {"cann8.3", "newest"})
    assert ("OP State" in names) == (level > 0 and version != "old-2023")
    assert all(row[names.index("Start Time(us)")].endswith("\t") for row in rows)


def test_the_lines_of_a_call_stack_are_one_cell(tmp_path: Path) -> None:
    name = "operator_details.csv"
    path = write_dump(Parameters(kernels=140, stacks=True), tmp_path, only=[name]) / OUTPUT / name
    with path.open(newline="", encoding="utf-8") as file:
        names, *rows = csv.reader(file)
    assert {len(row) for row in rows} == {len(names)}
    assert any("\r\n" in row[names.index("Call Stack")] for row in rows)


def test_headers_are_those_of_real_dumps() -> None:
    assert header(Parameters(level=0)) == (
        "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim"
    )
    assert len(header(Parameters(version="cann8.3")).split(",")) == 47


@given(runs)
@SETTINGS
def test_kernels_of_a_run_are_exact(own: Parameters) -> None:
    truths = kernel_truths(simulate(own))
    assert len(truths) == own.kernels
    assert [each.start_ns for each in truths] == sorted(each.start_ns for each in truths)
    for device in range(own.devices):
        compute = [t for t in truths if t.device == device and not t.name.startswith("hcom")]
        ends = [t.start_ns + t.duration_ns for t in compute]
        assert all(end <= t.start_ns for end, t in zip(ends, compute[1:], strict=False))


def test_trace_is_one_array_whose_flows_meet(tmp_path: Path) -> None:
    dump = write_dump(Parameters(kernels=120, host_events=3), tmp_path)
    text = (dump / OUTPUT / "trace_view.json").read_text(encoding="utf-8")
    events = json.loads(text)
    assert "\n" not in text
    places = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    flows = [e for e in events if e["ph"] in "sf"]
    assert {e["cat"] for e in flows} == {
        "async_npu", "async_task_queue", "HostToDevice", "fwdbwd",
    }  # fmt: skip
    assert all((e["pid"], e["tid"], e["ts"]) in places for e in flows)
    for category in {e["cat"] for e in flows}:
        ends = [[e["id"] for e in flows if e["cat"] == category and e["ph"] == p] for p in "sf"]
        assert sorted(map(str, ends[0])) == sorted(map(str, ends[1]))


def test_operators_and_functions_of_a_thread_nest(tmp_path: Path) -> None:
    dump = write_dump(Parameters(kernels=200), tmp_path)
    events = json.loads((dump / OUTPUT / "trace_view.json").read_text(encoding="utf-8"))
    spans: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        if event.get("cat") in {"cpu_op", "python_function"}:
            start = int(event["ts"].replace(".", ""))
            end = start + round(event["dur"] * 1000)
            spans.setdefault(event["tid"], []).append((start, -end))
    for thread in spans.values():
        around: list[int] = []
        for start, end in sorted(thread):
            while around and around[-1] <= start:
                around.pop()
            assert not around or -end <= around[-1]
            around.append(-end)


def test_level0_has_no_analysis(tmp_path: Path) -> None:
    dump = write_dump(Parameters(kernels=20, level=0), tmp_path)
    names = {path.name for path in (dump / OUTPUT).iterdir()}
    assert "kernel_details.csv" in names
    assert not names & {"op_statistic.csv", "api_statistic.csv", "communication.json"}


def test_a_job_has_one_dump_per_rank(tmp_path: Path) -> None:
    dumps = write_ranks(Parameters(kernels=20, ranks=3), tmp_path, only=["kernel_details.csv"])
    assert len(set(dumps)) == 3
    for rank, dump in enumerate(dumps):
        assert (dump / f"profiler_info_{rank}.json").exists()


def test_database_is_whole(tmp_path: Path) -> None:
    dump = write_dump(Parameters(kernels=50, version="newest"), tmp_path, "db")
    with closing(sqlite3.connect(dump / OUTPUT / "ascend_pytorch_profiler_0.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        names = {row[1] for row in database.execute("PRAGMA table_info(COMPUTE_TASK_INFO)")}
    assert {"blockNum", "mixBlockNum", "opState"} <= names


def test_command_writes_a_dump(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.generator", str(tmp_path), "--kernels", "60"]
    command += ["--format", "both", "--truth", "--line-end", "lf", "--no-stacks"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    dump = Path(done.stdout.strip())
    assert {path.name for path in (dump / OUTPUT).iterdir()} > set(TEXT_FILES)
    assert (
        sum(count for count, _ in json.loads((dump / "truth.json").read_text())["types"].values())
        == 60
    )
    assert b"\r" not in (dump / OUTPUT / "kernel_details.csv").read_bytes()


def test_impossible_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="one kernel per step"):
        Parameters(kernels=1, steps=2)


def test_ranks_that_wait_may_have_no_schedule_and_several_devices(tmp_path: Path) -> None:
    own = Parameters(kernels=400, steps=3, ranks=4, tp=2, version="newest", devices=2)
    for name, job in (("devices", own), ("schedule", replace(own, devices=1, schedule=False))):
        dumps = write_ranks(job, tmp_path / name, "both", only=["communication.json"])
        content = json.loads((dumps[3] / OUTPUT / "communication.json").read_text())
        assert list(content) == (["step10", "step11", "step12"] if job.schedule else ["step"])


def test_the_database_names_the_groups_of_a_rank_as_the_metadata_does(tmp_path: Path) -> None:
    for tp in (1, 2):
        _, dump = write_ranks(Parameters(kernels=60, ranks=2, tp=tp), tmp_path / str(tp), "db")
        told = json.loads((dump / "profiler_metadata.json").read_text())
        with closing(sqlite3.connect(dump / OUTPUT / "ascend_pytorch_profiler_1.db")) as database:
            rows = dict(database.execute("SELECT name, value FROM META_DATA").fetchall())
        assert {name: json.loads(rows[name]) for name in told} == told
        assert told["parallel_group_info"]["group_name_0"]["global_ranks"] == [0, 1]
