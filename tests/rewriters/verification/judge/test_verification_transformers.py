"""Functions of a released package whose dependencies are not installed."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from verification_snippets import verify_here

from npufix.rewriters.verification import Job
from npufix.rewriters.verification.verdict import Status

pytest.importorskip("torch")
VERSION = "4.31.0"


def _root() -> Path:
    """Return the folder that the package is installed in; it is read, never imported here."""
    try:
        spec = (
            importlib.util.find_spec("transformers") if version("transformers") == VERSION else None
        )
    except PackageNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        pytest.skip(f"transformers {VERSION} is not installed", allow_module_level=True)
    return Path(spec.origin).parents[1]


ROOT = _root()
MODELS = ROOT / "transformers" / "models"


def job(path: str, qualname: str, before: str, after: str) -> Job:
    text = (MODELS / path).read_text()
    assert text.count(before) >= 1
    at = text.index(before)
    line = text.count("\n", 0, at) + 1
    patched = "import torch_npu\n" + text.replace(before, after, 1)
    fused = "npu_" in patched
    return Job(
        str(MODELS / path), str(ROOT), text, patched, qualname, (line,), (line + 1,), floating=fused
    )


LLAMA = """input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)"""
T5 = "variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)"
FUSED = "return torch_npu.npu_rms_norm(hidden_states, self.weight, self.variance_epsilon)[0]"


def test_functions_of_transformers() -> None:
    jobs = {
        "llama": job("llama/modeling_llama.py", "LlamaRMSNorm.forward", LLAMA, FUSED),
        "t5": job("t5/modeling_t5.py", "T5LayerNorm.forward", T5, FUSED),
        "rotate": job(
            "llama/modeling_llama.py",
            "rotate_half",
            "return torch.cat((-x2, x1), dim=-1)",
            "return torch.cat((x2.neg(), x1), dim=-1)",
        ),
        "repeat_kv": job(
            "llama/modeling_llama.py",
            "repeat_kv",
            "hidden_states = hidden_states[:, :, None, :, :].expand",
            "hidden_states = hidden_states.unsqueeze(2).expand",
        ),
        "wrong rotate": job(
            "llama/modeling_llama.py",
            "rotate_half",
            "return torch.cat((-x2, x1), dim=-1)",
            "return torch.cat((x1, -x2), dim=-1)",
        ),
    }
    found = dict(zip(jobs, verify_here(list(jobs.values())), strict=True))
    equivalent = [name for name, v in found.items() if v.status is Status.EQUIVALENT]
    assert equivalent == ["llama", "t5", "rotate", "repeat_kv"], found
    assert found["wrong rotate"].status is Status.REFUTED
