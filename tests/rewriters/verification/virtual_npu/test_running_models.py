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

from npufix.rewriters.verification.virtual_npu import VirtualNpuError, find_wheels

_PROGRAM = Path(__file__).with_name("running_models.py")
_MODELS = ("llama", "qwen2", "mistral", "gemma", "olmo2", "glm", "phi3")
_KERNELS = {
    "use_fused_rms_norm": "aclnnRmsNorm",
    "use_fused_rope": "aclnnRotaryPositionEmbeddingV2",
    "use_fused_swiglu": "aclnnSwiGlu",
}
_NEEDED = ("transformers", "tokenizers", "huggingface_hub", "safetensors", "regex", "requests")
_RULES = ("NPU101", "NPU102", "NPU103", "NPU110", "NPU162")
_ATTENTION = "aclnnFlashAttentionScore"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    try:
        find_wheels()
    except VirtualNpuError as reason:
        pytest.skip(str(reason))
    lacking = [name for name in _NEEDED if find_spec(name) is None]
    if lacking:
        pytest.skip(f"models of transformers need {', '.join(lacking)}")
    module = "npufix.rewriters.verification.virtual_npu"
    folder = tmp_path_factory.mktemp("elsewhere")
    # All rules take long to search for in all of transformers; this vouches for nothing.
    (folder / "pyproject.toml").write_text(f"[tool.npufix]\nselect = {json.dumps(_RULES)}\n")
    done = subprocess.run(
        [sys.executable, "-m", module, str(_PROGRAM), *_MODELS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def places(report: Any, rule: str) -> list[Any]:
    return [one for one in report["replaced"] if one["place"]["rule"] == rule]


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


def test_scaled_cosines_keep_the_old_code(ran: Any) -> None:
    kernels = ran["yarn"][_MODELS[0]]["kernels"]
    assert kernels["aclnnRmsNorm"] == 5
    assert "aclnnRotaryPositionEmbeddingV2" not in kernels
    rope = places(ran["yarn report"], "NPU102")
    assert any(one["old_code_ran"].get("cosines-within-one") for one in rope)
    gated = places(ran["yarn report"], "NPU103")
    assert {name for one in gated for name in one["place"]["unmeasured"]} == {"joining-pays"}


def test_a_model_that_is_built_gets_the_same(ran: Any) -> None:
    kernels, expected = (ran[one][_MODELS[0]]["kernels"] for one in ("model", "new"))
    fused = {*_KERNELS.values(), _ATTENTION}
    assert {name: kernels[name] for name in fused} == {name: expected[name] for name in fused}
    assert "this model proves: cosines-within-one" in ran["model report"]


def test_eager_attention_is_fused_by_its_switch_and_otherwise_it_is_said_why_not(ran: Any) -> None:
    old, on, off = (ran[one][_MODELS[0]] for one in ("eager", "eager True", "eager False"))
    assert on["kernels"][_ATTENTION] == on["kernels"][f"{_ATTENTION}Grad"] == 2
    assert _ATTENTION not in {**old["kernels"], **off["kernels"]}
    for new in (on, off):
        assert new["loss"] == pytest.approx(old["loss"], rel=1e-5)
        assert new["gradients"] == pytest.approx(old["gradients"], rel=1e-3, abs=1e-5)
    attention = places(ran["eager True report"], "NPU162")
    assert {tuple(one["place"]["by_name"]) for one in attention} == {("one-of-several",)}
    assert ran["eager False report"]["notes"][0].startswith("use_npu_fusion_attention is off")


@pytest.mark.parametrize("switch", _KERNELS)
def test_a_switch_turns_off_its_operator_and_no_other(ran: Any, switch: str) -> None:
    kernels = set(ran[switch][_MODELS[0]]["kernels"])
    expected = {kernel for name, kernel in _KERNELS.items() if name != switch}
    assert set(_KERNELS.values()) & kernels == expected
