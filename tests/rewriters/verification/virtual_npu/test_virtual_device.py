"""The real torch_npu, where it is installed, on a virtual NPU: right values, fewer launches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npufix.rewriters.verification.virtual_npu import (
    VirtualNpuError,
    environment,
    find_wheels,
    virtual_npu,
)

_PROGRAM = Path(__file__).with_name("llama_block_program.py")


def _run(script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    try:
        find_wheels()
    except VirtualNpuError as reason:
        pytest.skip(str(reason))
    command = [sys.executable, "-m", "npufix.rewriters.verification.virtual_npu", *options]
    found = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        [*command, str(script)],
        env={**os.environ, "PYTHONPATH": found},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )


@pytest.fixture(scope="module")
def trained() -> Any:
    done = _run(_PROGRAM)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("dtype", "close"), [("", 1e-5), (" in bfloat16", 1e-2)])
def test_a_right_patch_has_the_same_losses(trained: Any, dtype: str, close: float) -> None:
    expected = trained["original" + dtype]["losses"]
    assert trained["patched" + dtype]["losses"] == pytest.approx(expected, rel=close)


def test_a_right_patch_launches_less(trained: Any) -> None:
    before, after = trained["original"]["kernels"], trained["patched"]["kernels"]
    assert len(after) < 0.75 * len(before)
    fused = ("aclnnRmsNorm", "aclnnFlashAttentionScore", "aclnnSwiGlu", "aclnnCrossEntropyLoss")
    for kernel in fused:
        gradient = {"aclnnSwiGlu": "aclnnSwiGluGrad"}.get(kernel, kernel + "Grad")
        assert after.count(kernel) == after.count(gradient) > 0
        assert kernel not in before


def test_launches_are_in_order(trained: Any) -> None:
    kernels = trained["patched"]["kernels"]
    assert kernels.index("aclnnRmsNorm") < kernels.index("aclnnFlashAttentionScore")
    assert kernels.index("aclnnFlashAttentionScore") < kernels.index("aclnnSwiGlu")
    assert kernels.index("aclnnSwiGluGrad") < kernels.index("aclnnFlashAttentionScoreGrad")


@pytest.mark.parametrize("mistake", ["forgets eps", "inverts the mask", "swaps halves"])
def test_a_wrong_patch_has_other_losses(trained: Any, mistake: str) -> None:
    expected = trained["original"]["losses"]
    assert trained[mistake]["losses"] != pytest.approx(expected, rel=1e-4)


def test_a_wrong_keyword_is_refused_by_the_real_schema(trained: Any) -> None:
    assert "Unknown keyword argument 'eps'" in trained["wrong keyword"]["refused"]


def test_a_dropped_gradient_is_seen(trained: Any) -> None:
    assert trained["patched"]["without gradient"] == []
    assert "before_mlp.weight" in trained["drops a gradient"]["without gradient"]


def test_what_no_reference_computes_is_refused_by_name(trained: Any) -> None:
    refused = trained["uncovered"]
    assert refused.startswith("UncoveredLaunchError: npu::npu_mrope launches aclnnRopeWithSinCos")


def test_tensors_on_the_device_can_be_shown(trained: Any) -> None:
    assert trained["shown"] == "tensor([1, 2, 3], device='npu:0')"


def test_the_chip_decides_what_is_launched(trained: Any, tmp_path: Path) -> None:
    script, file = tmp_path / "attention.py", tmp_path / "310P.json"
    script.write_text(
        "import torch, torch.nn.functional as F\n"
        "q = torch.ones(1, 2, 16, 16, dtype=torch.float16, device='npu')\n"
        "F.scaled_dot_product_attention(q, q, q)\n"
    )
    done = _run(script, "--chip", "310P", "--launches", str(file))
    assert done.returncode == 0, done.stderr
    launched = [launch["kernel"] for launch in json.loads(file.read_text())]
    assert trained["attention of torch"] == ["aclnnFlashAttentionScore"]
    assert "aclnnFlashAttentionScore" not in launched
    assert "aclnnSoftmax" in launched


def test_an_unknown_chip_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "empty.py"
    script.write_text("")
    done = _run(script, "--chip", "A17")
    assert done.returncode == 2
    assert "no chip is called A17" in done.stderr


def test_this_process_becomes_no_virtual_npu() -> None:
    before = set(sys.modules)
    with pytest.raises(VirtualNpuError, match="not started to become a virtual NPU"), virtual_npu():
        pass
    assert "torch_npu" not in set(sys.modules) - before


def test_the_environment_of_a_child_holds_nothing_of_cann(tmp_path: Path) -> None:
    (tmp_path / "libascendcl.so").write_bytes(b"")
    parent = {
        "ASCEND_HOME_PATH": "/usr/local/Ascend",
        "HOME": "/root",
        "LD_LIBRARY_PATH": f"{tmp_path}:/opt/own",
    }
    child = environment(parent)
    assert child["LD_LIBRARY_PATH"] == "/opt/own"
    assert child["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert "ASCEND_HOME_PATH" not in child
    assert child["HOME"] == "/root"


ABORTS_AT_ITS_END = """
import atexit, ctypes, threading, time
native = ctypes.CDLL(None)
native.on_exit(native.abort, None)  # as the destructor of a native library does now and then
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
print("done", end=" ")
"""


def test_native_destructors_undo_no_run(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(ABORTS_AT_ITS_END, "utf-8")
    done = _run(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done thread\nat exit\n")


def test_a_program_that_fails_still_does(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("raise SystemExit(3)\n", "utf-8")
    assert _run(script).returncode == 3
