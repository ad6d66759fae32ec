"""One command prints what the product costs; how much is not for a test to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "run.py"


def test_the_table_has_a_row_per_comparison() -> None:
    command = [sys.executable, str(SCRIPT), "--runs", "1", "--rows", "200"]
    command += ["--trace-kernels", "100", "--tasks", "100"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    head, *rows = done.stdout.splitlines()
    assert head.split()[:3] == ["what", "CPU", "s"]
    assert len(rows) == 6
    assert any("kernel rows" in row for row in rows)
