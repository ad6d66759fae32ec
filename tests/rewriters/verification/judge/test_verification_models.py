"""RoPE, SwiGLU, dropout and attention in the code of a released package."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from verification_snippets import verify_here

from npufix.rewriters.verification import Job
from npufix.rewriters.verification.verdict import Status

pytest.importorskip("torch")
PACKAGE = find_spec("transformers")
PLACES = PACKAGE.submodule_search_locations if PACKAGE is not None else None
MODELS = Path(PLACES[0], "models") if PLACES else None
pytestmark = pytest.mark.skipif(MODELS is None, reason="transformers is not installed")

ROPE = r"q_embed = \(q \* cos\) \+ \(rotate_half\(q\) \* sin\)"
FUSED_ROPE = "q_embed = torch_npu.npu_rotary_mul(q, cos, sin)"
GATE = r"self\.act_fn\(self\.gate_proj\(x\)\) \* self\.up_proj\(x\)"
FUSED_GATE = "torch_npu.npu_swiglu(torch.cat((self.gate_proj(x), self.up_proj(x)), -1))"
DROP = r"hidden_states = self\.dropout\(hidden_states\)\n +hidden_states = self\.LayerNorm\(.*?\)\n"
FUSED_DROP = """hidden_states = npu_dropout_add_layer_norm(
            hidden_states, input_tensor, self.LayerNorm.weight, self.LayerNorm.bias,
            self.dropout.p if self.dropout.training else 0.0, self.LayerNorm.eps)
"""
HEADER = """import torch_npu
from mindspeed.ops.dropout_add_layer_norm import npu_dropout_add_layer_norm
"""


def job(path: str, qualname: str, before: str, after: str) -> Job:
    assert MODELS is not None
    file = MODELS / path
    text = file.read_text()
    start = text.index(f"class {qualname.partition('.')[0]}(" if "." in qualname else qualname)
    found = re.compile(before, re.DOTALL).search(text, start)
    assert found is not None
    line = text.count("\n", 0, found.start()) + 1
    patched = HEADER + text[: found.start()] + after + text[found.end() :]
    root = str(MODELS.parent.parent)
    return Job(str(file), root, text, patched, qualname, (line,), (line + 2,), floating=True)


def test_functions_of_models() -> None:
    rope = job("llama/modeling_llama.py", "apply_rotary_pos_emb", ROPE, FUSED_ROPE)
    gate = job("llama/modeling_llama.py", "LlamaMLP.forward", GATE, FUSED_GATE)
    drop = job("bert/modeling_bert.py", "BertOutput.forward", DROP, FUSED_DROP)
    jobs = {
        "rope": rope,
        "gate": gate,
        "drop": drop,
        "interleaved": replace(
            rope, patched=rope.patched.replace("cos, sin)", 'cos, sin, "interleave")', 1)
        ),
        "exchanged": replace(
            gate,
            patched=gate.patched.replace(
                FUSED_GATE, FUSED_GATE.replace("gate_proj(x), self.up", "up_proj(x), self.gate")
            ),
        ),
        "always": replace(
            drop, patched=drop.patched.replace(" if self.dropout.training else 0.0", "")
        ),
        "no residual": replace(
            drop, patched=drop.patched.replace("input_tensor, self", "None, self")
        ),
    }
    found = dict(zip(jobs, verify_here(list(jobs.values())), strict=True))
    right = ("rope", "gate", "drop")
    for name, verdict in found.items():
        wanted = Status.EQUIVALENT if name in right else Status.REFUTED
        assert verdict.status is wanted, (name, verdict)
    assert "npu_rotary_mul" in found["rope"].ground
    assert "__init__" not in found["gate"].ground
    assert "npu_dropout_add_layer_norm" in found["drop"].ground
    assert "random" not in found["drop"].ground
