"""``npufix run`` and ``apply_fused_kernels`` as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import running_package

from npufix.advisor.runtime.children import inherit
from npufix.advisor.runtime.process.switches import Switches

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Ran = subprocess.CompletedProcess[str]

pytestmark = pytest.mark.xdist_group("running")

_SCRIPT = """\
import json, sys
found = [sys.argv, __name__, __file__, __spec__ is None, sys.path[0], "torch" in sys.modules]
print(json.dumps(found))
if "fail" in sys.argv:
    def broken():
        raise ValueError("as it was")
    broken()
sys.exit(7)
"""
_PROGRAM = """\
import json, pickle, sys
import torch
from package.norm import RMSNorm
early = RMSNorm(4)


class Late(torch.nn.Module):
    def forward(self, x):
        a, b = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(a) * b


def asks(function):
    return "__npufix__" in function.__code__.co_names


def main():
    from npufix.advisor import apply_fused_kernels
    applied = apply_fused_kernels(on="virtual-npu", use_fused_swiglu=False, NPU201=False)
    import package.rope
    found = {"early": asks(early.forward.__func__), "script": asks(Late.forward)}
    found["same"] = type(pickle.loads(pickle.dumps(early))) is RMSNorm
    applied.undo()
    found["undone"] = not asks(RMSNorm.forward)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("program")
    running_package.write(made, "package")
    (made / "script.py").write_text(_SCRIPT, encoding="utf-8")
    (made / "program.py").write_text(_PROGRAM, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def run(folder: Path) -> Callable[..., Ran]:
    def started(*command: str, **variables: str) -> Ran:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        return subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, **variables},
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )

    return started


def test_a_script_is_run_as_python_runs_it(run: Callable[..., Ran]) -> None:
    plain = run("script.py", "--rules", "x")
    ours = run("-m", "npufix.advisor", "run", "script.py", "--rules", "x")
    assert (plain.returncode, ours.returncode) == (7, 7)
    assert json.loads(ours.stdout) == json.loads(plain.stdout)
    assert ours.stderr == "npufix: nothing was changed: there is no NPU (/dev/davinci*)\n"


def test_a_traceback_is_that_of_the_script(run: Callable[..., Ran]) -> None:
    plain, ours = run("script.py", "fail"), run("-m", "npufix.advisor", "run", "script.py", "fail")
    assert (plain.returncode, ours.returncode) == (1, 1)
    assert ours.stderr.startswith(plain.stderr)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nowhere.py"], "npufix: nowhere.py: No such file or directory -- name the script to run"),
        (["--rules", "NPU1", "script.py"], "there is no NPU1"),
        (["--config", "no.yaml", "script.py"], "no.yaml: No such file or directory -- name a file"),
    ],
)
def test_a_typing_error_is_one_line(run: Callable[..., Ran], options: list[str], said: str) -> None:
    done = run("-m", "npufix.advisor", "run", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_a_program_that_applies_by_itself(run: Callable[..., Ran]) -> None:
    done = run("program.py")
    found: Any = json.loads(done.stdout)
    assert found == {"early": True, "script": False, "same": True, "undone": True}, done.stderr
    assert "npufix: 3 places replaced in 2 modules" in done.stderr
    assert "NPU103" not in done.stderr


def test_processes_that_a_program_starts_make_the_same_changes(run: Callable[..., Ran]) -> None:
    variables: dict[str, str] = {"PYTHONPATH": os.pathsep.join(e for e in sys.path if e)}
    inherit(Switches(rules=("NPU101",)), "virtual-npu", None, variables)
    code = "import package.norm as m, sys; print(m.RMSNorm.forward.__code__.co_names, sys.path)"
    done = run("-c", code, **variables)
    assert "__npufix__" in done.stdout
    assert "startup" not in done.stdout
    assert not done.stderr


def test_a_job_says_what_there_is_to_say_once(run: Callable[..., Ran]) -> None:
    done = run("-m", "npufix.advisor", "run", "script.py", RANK="1")
    assert (done.returncode, done.stderr) == (7, "")
