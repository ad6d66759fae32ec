"""Bad input: one line that says what, where and what to do; status 2; no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Npufix = Callable[..., subprocess.CompletedProcess[str]]

OUTPUT = "ASCEND_PROFILER_OUTPUT"
SOURCE = "examples/bert_like"


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    for word in words:
        assert word in done.stderr


def partial(done: subprocess.CompletedProcess[str], *words: str) -> dict[str, object]:
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    report = json.loads(done.stdout)
    problems = json.dumps(report["problems"])
    for word in words:
        assert word in problems
    return dict(report)


def test_missing_path(inside: Npufix, tmp_path: Path) -> None:
    refused(inside("diagnose", tmp_path / "gone"), str(tmp_path / "gone"), "on_trace_ready")


def test_folder_without_a_dump(inside: Npufix, tmp_path: Path) -> None:
    refused(inside("diagnose", tmp_path), str(tmp_path), "_ascend_pt")


def test_a_file_that_is_no_dump(inside: Npufix, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("[]", encoding="utf-8")
    refused(inside("diagnose", tmp_path / "trace.json"), "trace.json", "no kernels")
    (tmp_path / "notes.txt").write_text("", encoding="utf-8")
    refused(inside("diagnose", tmp_path / "notes.txt"), "no file of a profiling dump")


def test_packages_that_do_not_go_together(tmp_path: Path) -> None:
    broken = "raise ImportError('pyarrow requires NumPy 2.0 or newer, found 1.26.4')"
    (tmp_path / "pyarrow.py").write_text(broken, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "npufix", "diagnose", "examples/dump"],
        capture_output=True, check=False, encoding="utf-8", timeout=1800,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    refused(done, "pyarrow requires NumPy 2.0 or newer", "pip install --upgrade numpy")


def test_raw_dump(inside: Npufix, tmp_path: Path) -> None:
    raw = tmp_path / "host_1_20250101000000000_ascend_pt"
    (raw / "FRAMEWORK").mkdir(parents=True)
    (raw / "PROF_000001_20250101000000000_ABC" / "device_0").mkdir(parents=True)
    refused(inside("diagnose", raw), "analyse(")


def test_missing_columns(inside: Npufix, dump: Path) -> None:
    table = dump / OUTPUT / "kernel_details.csv"
    text = table.read_text(encoding="utf-8")
    table.write_text(text.replace("Duration(us)", "Length", 1), encoding="utf-8")
    report = partial(inside("diagnose", dump, "--json"), "kernel_details.csv", "Duration(us)")
    assert report["hot_operators"]
    (dump / OUTPUT / "trace_view.json").unlink()
    refused(inside("diagnose", dump), "kernel_details.csv", "Duration(us)")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_truncated_trace_is_diagnosed_and_marked(inside: Npufix, dump: Path, share: float) -> None:
    trace = dump / OUTPUT / "trace_view.json"
    os.truncate(trace, int(trace.stat().st_size * share))
    done = inside("diagnose", dump, "--source", SOURCE, "--json")
    report = partial(done, "trace_view.json")
    assert report["hot_operators"]


def test_malformed_trace(inside: Npufix, dump: Path) -> None:
    (dump / OUTPUT / "trace_view.json").write_text("not json", encoding="utf-8")
    partial(inside("diagnose", dump, "--json"), "trace_view.json", "malformed")


def test_trace_without_stacks_says_how_to_collect_again(inside: Npufix, dump: Path) -> None:
    trace = dump / OUTPUT / "trace_view.json"
    events = json.loads(trace.read_text(encoding="utf-8"))
    for event in events:
        event.get("args", {}).pop("Call stack", None)
    trace.write_text(json.dumps(events), encoding="utf-8")
    done = inside("diagnose", dump, "--source", SOURCE, "--json")
    report = json.loads(done.stdout)
    assert "with_stack=True" in json.dumps(report["problems"])
    assert report["attributed"] == 0.0


def test_missing_source(inside: Npufix, tmp_path: Path) -> None:
    refused(inside("scan", tmp_path / "gone"), str(tmp_path / "gone"))
    refused(inside("scan", tmp_path), "no Python file")


def test_syntax_error_in_one_file(inside: Npufix, example: Path) -> None:
    (example / "broken.py").write_text("import torch\nx[m] = = 0\n", encoding="utf-8")
    report = partial(inside("scan", example, "--json"), "broken.py:2", "not valid Python")
    assert report["findings"]


def test_undecodable_file(inside: Npufix, example: Path) -> None:
    (example / "latin.py").write_bytes(b"# caf\xe9\nimport torch\n")
    report = partial(inside("scan", example, "--json"), "latin.py", "UTF-8")
    assert report["findings"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_unreadable_file(inside: Npufix, example: Path) -> None:
    (example / "bert_like" / "norm.py").chmod(0)
    partial(inside("scan", example, "--json"), "norm.py", "permission")


def test_null_bytes_and_deep_nesting_are_problems_of_that_file(
    inside: Npufix, example: Path
) -> None:
    (example / "null.py").write_bytes(b"import torch\nx[m] = 0\0\n")
    (example / "deep.py").write_text(f"import torch\nx[m] = {'(' * 500}0{')' * 500}\n")
    report = partial(inside("scan", example, "--json"), "null.py", "deep.py")
    assert report["findings"]


def test_wrong_usage(inside: Npufix) -> None:
    for args in (
        ("diagnose",),
        ("nonsense",),
        ("rules", "show", "NPU999"),
        ("patch", "--source", SOURCE, "--allow", "nonsense"),
        ("patch", "--source", SOURCE, "--rule", "nonsense"),
        ("diagnose", "examples/dump", "-o", "report.xyz"),
    ):
        done = inside(*args)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_code_in_place_of_a_dump_is_the_source(inside: Npufix) -> None:
    done = inside("patch", SOURCE)
    assert done.returncode == 2
    assert f"npufix patch --source {SOURCE}" in done.stderr
    assert "Missing option '--source'" in inside("patch", "nowhere").stderr


def test_names_of_a_dump_cannot_steer_the_terminal(inside: Npufix, dump: Path) -> None:
    table = dump / OUTPUT / "kernel_details.csv"
    text = table.read_text(encoding="utf-8")
    table.write_text(text.replace("IndexPutV2", "\x1b[31mIndex\x07Put"), encoding="utf-8")
    done = inside("diagnose", dump)
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
    assert "?[31mIndex?Put" in done.stdout
