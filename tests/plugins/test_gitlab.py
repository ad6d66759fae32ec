"""The example for GitLab: its script, run as a job does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
SLOW = "import torch\n\n\ndef f(x: torch.Tensor):\n    return torch.repeat_interleave(x, 3)\n"
JOBS = yaml.safe_load((ROOT / "examples/ci/gitlab-ci.yml").read_text(encoding="utf-8"))


def script(job: str, folder: Path) -> subprocess.CompletedProcess[str]:
    lines = "\n".join(JOBS[job]["script"])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", lines],  # noqa: S607
        cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, check=False,
        encoding="utf-8", timeout=1800,
    )  # fmt: skip


def test_a_merge_request_shows_what_is_new(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "perf").mkdir()
    (tmp_path / "src" / "a.py").write_text(SLOW, encoding="utf-8")
    known = {"schema": 2, "tool": "npufix 0", "findings": []}
    (tmp_path / "perf" / "findings.json").write_text(json.dumps(known), encoding="utf-8")
    done = script("npufix", tmp_path)
    assert done.returncode == 1, done.stderr
    reports = JOBS["npufix"]["artifacts"]["reports"]
    (row,) = json.loads((tmp_path / reports["codequality"]).read_text(encoding="utf-8"))
    assert (row["location"], row["severity"]) == (
        {"path": "src/a.py", "lines": {"begin": 5}},
        "major",
    )
    assert "<failure" in (tmp_path / reports["junit"]).read_text(encoding="utf-8")


def test_the_gate_of_the_example_takes_its_options(tmp_path: Path) -> None:
    job = JOBS["npufix-step-time"]
    assert job["allow_failure"]["exit_codes"] == [3]
    train = "import pathlib, sys\npathlib.Path(sys.argv[-1], 'x_ascend_pt').mkdir(parents=True)\n"
    (tmp_path / "train.py").write_text(train, encoding="utf-8")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(SLOW, encoding="utf-8")
    (tmp_path / "perf").mkdir()
    done = script("npufix-step-time", tmp_path)
    # There is nothing in these dumps, and that is what it says: no option is refused.
    assert done.returncode == 2
    assert "runs/1/x_ascend_pt" in done.stderr
    assert "Usage:" not in done.stderr
    assert "Error:" not in done.stderr
