"""Large tensors are filled with zeros in every step.

What: ZerosLike, Fill, ZerosV2 and MemSet take 1 % of the step or more.

Why it is slow on the NPU: a fill computes nothing, but writes the whole tensor. For the gradients
of a large model these are gigabytes per step, and the next operator reads all of them again to add
to zero.

Evidence: time and number of these kernels, and the lines that ask for them.

Use instead: ``optimizer.zero_grad(set_to_none=True)``, the default since torch 2.0, which frees
gradients instead of filling them; ``torch.empty`` for buffers that are written in full; masks and
constants made once, outside of the loop.

Safety: with ``set_to_none`` a gradient is None until the next backward pass, which code that reads
``p.grad`` in between must expect. The fused optimizers of torch_npu keep gradients in one buffer and
refuse it.

References: observation in the recording of a language model (375 million zeros: 1.9 ms).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.quantities import milliseconds
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.observing import computing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

_FILLS = r"Zeros\w*|Fill\w*|MemSet\w*|OnesLike"


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all fills together."""
    rows = computing(recording, _FILLS)
    if rows.empty:
        return
    yield from tell_together(
        "tensors are filled with a constant",
        rows,
        recording,
        basis="at most all fills",
        goes=True,
        evidence=(("longest", milliseconds(rows["duration_ns"].max())),),
    )


RULE = Diagnostic(
    id="NPU234",
    name="zero-filling",
    summary="large tensors are filled with zeros in every step",
    advice=(
        "optimizer.zero_grad(set_to_none=True) (not with NpuFused optimizers); torch.empty for "
        "buffers that are written in full; masks and constants once, outside of the loop"
    ),
    check=check,
    table="affinity",
)
