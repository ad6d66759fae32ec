"""``npufix diagnose`` on generated runs: several steps, ranks, formats, no stacks."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Npufix = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.xdist_group("runs")  # they share one dear fixture


def generate(folder: Path, *options: str) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["benchmarks.generator", str(folder), *options])
        runpy.run_module("benchmarks.generator", run_name="__main__")
    return folder


def diagnose(npufix: Npufix, path: Path, *options: str) -> dict[str, Any]:
    done = npufix("diagnose", path, "--json", *options)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return three ranks of five steps; the first step is warm-up, the fourth an outlier."""
    folder = tmp_path_factory.mktemp("cluster")
    return generate(
        folder, "--kernels", "1200", "--steps", "5", "--ranks", "3", "--outlier", "3", "--truth"
    )


def test_warm_up_and_outliers_are_named_and_left_out(npufix: Npufix, cluster: Path) -> None:
    rank = min(cluster.iterdir())
    split = diagnose(npufix, rank)["split"]
    assert [step["reason"] for step in split["left_out"]] == ["warm-up", "outlier"]
    assert split["steps"] == 3
    assert all(step["total_ns"] > 1.3 * split["total_ns"] for step in split["left_out"])
    shown = npufix("diagnose", rank, "-v").stdout
    assert shown.count("left out: step ") == 2


def test_every_rank_is_listed_and_the_slowest_diagnosed(inside: Npufix, cluster: Path) -> None:
    report = diagnose(inside, cluster)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2]
    (chosen,) = (rank for rank in report["ranks"] if rank["diagnosed"])
    own = [rank["computing_ns"] + rank["free_ns"] for rank in report["ranks"]]
    assert chosen["computing_ns"] + chosen["free_ns"] == max(own)
    assert report["environment"]["rank"] == chosen["rank"]
    assert diagnose(inside, cluster, "--rank", "1")["environment"]["rank"] == 1
    refused = inside("diagnose", cluster, "--rank", "7")
    assert refused.returncode == 2
    assert "no dump of rank 7 -- there are ranks 0, 1, 2" in refused.stderr


def test_a_broken_rank_is_a_row_that_says_so(inside: Npufix, cluster: Path, tmp_path: Path) -> None:
    copy = tmp_path / "cluster"
    shutil.copytree(cluster, copy)
    rank = sorted(copy.iterdir())[1]
    (rank / "ASCEND_PROFILER_OUTPUT" / "step_trace_time.csv").write_text("Step,Stage\n1,2\n")
    done = inside("diagnose", copy, "--json")
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert [bool(row["problem"]) for row in report["ranks"]] == [False, True, False]


def test_lines_and_totals_are_those_of_the_run(inside: Npufix, cluster: Path) -> None:
    rank = min(cluster.iterdir())
    report = diagnose(inside, rank, "--top", "1000")
    truth = json.loads((rank / "truth.json").read_text())
    hot = {f"{h['type']} {h['core']}": [h["calls"], h["total_ns"]] for h in report["hot_operators"]}
    compute = {
        name: stated
        for name, stated in truth["types"].items()
        if not name.endswith(("HCCL", "COMMUNICATION"))
    }
    assert hot == compute
    own = {line: ns for line, ns in truth["lines"].items() if line.startswith("/home/user/")}
    lines = {f"{h['path']}({h['line']}): {h['function']}": h for h in report["hot_lines"]}
    direct = {line for line, h in lines.items() if not h["via"]}
    assert direct
    assert {line: lines[line]["total_ns"] for line in direct} == {k: own[k] for k in direct}


@pytest.mark.parametrize("export", ["text", "db"])
def test_without_stacks_the_functions_are_what_is_left(
    inside: Npufix, tmp_path: Path, export: str
) -> None:
    folder = generate(tmp_path, "--kernels", "600", "--no-stacks", "--format", export)
    report = diagnose(inside, folder)
    assert report["attributed"] == 0
    assert report["attributed_to_functions"] > 0.5
    assert {hot["level"] for hot in report["hot_lines"]} == {"function"}
    assert report["hot_modules"]
    assert any(part["name"] == "call stacks" for part in report["not_recorded"])
    assert "with_stack=True" in report["collect"]


def test_recorded_paths_are_led_to_the_source_by_the_user(inside: Npufix, tmp_path: Path) -> None:
    folder = generate(tmp_path / "dump", "--kernels", "600")
    for name in ("a", "b"):
        (tmp_path / "src" / name).mkdir(parents=True)
        (tmp_path / "src" / name / "model.py").write_text("")
    report = diagnose(inside, folder, "--source", str(tmp_path / "src"))
    assert any("--path-map" in problem["remedy"] for problem in report["problems"])
    moved = ("--path-map", "/home/user/project=b")
    report = diagnose(inside, folder, "--source", str(tmp_path / "src"), *moved)
    assert "b/model.py" in {hot["path"] for hot in report["hot_lines"]}
    refused = inside("diagnose", folder, "--source", str(tmp_path / "src"), "--path-map", "b")
    assert refused.returncode == 2
    assert "OLD=NEW" in refused.stderr
