"""``npufix compare`` as a user runs it, on dumps with injected changes whose truth is known."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from two_runs import write_run

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Command = Callable[..., subprocess.CompletedProcess[str]]

KERNELS = [("MatMulV3", "64,128", 500.0), ("Mul", "64,128", 40.0), ("Mul", "8,8", 10.0)]
SLOWER = [("MatMulV3", "64,128", 650.0), ("Mul", "64,128", 40.0), ("Mul", "8,8", 10.0)]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Return a run, and one whose MatMulV3 takes 150 µs more."""
    return write_run(tmp_path / "a", KERNELS), write_run(tmp_path / "b", SLOWER)


def compared(inside: Command, *args: object) -> dict[str, Any]:
    done = inside("compare", *args, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_injected_change_is_what_explains_it(inside: Command, pair: tuple[Path, Path]) -> None:
    done = inside("compare", *pair)
    assert done.returncode == 0
    first = " ".join(done.stdout.split("Before:")[0].split())
    assert first == "Step 561 µs -> 711 µs (+26.7%); MatMulV3 explains 150 µs of 150 µs."
    assert "+150 µs  MatMulV3: 500 µs -> 650 µs" in done.stdout
    assert "more than the steps differ" in done.stdout
    assert "not independent" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.replace(str(pair[0].parent.parent), "").splitlines())) <= 80
    made = compared(inside, *pair)
    assert [(o["type"], o["before_ns"], o["after_ns"]) for o in made["operators"]] == [
        ("MatMulV3", 500_000, 650_000),
        ("Mul", 50_000, 50_000),
    ]
    assert len(made["shapes"]) == 3
    assert made["explanation"]["unexplained_ns"] == 0


def test_a_run_does_not_differ_from_itself(inside: Command, pair: tuple[Path, Path]) -> None:
    done = inside("compare", pair[0], pair[0])
    assert done.returncode == 0
    assert done.stdout.startswith("Step 561 µs -> 561 µs: no difference.\n")
    assert "What explains" not in done.stdout


