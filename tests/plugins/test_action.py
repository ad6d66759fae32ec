"""The GitHub Action: its steps, run by bash as a runner does, with a stand-in for the server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from benchmarks.gate_power import STEPS as STEPS_OF_A_RUN
from benchmarks.gate_power import write_slowed

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
SLOW = "import torch\n\n\ndef f(x: torch.Tensor):\n    return torch.repeat_interleave(x, 3)\n"


class Server(ThreadingHTTPServer):
    """The comments of one pull request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Comments)
        self.comments: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.refuse = False


class Comments(BaseHTTPRequestHandler):
    server: Server

    def _answer(self) -> None:
        server, content = self.server, self.rfile.read(int(self.headers["Content-Length"] or 0))
        server.asked.append(f"{self.command} {self.path}")
        known = server.comments
        if self.command == "POST":
            known.append({"id": 1 + len(known), **json.loads(content)})
        elif self.command == "PATCH":
            known[int(self.path.rpartition("/")[2]) - 1] |= json.loads(content)
        page = int(self.path.rpartition("&page=")[2]) if self.command == "GET" else 1
        made = json.dumps(known[100 * page - 100 : 100 * page]).encode()
        self.send_response(403 if server.refuse else 200)
        self.send_header("Content-Length", str(len(made)))
        self.end_headers()
        self.wfile.write(made)

    do_GET = do_POST = do_PATCH = _answer  # noqa: N815 - the names that the base class asks for

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Runner:
    """A folder with the files that GitHub gives to a job."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "my project"
        (self.workspace / "src").mkdir(parents=True)
        (self.workspace / ".git").mkdir()
        (self.workspace / "src" / "a file.py").write_text(SLOW, encoding="utf-8")
        self.output, self.summary = folder / "output", folder / "summary"
        for path in (self.output, self.summary):
            path.touch()
        self.server = Server()
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}" + os.environ["PATH"],
            "GITHUB_API_URL": f"http://127.0.0.1:{self.server.server_port}",
            "RUNNER_TEMP": str(folder),
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_REPOSITORY": "owner/project",
            "HOME": str(folder),
        }

    def run(self, name: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        """Run a step; what is not given has its default."""
        step = STEPS[name]
        known = {key: str(about.get("default", "")) for key, about in ACTION["inputs"].items()}
        known |= {"version": "installed", **inputs}
        values = {f"inputs.{key}": value for key, value in known.items()}
        values |= {f"steps.run.outputs.{key}": value for key, value in self.outputs().items()}
        values["github.token"] = "secret"
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
def runner(tmp_path: Path) -> Iterator[Runner]:
    made = Runner(tmp_path)
    yield made
    made.server.shutdown()
    made.server.server_close()


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
    assert len(ours) == 3
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
    # The first time there is no comment, then it is changed; others are left alone.
    server = runner.server
    server.comments = [{"id": n + 1, "body": None if n else "hello"} for n in range(120)]
    for _ in range(2):
        assert runner.run("Comment on the pull request").returncode == 0
    assert [line for line in server.asked if "page=" not in line] == [
        "POST /repos/owner/project/issues/7/comments",
        "PATCH /repos/owner/project/issues/comments/121",
    ]
    assert len(server.comments) == 121
    assert server.comments[-1]["body"].startswith("<!-- npufix:gate -->\n### FAIL")


def test_two_uses_have_a_comment_and_files_each(runner: Runner) -> None:
    for name in ("small", "large", "small"):
        runner.output.write_text("", encoding="utf-8")
        assert runner.run("Run npufix", paths="src", id=name).returncode == 0
        assert Path(runner.outputs()["report"]).parent.name == f"npufix-{name}"
        assert runner.run("Comment on the pull request", id=name).returncode == 0
    heads = [each["body"].partition("\n")[0] for each in runner.server.comments]
    assert heads == ["<!-- npufix:small -->", "<!-- npufix:large -->"]
    # What an earlier use left is not taken for the report of one that has none.
    runner.output.write_text("", encoding="utf-8")
    assert runner.run("Run npufix", paths="nothing", id="small").returncode != 0
    assert "report" not in runner.outputs()
    assert runner.run("Run npufix", paths="src", id="../x").returncode == 2
    assert STEPS["Upload SARIF"]["with"]["category"] == "npufix-${{ inputs.id }}"


def test_a_baseline_is_measured_and_written(runner: Runner) -> None:
    for number, luck in enumerate((1.0, 1.01, 0.99)):
        write_slowed(
            runner.workspace / f"runs/{number}_ascend_pt", [luck] * STEPS_OF_A_RUN, kernels=20
        )
    done = runner.run(
        "Run npufix", command="baseline", paths="src", dumps="runs/*", baseline="perf/new.json"
    )
    assert done.returncode == 0, done.stderr
    assert runner.outputs()["status"] == "0"
    made = json.loads((runner.workspace / "perf/new.json").read_text(encoding="utf-8"))
    assert made["run_count"] == 3
    assert runner.run("Verdict").returncode == 0


def test_a_baseline_passes_and_a_fork_may_not_comment(runner: Runner) -> None:
    baseline = {"schema": 2, "tool": "npufix 0", "findings": []}
    (runner.workspace / "known.json").write_text(json.dumps(baseline), encoding="utf-8")
    wanted = {"paths": "src/*.py\n", "baseline": "known.json", "args": "--fail-on\nNPU101\n"}
    assert runner.run("Run npufix", **wanted).returncode == 0
    assert (runner.outputs()["verdict"], runner.outputs()["status"]) == ("pass", "0")
    assert runner.run("Verdict").returncode == 0
    runner.server.refuse = True
    done = runner.run("Comment on the pull request")
    assert done.returncode == 0
    assert done.stdout.startswith("::warning title=npufix::the comment could not be written: HTTP")
    assert "pull-requests=write is needed" in done.stdout
    runner.environment["GITHUB_API_URL"] = "http://127.0.0.1:1"
    done = runner.run("Comment on the pull request")
    assert (done.returncode, "pull-requests" in done.stdout) == (0, False)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"command": "scan; rm -rf /"}, "not scan, gate, diagnose or baseline"),
        ({"paths": "nowhere"}, "no source at nowhere"),
    ],
)
def test_wrong_input_is_an_error_at_once(runner: Runner, inputs: dict[str, Any], said: str) -> None:
    done = runner.run("Run npufix", **inputs)
    assert done.returncode == 2
    assert said in done.stdout + done.stderr
    assert runner.outputs().get("status", "2") == "2"
