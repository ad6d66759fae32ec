"""Trains a step of models of transformers as they are, and with changed modules. Prints JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from npufix.advisor import apply_fused_kernels
from npufix.rewriters.verification.virtual_npu import started

SWITCHES = (
    "use_fused_rms_norm",
    "use_fused_rope",
    "use_fused_swiglu",
)
ALLOW = ["NPU102:cosines-within-one", "NPU103:joining-pays", "NPU110:joining-pays"]


def built(name: str) -> torch.nn.Module:
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
    )
    return AutoModelForCausalLM.from_config(config).to("npu").train()


def step(model: torch.nn.Module) -> dict[str, object]:
    words = (torch.arange(24).reshape(2, 12) % 128).to("npu")
    model.zero_grad()
    started().clear()
    loss = model(input_ids=words, labels=words).loss
    loss.backward()
    return {
        "loss": loss.item(),
        "gradients": [p.grad.float().norm().item() for p in model.parameters()],
        "kernels": Counter(launch.kernel for launch in started().launches()),
    }


def main(names: list[str]) -> dict[str, object]:
    models = {name: built(name) for name in names}
    found: dict[str, object] = {"old": {name: step(model) for name, model in models.items()}}
    options = {"on": "virtual-npu", "report": False, "allow": ALLOW}
    applied = apply_fused_kernels(**options)
    found["new"] = {name: step(model) for name, model in models.items()}
    applied.undo()
    for switch in SWITCHES:
        applied = apply_fused_kernels(**options, **{switch: False})
        found[switch] = {name: step(models[name]) for name in names[:1]}
        applied.undo()
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))  # noqa: T201 — for the test that started it
