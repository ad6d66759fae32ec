"""The GitHub Action: its steps, run by bash as a runner does, with a stand-in for ``gh``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
SLOW = "import torch\n\n\ndef f(x: torch.Tensor):\n    return torch.repeat_interleave(x, 3)\n"
GH = """#!/bin/sh
echo "$@" >> "$LOG"
case "$*" in *--paginate*) cat "$COMMENTS" ;; esac
"""


class Runner:
    """A folder with the files that GitHub gives to a job."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "my project"
        (self.workspace / "src").mkdir(parents=True)
        (self.workspace / ".git").mkdir()
        (self.workspace / "src" / "a file.py").write_text(SLOW, encoding="utf-8")
        self.output, self.summary = folder / "output", folder / "summary"
        self.log, self.comments = folder / "log", folder / "comments"
        for path in (self.output, self.summary, self.log, self.comments):
            path.touch()
        tools = folder / "tools"
        tools.mkdir()
        (tools / "gh").write_text(GH, encoding="utf-8")
        (tools / "gh").chmod(0o755)
        self.environment = {
            "PATH": f"{tools}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}"
            + os.environ["PATH"],
            "RUNNER_TEMP": str(folder),
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_REPOSITORY": "owner/project",
            "LOG": str(self.log),
            "COMMENTS": str(self.comments),
            "HOME": str(folder),
        }

    def run(self, name: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        """Run a step; what is not given has its default."""
        step = STEPS[name]
        known = {key: str(about.get("default", "")) for key, about in ACTION["inputs"].items()}
        known |= {"version": "installed", **inputs}
        values = {f"inputs.{key}": value for key, value in known.items()}
        values |= {f"steps.run.outputs.{key}": value for key, value in self.outputs().items()}
        values |= {"github.event.pull_request.number": "7", "github.action_path": str(ROOT)}

        def value(match: re.Match[str]) -> str:
            return values[match[1].strip()]

        own = {key: re.sub(r"\$\{\{(.*?)\}\}", value, text) for key, text in step["env"].items()}
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],  # noqa: S607
            cwd=self.workspace, env={**self.environment, **own}, capture_output=True,
            check=False, encoding="utf-8", timeout=1800,
        )  # fmt: skip

    def outputs(self) -> dict[str, str]:
        lines = self.output.read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_the_action_is_whole() -> None:
    assert ACTION["runs"]["using"] == "composite"
    for name, about in ACTION["outputs"].items():
        assert about["value"] == f"${{{{ steps.run.outputs.{name} }}}}"
    for step in STEPS.values():
        assert ("run" in step) is ("shell" in step)
        assert step.get("shell", "bash") == "bash"
        # What a user gives is data: it reaches a script by its environment only.
        assert "${{" not in step.get("run", "")
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text(encoding="utf-8")))
    assert used == set(ACTION["inputs"])
    workflow = yaml.safe_load((ROOT / "examples/ci/github-workflow.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    ours = [step for step in steps if step.get("uses", "").startswith("OWNER/npufix@")]
    assert len(ours) == 2
    assert all(set(step["with"]) <= set(ACTION["inputs"]) for step in ours)


def test_a_new_pattern_fails_after_everything_is_told(runner: Runner) -> None:
    assert runner.run("Install npufix").returncode == 0
    done = runner.run("Run npufix", paths="src")
    assert done.returncode == 0, done.stderr
    assert "FAIL: 1 slow pattern in 1 file." in done.stdout
    assert "\n::error file=src/a file.py,line=5,title=NPU203 repeat-interleave-int::" in done.stdout
    told = runner.outputs()
    assert (told["status"], told["verdict"], told["new-findings"]) == ("1", "fail", "1")
    assert json.loads(Path(told["sarif"]).read_text(encoding="utf-8"))["version"] == "2.1.0"
    assert runner.summary.read_text(encoding="utf-8").startswith("<!-- npufix:gate -->\n### FAIL")
    assert runner.run("Verdict").returncode == 1
    # The first time there is no comment, then it is changed.
    said = []
    for comments in ("", "41\n", "41\n99\n"):
        runner.comments.write_text(comments, encoding="utf-8")
        runner.log.write_text("", encoding="utf-8")
        assert runner.run("Comment on the pull request").returncode == 0
        said.append(runner.log.read_text(encoding="utf-8").splitlines()[-1])
    assert said[0].startswith("api --method POST repos/owner/project/issues/7/comments --field")
    assert said[1] == said[2]
    assert said[1].startswith("api --method PATCH repos/owner/project/issues/comments/41 --field")
    assert f"body=@{told['comment']}" in said[1]


def test_a_baseline_passes_and_a_fork_may_not_comment(runner: Runner) -> None:
    baseline = {"schema": 1, "tool": "npufix 0", "findings": []}
    (runner.workspace / "known.json").write_text(json.dumps(baseline), encoding="utf-8")
    wanted = {"paths": "src/*.py\n", "baseline": "known.json", "args": "--fail-on\nNPU101\n"}
    assert runner.run("Run npufix", **wanted).returncode == 0
    assert (runner.outputs()["verdict"], runner.outputs()["status"]) == ("pass", "0")
    assert runner.run("Verdict").returncode == 0
    (Path(runner.environment["PATH"].split(os.pathsep)[0]) / "gh").write_text("#!/bin/sh\nexit 1\n")
    done = runner.run("Comment on the pull request")
    assert done.returncode == 0
    assert done.stdout.startswith("::warning title=npufix::the comment could not be written")


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"command": "scan; rm -rf /"}, "not scan, gate or diagnose"),
        ({"paths": "nowhere"}, "no source at nowhere"),
    ],
)
def test_wrong_input_is_an_error_at_once(runner: Runner, inputs: dict[str, Any], said: str) -> None:
    done = runner.run("Run npufix", **inputs)
    assert done.returncode == 2
    assert said in done.stdout + done.stderr
    assert runner.outputs().get("status", "2") == "2"
