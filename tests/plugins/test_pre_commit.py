"""The hooks for pre-commit, run by pre-commit itself in a repository of their own.

Only the environment is ours: to install the package anew takes most of a minute. That a search
needs no more than the hook installs is tried by itself.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SLOW = "import torch\n\n\ndef f(x: torch.Tensor):\n    return torch.repeat_interleave(x, 3)\n"
FINE = "import torch\n\n\ndef f(x: torch.Tensor):\n    return x + 1\n"

pytest.importorskip("pre_commit")


def hook(name: str, **changes: Any) -> dict[str, Any]:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    (found,) = (each for each in hooks if each["id"] == name)
    entry = found["entry"].replace(".ci/pre_commit_scan.py", "npufix scan")
    return {**found, "language": "system", "entry": entry, **changes}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    run(tmp_path, tmp_path, "git", "init", "--quiet")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "slow.py").write_text(SLOW, encoding="utf-8")
    (tmp_path / "src" / "fine.py").write_text(FINE, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("torch.repeat_interleave(x, 3)\n", encoding="utf-8")
    return tmp_path


def run(home: Path, folder: Path, *command: object, status: int = 0) -> str:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PRE_COMMIT_HOME": str(home),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    }
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, check=False,
        encoding="utf-8", timeout=1800,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def pre_commit(folder: Path, hooks: list[dict[str, Any]], status: int = 0) -> str:
    configuration = {"repos": [{"repo": "local", "hooks": hooks}]}
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    run(folder / ".git", folder, "git", "add", ".")
    return run(folder / ".git", folder, sys.executable, "-m", "pre_commit", "run", status=status)


def test_pre_commit_takes_our_hooks_and_the_example(tmp_path: Path) -> None:
    run(
        tmp_path,
        ROOT,
        sys.executable,
        "-m",
        "pre_commit",
        "validate-manifest",
        ".pre-commit-hooks.yaml",
    )
    example = "examples/ci/pre-commit-config.yaml"
    run(tmp_path, ROOT, sys.executable, "-m", "pre_commit", "validate-config", example)
    ids = {each["id"] for each in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    (used,) = yaml.safe_load((ROOT / example).read_text())["repos"]
    assert {each["id"] for each in used["hooks"]} <= ids


def test_changed_files_are_scanned_and_a_baseline_lets_them_pass(repository: Path) -> None:
    both = [hook("npufix-scan"), hook("npufix-scan-all", stages=["pre-commit"])]
    said = pre_commit(repository, both, status=1)
    assert said.count("FAIL: 1 slow pattern in 1 file.") == 2
    assert said.count("src/slow.py:5 in f") == 2
    npufix = Path(sys.executable).with_name("npufix")
    run(repository / ".git", repository, npufix, "scan", "src", "--write-baseline", "known.json")
    known = hook("npufix-scan", args=["--baseline", "known.json"])
    assert "Passed" in pre_commit(repository, [known])


def test_a_search_needs_nothing_but_what_the_hook_installs(repository: Path) -> None:
    script = (ROOT / ".ci" / "pre_commit_scan.py").read_text(encoding="utf-8")
    (names,) = re.findall(r"\(\?:(click[\w|]+)\)", script)
    declared = {Requirement(one).name for one in requires("npufix") or () if "extra ==" not in one}
    left_out = declared - set(names.split("|")) | {"torch"}
    assert left_out >= {"pandas", "pyarrow", "scipy"}
    program = f"import sys; sys.modules.update(dict.fromkeys({sorted(left_out)})); "
    program += "from npufix.advisor.__main__ import main; main()"
    said = run(
        repository, repository, sys.executable, "-c", program, "scan", "src", "--fail-on", "safe",
        status=1,
    )  # fmt: skip
    assert "slow.py:5 in f" in said
