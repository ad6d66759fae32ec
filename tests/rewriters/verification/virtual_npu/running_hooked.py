"""Trains a decoder that was imported with changes, then with each switch. Prints JSON."""

from __future__ import annotations

import json
from collections import Counter

import running_decoder
import torch

from npufix.advisor import apply_fused_kernels
from npufix.advisor.runtime.process.applying import current
from npufix.rewriters.verification.virtual_npu import current_device

SWITCHES = (
    "use_npu_fusion_attention",
    "use_fused_rms_norm",
    "use_fused_rope",
    "use_fused_swiglu",
)


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = running_decoder.Decoder().to("npu")
        words = torch.arange(2 * running_decoder.LENGTH) * 7 % running_decoder.WORDS
        self.words = words.to("npu").reshape(2, -1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)

    def step(self) -> dict[str, object]:
        self.optimizer.zero_grad()
        loss = self.model(self.words)
        loss.backward()
        found = {
            "loss": loss.item(),
            "gradients": [p.grad.float().norm().item() for p in self.model.parameters()],
            "kernels": Counter(launch.kernel for launch in current_device().launches()),
        }
        self.optimizer.step()
        return found


def main() -> dict[str, object]:
    training = Training()
    steps = [training.step() for _ in range(4)]  # --measure 1: two with the old code, two with new
    applied = current()
    assert applied is not None
    applied.undo()
    current_device().clear()
    found: dict[str, object] = {"old": steps[1], "new": steps[3], "undone": training.step()}
    for switch in SWITCHES:
        applied = apply_fused_kernels(on="virtual-npu", report=False, **{switch: False})
        current_device().clear()
        found[switch] = training.step()
        applied.undo()
    return found


if __name__ == "__main__":
    print(json.dumps(main()))  # noqa: T201 - for the test that started it
