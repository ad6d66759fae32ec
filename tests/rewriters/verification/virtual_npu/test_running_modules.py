"""A model that is built already, on the fused operators of the real torch_npu."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npufix.rewriters.verification.virtual_npu import VirtualNpuError, find_wheels

_PROGRAM = Path(__file__).with_name("running_program.py")
# What each switch of openMind stands for; in the order of the program.
_KERNELS = {
    "use_npu_fusion_attention": "aclnnFlashAttentionScore",
    "use_fused_rms_norm": "aclnnRmsNorm",
    "use_fused_rope": "aclnnRotaryPositionEmbeddingV2",
    "use_fused_swiglu": "aclnnSwiGlu",
}
_NORMS = 5


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    try:
        find_wheels()
    except VirtualNpuError as reason:
        pytest.skip(str(reason))
    done = subprocess.run(
        [sys.executable, "-m", "npufix.rewriters.verification.virtual_npu", str(_PROGRAM)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        cwd=tmp_path_factory.mktemp("elsewhere"),
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("variant", ["fused", "copied", "restored", *_KERNELS])
def test_loss_and_gradients_are_the_same(ran: Any, variant: str) -> None:
    assert ran[variant]["loss"] == pytest.approx(ran["original"]["loss"], rel=1e-5)
    assert ran[variant]["gradients"] == pytest.approx(ran["original"]["gradients"], rel=1e-4)


def test_fused_kernels_are_launched_forward_and_backward(ran: Any) -> None:
    before, after = ran["original"]["kernels"], ran["fused"]["kernels"]
    assert sum(after.values()) < 0.6 * sum(before.values())
    assert after["aclnnRmsNorm"] == after["aclnnRmsNormGrad"] == _NORMS
    assert after["aclnnRotaryPositionEmbeddingV2"] == after["aclnnRotaryPositionEmbeddingGrad"] == 4
    assert after["aclnnSwiGlu"] == after["aclnnSwiGluGrad"] == 2
    assert after["aclnnFlashAttentionScore"] == after["aclnnFlashAttentionScoreGrad"] == 2
    assert not set(_KERNELS.values()) & set(before)
    assert ran["copied"]["kernels"] == after


def test_what_is_restored_launches_what_it_did(ran: Any) -> None:
    assert ran["restored"]["kernels"] == ran["original"]["kernels"]


@pytest.mark.parametrize("switch", _KERNELS)
def test_a_switch_turns_off_its_operator_and_no_other(ran: Any, switch: str) -> None:
    fused = ran["fused"]["kernels"]
    expected = {kernel: fused[kernel] for kernel in _KERNELS.values() if kernel != _KERNELS[switch]}
    found = ran[switch]["kernels"]
    assert {kernel: found[kernel] for kernel in _KERNELS.values() if kernel in found} == expected


def test_where_a_call_does_not_fit_the_old_code_runs(ran: Any) -> None:
    assert ran["mixed dtypes"]["kernels"]["aclnnRmsNorm"] == _NORMS - 1


def test_the_report_says_what_ran(ran: Any) -> None:
    assert "NPU101 eager-rms-norm" in ran["report"]
    assert "RMSNorm: norm, layers.0.before and 3 more" in ran["report"]
    assert "this model proves: cosines-within-one" in ran["report"]
