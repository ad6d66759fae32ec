"""``npufix history`` as a job of CI runs it every night."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from benchmarks.gate_power import STEPS, write_slowed
from histories import history

from npufix.reports.history import to_line

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    """Return a history whose last ten runs are a tenth slower."""
    file = tmp_path / "history.jsonl"
    lines = map(to_line, history([1.0] * 30 + [1.1] * 10))
    file.write_text("".join(lines), encoding="utf-8")
    return file


def test_a_run_is_added_once(inside: Run, tmp_path: Path) -> None:
    dump = write_slowed(tmp_path / "a_ascend_pt", [1.0] * STEPS, kernels=50)
    file = tmp_path / "perf" / "history.jsonl"

    done = inside("history", "add", dump, "-o", file, "--commit", "1a2b3c4", "--time",
                  "2026-03-01T12:00:00+08:00")  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    kept = file.read_bytes()
    assert json.loads(kept)["run"]["commit"] == "1a2b3c4"

    again = inside("history", "add", dump, "-o", file)
    assert again.returncode == 2
    assert "in the history already" in again.stderr
    assert file.read_bytes() == kept
    assert inside("history", "check", file).returncode == 3


def test_a_step_fails_until_it_is_accepted(inside: Run, slower: Path) -> None:
    failed = inside("history", "check", slower)
    assert failed.returncode == 1
    assert "step-time +" in failed.stdout.splitlines()[0]

    assert inside("history", "accept", slower, "--reason", " ").returncode == 2
    assert inside("history", "accept", slower, "--reason", "a longer context").returncode == 0
    passed = inside("history", "check", slower)
    assert passed.returncode == 0
    assert "a longer context" in passed.stdout


def test_outputs_show_the_same_step(inside: Run, slower: Path, tmp_path: Path) -> None:
    page = tmp_path / "trend.md"
    done = inside("history", "show", slower, "--json", "-o", f"markdown={page}")

    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    (shift,) = made["metrics"][0]["shifts"]
    assert (shift["first"], made["verdict"]) == (30, "fail")
    assert "| `step-time` | 40 |" in page.read_text(encoding="utf-8")


def test_a_wrong_tolerance_and_a_wrong_time_are_one_line(inside: Run, slower: Path) -> None:
    for arguments in (("check", slower, "--tolerance", "much"), ("add", slower, "--time", "soon")):
        done = inside("history", *arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_the_page_marks_where_the_level_changed(inside: Run, slower: Path, tmp_path: Path) -> None:
    page = tmp_path / "trend.html"
    assert inside("history", "show", slower, "-o", page).returncode == 0

    text = page.read_text(encoding="utf-8")
    assert text.count('class="level"') == 2  # the step, and the hot operator
    assert text.count('class="more"') == 2
    assert "2026-03-31, 000001e" in text
