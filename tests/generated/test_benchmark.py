"""One command prints what the product costs; how much is not for a test to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]


def test_the_table_has_a_row_per_comparison() -> None:
    command = [sys.executable, "-m", "benchmarks", "--runs", "1", "--rows", "200"]
    command += ["--only", "cold-start", "--only", "csv"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    head, _, *rows = done.stdout.splitlines()
    assert head.startswith("| what | CPU s |")
    assert [row.split(" | ")[0] for row in rows] == [
        "| --help",
        "| diagnose 200 kernel rows, 0 MiB",
    ]
    assert all(float(row.split(" | ")[6]) > 0 for row in rows)


def test_only_a_gross_growth_of_a_ratio_is_a_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.__main__ import GROSS, regressions

    recorded = {"csv": 10.0, "scan": 2.0}
    assert regressions({"csv": 10 * GROSS, "scan": 2.0, "new": 99.0}, recorded) == []
    (line,) = regressions({"csv": 10 * GROSS + 1, "scan": 2.0}, recorded)
    assert line.startswith("csv: 26.0 times its limit, recorded 10.0")
