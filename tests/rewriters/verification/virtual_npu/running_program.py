"""Trains a decoder on ``npu`` as it is written, and on fused operators. Prints one JSON object."""

from __future__ import annotations

import copy
import json
import sys
from collections import Counter

import running_decoder
import torch

from npufix.advisor import fused_kernels
from npufix.rewriters.verification.virtual_npu import current_device

SWITCHES = (
    "use_npu_fusion_attention",
    "use_fused_rms_norm",
    "use_fused_rope",
    "use_fused_swiglu",
)
ALLOW = ("NPU104:same-heads",)  # every query has its own key and value


def step(model: torch.nn.Module) -> dict[str, object]:
    words = (torch.arange(2 * running_decoder.LENGTH) * 7 % running_decoder.WORDS).to("npu")
    model.zero_grad()
    current_device().clear()
    loss = model(words.reshape(2, -1))
    loss.backward()
    return {
        "loss": loss.item(),
        "gradients": [p.grad.float().norm().item() for p in model.parameters()],
        "kernels": Counter(launch.kernel for launch in current_device().launches()),
    }


def main() -> dict[str, object]:
    torch.manual_seed(0)
    model = running_decoder.Decoder().to("npu")
    found: dict[str, object] = {"original": step(model)}
    with fused_kernels(model, on="virtual-npu", allow=ALLOW) as done:
        found["fused"] = step(model)
        found["copied"] = step(copy.deepcopy(model))
        found["report"] = done.report()
        half = copy.deepcopy(model).to(torch.bfloat16)
        half.norm.float(), half.head.float()  # there the old code has to run
        found["mixed dtypes"] = step(half)
    found["restored"] = step(model)
    for switch in SWITCHES:
        with fused_kernels(model, on="virtual-npu", allow=ALLOW, **{switch: False}):
            found[switch] = step(model)
    return found


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(main())}\n")
