"""``npufix run`` on the real torch_npu: imported modules on fused operators, and measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npufix.rewriters.verification.virtual_npu import VirtualNpuError, find_wheels

_PROGRAM = Path(__file__).with_name("running_hooked.py")
_KERNELS = {
    "use_npu_fusion_attention": "aclnnFlashAttentionScore",
    "use_fused_rms_norm": "aclnnRmsNorm",
    "use_fused_rope": "aclnnRotaryPositionEmbeddingV2",
    "use_fused_swiglu": "aclnnSwiGlu",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    try:
        find_wheels()
    except VirtualNpuError as reason:
        pytest.skip(str(reason))
    folder = tmp_path_factory.mktemp("running")
    command = [sys.executable, "-m", "npufix.advisor", "run", "--on", "virtual-npu"]
    options = ["--measure", "1", "--json", "done.json"]
    done = subprocess.run(
        [*command, *options, str(_PROGRAM)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {**found, "said": done.stderr, "json": json.loads((folder / "done.json").read_text())}


@pytest.mark.parametrize("variant", ["new", "undone", *_KERNELS])
def test_loss_and_gradients_are_the_same(ran: Any, variant: str) -> None:
    assert ran[variant]["loss"] == pytest.approx(ran["old"]["loss"], rel=1e-5)
    assert ran[variant]["gradients"] == pytest.approx(ran["old"]["gradients"], rel=1e-4)


def test_fused_kernels_are_launched_and_no_longer_after_undo(ran: Any) -> None:
    assert set(_KERNELS.values()) <= set(ran["new"]["kernels"])
    assert not set(_KERNELS.values()) & set(ran["old"]["kernels"])
    assert ran["undone"]["kernels"] == ran["old"]["kernels"]


@pytest.mark.parametrize("switch", _KERNELS)
def test_a_switch_turns_off_its_operator_and_no_other(ran: Any, switch: str) -> None:
    expected = {kernel for name, kernel in _KERNELS.items() if name != switch}
    assert set(_KERNELS.values()) & set(ran[switch]["kernels"]) == expected


def test_the_two_halves_are_compared(ran: Any) -> None:
    said = next(line for line in ran["said"].splitlines() if "launches per step" in line)
    before, after = (float(part) for part in said.split(": ")[2].split(" (")[0].split(" -> "))
    assert after < 0.6 * before
    assert "  aclnnSwiGlu: 0 -> 2" in ran["said"]


def test_the_report_says_how_often_each_place_ran(ran: Any) -> None:
    norm = next(f for f in ran["json"]["replaced"] if f["place"]["rule"] == "NPU101")
    assert "same-dtype" in norm["place"]["asked"]
    assert norm["ran"] >= 2 * 5
    rope = next(f for f in ran["json"]["replaced"] if f["place"]["rule"] == "NPU102")
    assert "cosines-within-one" in rope["place"]["asked"]
