"""The examples for GitLab, Gitee, GitCode and Jenkins: their scripts, run as a job does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

EXAMPLES = Path(__file__).parents[2] / "examples" / "ci"
SLOW = "import torch\n\n\ndef f(x: torch.Tensor):\n    return torch.repeat_interleave(x, 3)\n"
TRAIN = "import pathlib, sys\npathlib.Path(sys.argv[-1], 'x_ascend_pt').mkdir(parents=True)\n"
GITLAB = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text(encoding="utf-8"))
GITEE = yaml.safe_load((EXAMPLES / "gitee-go.yml").read_text(encoding="utf-8"))
GITCODE = yaml.safe_load((EXAMPLES / "gitcode.yml").read_text(encoding="utf-8"))
JENKINS = re.findall(r"'''(.*?)'''", (EXAMPLES / "Jenkinsfile").read_text("utf-8"), re.DOTALL)


def run(lines: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script but for what installs npufix: it is here."""
    text = "\n".join(line for line in "\n".join(lines).splitlines() if "pip install" not in line)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", text],  # noqa: S607
        cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, check=False,
        encoding="utf-8", timeout=1800,
    )  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "perf").mkdir()
    (tmp_path / "src" / "a.py").write_text(SLOW, encoding="utf-8")
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    known = {"schema": 2, "tool": "npufix 0", "findings": []}
    (tmp_path / "perf" / "findings.json").write_text(json.dumps(known), encoding="utf-8")
    return tmp_path


def test_gitlab_shows_what_is_new(project: Path) -> None:
    done = run(GITLAB["npufix"]["script"], project)
    assert done.returncode == 1, done.stderr
    reports = GITLAB["npufix"]["artifacts"]["reports"]
    (row,) = json.loads((project / reports["codequality"]).read_text(encoding="utf-8"))
    assert (row["location"], row["severity"]) == (
        {"path": "src/a.py", "lines": {"begin": 5}},
        "major",
    )
    assert "<failure" in (project / reports["junit"]).read_text(encoding="utf-8")


def test_gitee_keeps_what_is_new(project: Path) -> None:
    (step,) = GITEE["stages"][0]["steps"]
    assert run(step["commands"], project).returncode == 1
    for path in step["artifacts"][0]["path"]:
        assert "NPU203" in (project / path).read_text(encoding="utf-8")


def test_gitcode_shows_what_is_new(project: Path) -> None:
    assert "pull_request" in GITCODE[True]  # what YAML makes of "on"
    steps = GITCODE["jobs"]["source"]["steps"]
    lines = [step["run"] for step in steps if "run" in step]
    # Its own actions have a name alone, as others have an owner and a version.
    used = [step["uses"] for step in steps if "uses" in step]
    assert used == ["checkout", "setup-python", "upload-artifact"]
    assert run(lines, project).returncode == 1
    for name in ("npufix.json", "npufix.md"):
        assert "NPU203" in (project / name).read_text(encoding="utf-8")


def test_jenkins_shows_what_is_new(project: Path) -> None:
    assert run(JENKINS[:1], project).returncode == 1
    assert "<failure" in (project / "npufix.xml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "lines",
    [GITLAB["npufix-step-time"]["script"], GITLAB["npufix-history"]["script"], JENKINS[1:]],
    ids=["gitlab", "gitlab-history", "jenkins"],
)
def test_measurements_take_their_options(lines: list[str], project: Path) -> None:
    assert GITLAB[".npu"]["allow_failure"]["exit_codes"] == [3]
    done = run(lines, project)
    # There is nothing in these dumps, and that is what it says: no option is refused.
    assert done.returncode == 2
    assert "runs/1" in done.stderr
    assert "Usage:" not in done.stderr
    assert "Error:" not in done.stderr
