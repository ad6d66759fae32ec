"""The masks of dropout take a share of the step.

What: kernels that only make random masks for dropout take 1 % of the step or more.

Why it is slow on the NPU: each call of dropout asks for its own mask. Random numbers come from a
unit of their own or, on older versions, from the AI CPU, and the kernel that uses the mask waits for
them; small masks cost a launch each.

Evidence: time and number of DSAGenBitMask, DSAStatelessGenBitMask and DropOutGenMask.

Use instead: no dropout where it does not pay (large language models train without); attention with
dropout inside of the fused kernel (``keep_prob``); ``torch_npu.contrib.module.NpuCachedDropout``
instead of ``nn.Dropout``, which makes the masks of all layers at once.

Safety: other random numbers; NpuCachedDropout is a beta interface.

References: affinity API page of the FrameworkPTAdapter guide (contrib).
"""

from __future__ import annotations

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.observing import computing

_MASKS = r"DSA\w*GenBitMask\w*|DropOutGenMask\w*|StatelessDropOutGenMask\w*"


RULE = Diagnostic(
    id="NPU140",
    name="dropout-masks",
    summary="masks for dropout are made one by one",
    advice=(
        "no dropout where it does not pay; torch_npu.contrib.module.NpuCachedDropout instead of "
        "nn.Dropout; keep_prob of the fused attention"
    ),
    check=lambda recording: tell_together(
        "masks for dropout are made one by one",
        computing(recording, _MASKS),
        recording,
        basis="at most all masks; part of them may hide behind other kernels",
    ),
    table="fusion",
    requires="torch_npu>=2.1",
)
