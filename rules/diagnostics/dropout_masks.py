"""The masks of dropout take a share of the step.

What: kernels that only make random masks for dropout, and those that apply these, take 1 % of the
step or more.

Why it is slow on the NPU: each call of dropout asks for its own mask. Random numbers come from a
unit of their own or, on older versions, from the AI CPU, and the kernel that uses the mask waits for
them; small masks cost a launch each.

Evidence: time and number of DSAGenBitMask, DSAStatelessGenBitMask, DropOutGenMask and
DropOutDoMask.

Use instead: no dropout where it does not pay (large language models train without); attention with
dropout inside of the fused kernel (``keep_prob``); ``torch_npu.contrib.module.NpuCachedDropout``
instead of ``nn.Dropout``, which makes the masks of all layers at once.

Safety: other random numbers; NpuCachedDropout is a beta interface.

References: affinity API page of the FrameworkPTAdapter guide (contrib).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.observing import computing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

_MASKS = r"DSA\w*GenBitMask\w*|DropOutGenMask\w*|StatelessDropOutGenMask\w*"
_APPLIED = r"DropOutDoMask\w*"


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where masks are made, about them and what applies them."""
    if not computing(recording, _MASKS).empty:
        yield from tell_together(
            "masks for dropout are made one by one, and applied by kernels of their own",
            computing(recording, f"{_MASKS}|{_APPLIED}"),
            recording,
            basis="at most all of them; part of the masks may hide behind other kernels",
            goes=True,
        )


RULE = Diagnostic(
    id="NPU140",
    name="dropout-masks",
    summary="masks for dropout are made one by one",
    advice=(
        "no dropout where it does not pay; torch_npu.contrib.module.NpuCachedDropout instead of "
        "nn.Dropout; keep_prob of the fused attention"
    ),
    check=check,
    table="fusion",
    requires="torch_npu>=2.1",
)
