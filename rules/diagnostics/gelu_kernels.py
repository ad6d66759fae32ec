"""GELU takes a noticeable share of the step.

What: kernels of Type ``Gelu`` or ``GeluV2`` and their gradients.

Why it is slow on the NPU: the kernel evaluates a tanh (or an error function) for every element and
is bound by the vector cores, not by memory.

Evidence: the time of these kernels, by line.

Use instead: ``torch_npu.npu_fast_gelu(x)``, which computes ``x * sigmoid(1.702 x)``.

Safety: that is another function: it differs from both forms of GELU by up to 0.02, so a model that
was trained with GELU loses accuracy. Advice for models that are trained from scratch with it; the
tool never writes it. Code that spells out ``x * sigmoid(1.702 x)`` means this function: NPU206.

References: "other optimisations" of the performance tuning guide of Ascend Extension for PyTorch;
torch_npu.npu_fast_gelu in its API reference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.observing import computing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

_TYPES = r"Gelu(V2)?(Grad(V2)?)?"
_LEAST_SHARE = 0.02


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation; a fused GELU is the work itself, as only another function is faster."""
    rows = computing(recording, _TYPES)
    basis = "no dump tells how much faster the approximation is"
    found = tell_together("GELU", rows, recording, basis=basis, saved_ns=None, least=_LEAST_SHARE)
    for seen in found:
        yield replace(seen, is_work=True)


RULE = Diagnostic(
    id="NPU246",
    name="gelu-kernels",
    summary="GELU takes a noticeable share of the step",
    advice="torch_npu.npu_fast_gelu(x), if the model may be trained with another activation",
    check=check,
    table="affinity",
    requires="torch_npu>=2.1",
)