def test_it_is_written_in_every_format_at_once(
    inside: Command, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    page, more = tmp_path / "a.html", tmp_path / "b.md"
    done = inside("compare", *pair, "--html", page, "-o", more, "-o", "json=-")
    made = json.loads(done.stdout)
    assert made["headline"].replace(">", "&gt;") in page.read_text()
    assert more.read_text().startswith("# Step 561 µs")
    assert [step["computing_ns"] for step in made["before"]["recorded"]] == [550_000] * 4
    for wrong in (("--json", "-o", "json=-"), ("-o", "csv=x"), ("--html", tmp_path)):
        assert inside("compare", *pair, *wrong).returncode == 2


def test_new_and_gone_kernels_and_waiting(inside: Command, tmp_path: Path) -> None:
    same = ("MatMulV3", "8", 500.0)
    before = write_run(tmp_path / "a", [same, ("Square", "8", 60.0), ("Rsqrt", "8", 60.0)])
    after = write_run(tmp_path / "b", [same, ("RmsNorm", "8", 30.0), ("hcom_allReduce_", "", 25.0)])
    made = compared(inside, before, after)
    changes = {op["type"]: op["after_ns"] - op["before_ns"] for op in made["operators"]}
    kernels = {"MatMulV3": 0, "Square": -60_000, "Rsqrt": -60_000, "RmsNorm": 30_000}
    assert changes == {**kernels, "hcom_allReduce_": 25_000}
    explanation = made["explanation"]
    assert explanation["after_ns"] - explanation["before_ns"] == -65_000
    assert [part["what"] for part in explanation["parts"]] == ["Rsqrt", "Square", "RmsNorm"]
    # Exposed communication; the collective itself is not counted besides.
    assert (explanation["others_ns"], explanation["unexplained_ns"]) == (25_000, 0)


def test_reports_and_baselines_stand_for_dumps(
    inside: Command, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    report, baseline = tmp_path / "report.json", tmp_path / "baseline.json"
    report.write_text(inside("diagnose", pair[0], "--top", 1, "--json").stdout)
    made = compared(inside, report, pair[1])
    assert made["before"]["kind"] == "report"
    assert [(o["type"], o["before_ns"], o["after_ns"]) for o in made["operators"]] == [
        ("MatMulV3", 500_000, 650_000),
        ("Mul", None, 50_000),  # the report does not list it: unknown, not nothing
    ]
    assert "—" in inside("compare", report, pair[1]).stdout

    from npufix.advisor.diagnose.diagnosis import Options
    from npufix.advisor.gate import baselines
    from npufix.advisor.gate.measuring import measure

    baselines.write(baseline, baselines.merge_baseline([measure(pair[0], None, Options())]))
    made = compared(inside, baseline, pair[1])
    assert made["before"]["kind"] == "baseline"
    assert made["explanation"]["parts"][0]["what"].startswith("MatMulV3 on 64,128")
    assert made["explanation"]["parts"][0]["after_ns"] == 650_000


@pytest.mark.parametrize("what", ["missing", "truncated", "foreign", "steps"])
def test_bad_input_is_one_clear_line(
    inside: Command, pair: tuple[Path, Path], tmp_path: Path, what: str
) -> None:
    bad = tmp_path / "bad.json"
    more: tuple[object, ...] = ()
    if what == "truncated":
        bad.write_text(inside("diagnose", pair[0], "--json").stdout[:3000])
    elif what == "foreign":
        bad.write_text(inside("compare", *pair, "--json").stdout)
    elif what == "steps":
        bad, more = pair[1], ("--steps-after", 3)
    done = inside("compare", pair[0], bad, *more)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert str(bad) in done.stderr
    assert " -- " in done.stderr


def test_a_broken_dump_is_marked_and_what_it_lacks_is_unknown(
    inside: Command, pair: tuple[Path, Path]
) -> None:
    file = pair[1] / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv"
    lines = file.read_text().splitlines()
    kept = [line for line in lines if "Mul_" not in line]
    file.write_text("\n".join(kept) + "\n3,aclnn\n")
    done = inside("compare", *pair, "--json")
    assert done.returncode == 2
    made = json.loads(done.stdout)
    assert made["after"]["partial"]
    assert {o["type"]: o["after_ns"] for o in made["operators"]}["Mul"] is None
    assert "Partial:" in inside("compare", *pair).stdout


def test_names_of_a_dump_cannot_steer_the_terminal_or_the_table(
    inside: Command, tmp_path: Path
) -> None:
    before = write_run(tmp_path / "a", [("Mul", "8", 5.0)])
    after = write_run(tmp_path / "b", [("Evil\x1b[2J|<b>", "8", 50.0)])
    written = tmp_path / "out.md"
    done = inside("compare", before, after, "-o", written)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "Evil?[2J" in done.stdout
    text = written.read_text()
    assert "\x1b" not in text
    assert r"`Evil?[2J\|<b>`" in text
    assert "<b>" not in text.replace(r"`Evil?[2J\|<b>`", "")


def test_a_gpu_is_compared_by_operator(inside: Command, tmp_path: Path) -> None:
    shapes = {"Input Dims": [[4, 128]], "Input type": ["c10::Half"]}
    events: list[dict[str, object]] = []
    for call in range(2):
        at, key = 100.0 + 100 * call, 500 + call
        host = {"ph": "X", "pid": 1, "tid": 10}
        events += [
            {**host, "cat": "cpu_op", "name": "aten::mul", "ts": at, "dur": 40.0,
             "args": {"External id": key, **shapes}},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 5, "dur": 5.0,
             "args": {"External id": key, "correlation": key}},
            {"ph": "X", "cat": "kernel", "name": "mul_kernel", "pid": 0, "tid": 7, "ts": at + 50,
             "dur": 10.0, "args": {"device": 0, "stream": 7, "correlation": key,
                                   "External id": key}},
        ]  # fmt: skip
    trace = tmp_path / "gpu.pt.trace.json"
    header = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}]}
    trace.write_text(json.dumps({**header, "traceEvents": events, "baseTimeNanoseconds": 0}))
    made = compared(inside, trace, "examples/dump", "--steps-before", 2)
    assert made["across_devices"]
    assert made["before"]["unit"] == "step"
    operators = {op["name"]: op for op in made["host_operators"]}
    mul = operators["aten::mul"]
    assert (mul["before_ns"], mul["before_calls"]) == (10_000, 1.0)
    assert mul["after_ns"] > 100_000
    assert (mul["before_dtypes"], mul["after_dtypes"][:1]) == (["float16"], ["float32"])
    assert made["host_operators"][0] == mul  # what both have comes first
    shown = inside("compare", trace, "examples/dump").stdout
    assert "float16 -> float32" in shown
    assert "IndexPutV2 " not in shown.split("PyTorch operator")[1].split("Line")[0]
    assert "has no steps" in " ".join(shown.split())


def test_ranks_are_shown_side_by_side(inside: Command, tmp_path: Path) -> None:
    for rank, slow in ((0, 5.0), (1, 9.0)):
        for side in ("a", "b"):
            run = write_run(tmp_path / side / f"r{rank}", [("Mul", "8", slow)])
            (run / f"profiler_info_{rank}.json").write_text(json.dumps({"rank_id": rank}))
    shutil.rmtree(tmp_path / "b" / "r1")
    made = compared(inside, tmp_path / "a", tmp_path / "b")
    assert [rank["rank"] for rank in made["before"]["ranks"]] == [0, 1]
    assert {"rank 1 -> 0", "ranks recorded 2 -> 1"} <= set(made["differences"])
    made = compared(inside, tmp_path / "a", tmp_path / "b", "--rank", 0)
    assert made["headline"].endswith("no difference.")


@pytest.mark.parametrize("others", [5, 40])
def test_what_a_baseline_does_not_hold_is_new(inside: Command, tmp_path: Path, others: int) -> None:
    known = [("MatMulV3", "64,128", 500.0)]
    known += [("Mul", f"{n},8", 10.0 + n / 8) for n in range(others)]
    grown = [("MatMulV3", "64,128", 650.0), ("Tile", "64,64", 80.0), *known[1:]]
    before, after = write_run(tmp_path / "a", known), write_run(tmp_path / "b", grown)
    path = tmp_path / "b.json"
    assert inside("baseline", "update", before, "-o", path).returncode == 0
    made = compared(inside, path, after)
    told = {part["what"].partition(" on ")[0]: part for part in made["explanation"]["parts"]}
    assert (told["Tile"]["before_ns"], told["Tile"]["after_ns"]) == (0, 80_000)
    assert told["MatMulV3"]["after_ns"] - told["MatMulV3"]["before_ns"] == 150_000
    assert abs(made["explanation"]["unexplained_ns"]) <= 1_000
