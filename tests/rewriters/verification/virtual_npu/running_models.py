"""Trains a step of models of transformers as they are, and with changed modules. Prints JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from npufix.advisor import apply_fused_kernels, fused_kernels
from npufix.advisor.runtime.process.reporting import to_json
from npufix.rewriters.verification.virtual_npu import current_device

SWITCHES = (
    "use_fused_rms_norm",
    "use_fused_rope",
    "use_fused_swiglu",
)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def built(name: str, **settings: object) -> torch.nn.Module:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        name,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=128,
        max_position_embeddings=64,
        pad_token_id=0,
        **settings,
    )
    return AutoModelForCausalLM.from_config(config).to("npu").train()


def said(applied: Any) -> object:
    return json.loads(to_json(applied.summary()))


def step(model: torch.nn.Module) -> dict[str, object]:
    words = (torch.arange(24).reshape(2, 12) % 128).to("npu")
    model.zero_grad()
    current_device().clear()
    loss = model(input_ids=words, labels=words).loss
    loss.backward()
    return {
        "loss": loss.item(),
        "gradients": [p.grad.float().norm().item() for p in model.parameters()],
        "kernels": Counter(launch.kernel for launch in current_device().launches()),
    }


def main(names: list[str]) -> dict[str, object]:
    models = {name: built(name) for name in names}
    found: dict[str, object] = {"old": {name: step(model) for name, model in models.items()}}
    options = {"on": "virtual-npu", "report": False}
    applied = apply_fused_kernels(**options)
    found["new"] = {name: step(model) for name, model in models.items()}
    scaled = built(names[0], rope_scaling=YARN)
    found["yarn"] = {names[0]: step(scaled)}
    found["yarn report"] = said(applied)
    applied.undo()
    with fused_kernels(models[names[0]], on="virtual-npu") as done:
        found["model"] = {names[0]: step(models[names[0]])}
        found["model report"] = done.report()
    eager = built(names[0], attn_implementation="eager")
    found["eager"] = {names[0]: step(eager)}
    for wanted in (True, False):
        few = {"rules": ["NPU162"]} if wanted else {"rules": ["NPU101"]}
        applied = apply_fused_kernels(**options, **few, use_npu_fusion_attention=wanted)
        found[f"eager {wanted}"] = {names[0]: step(eager)}
        found[f"eager {wanted} report"] = said(applied)
        applied.undo()
    for switch in SWITCHES:
        applied = apply_fused_kernels(**options, rules=SWITCHES, **{switch: False})
        found[switch] = {name: step(models[name]) for name in names[:1]}
        applied.undo()
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))  # noqa: T201 - for the test that started it
