"""Models of transformers, tiny and random, on the fused operators of the real torch_npu."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from npufix.rewriters.verification.virtual_npu import VirtualNpuError, installed

_PROGRAM = Path(__file__).with_name("running_models.py")
_MODELS = ("llama", "qwen2", "mistral", "gemma", "olmo2", "glm", "phi3")
_KERNELS = {
    "use_fused_rms_norm": "aclnnRmsNorm",
    "use_fused_rope": "aclnnRotaryPositionEmbeddingV2",
    "use_fused_swiglu": "aclnnSwiGlu",
}
_NEEDED = ("transformers", "tokenizers", "huggingface_hub", "safetensors", "regex", "requests")
_ATTENTION = "aclnnFlashAttentionScore"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    try:
        installed()
    except VirtualNpuError as reason:
        pytest.skip(str(reason))
    lacking = [name for name in _NEEDED if find_spec(name) is None]
    if lacking:
        pytest.skip(f"models of transformers need {', '.join(lacking)}")
    module = "npufix.rewriters.verification.virtual_npu"
    done = subprocess.run(
        [sys.executable, "-m", module, str(_PROGRAM), *_MODELS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        cwd=tmp_path_factory.mktemp("elsewhere"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("model", _MODELS)
def test_loss_and_gradients_are_the_same(ran: Any, model: str) -> None:
    old, new = ran["old"][model], ran["new"][model]
    assert new["loss"] == pytest.approx(old["loss"], rel=1e-5)
    assert new["gradients"] == pytest.approx(old["gradients"], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("model", _MODELS)
def test_fused_kernels_are_launched_forward_and_backward(ran: Any, model: str) -> None:
    kernels = ran["new"][model]["kernels"]
    gated = "aclnnGeGluV3" if model == "gemma" else "aclnnSwiGlu"
    assert kernels[gated] == 2
    assert kernels["aclnnRmsNorm"] == kernels["aclnnRmsNormGrad"] >= 5
    assert kernels["aclnnRotaryPositionEmbeddingV2"] == 4
    assert kernels["aclnnRotaryPositionEmbeddingGrad"] == 4
    assert kernels[_ATTENTION] == 2
    assert not set(_KERNELS.values()) & set(ran["old"][model]["kernels"])


@pytest.mark.parametrize("switch", _KERNELS)
def test_a_switch_turns_off_its_operator_and_no_other(ran: Any, switch: str) -> None:
    kernels = set(ran[switch][_MODELS[0]]["kernels"])
    expected = {kernel for name, kernel in _KERNELS.items() if name != switch}
    assert set(_KERNELS.values()) & kernels == expected
