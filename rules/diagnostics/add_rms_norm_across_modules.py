"""A residual addition in one module and the RMSNorm of its sum in another.

What: a pre-norm decoder layer adds the residual, and a module of the next block normalises the sum,
which is also the next residual.

Why it is slow on the NPU: the sum is written by Add and read again by RmsNorm. ``npu_add_rms_norm``
does both, and returns the sum too.

Evidence: Add > RmsNorm with nothing in between on the device, the sum as large as what is
normalised, in a run without a backward pass.

Use instead: ``normed, _, residual = torch_npu.npu_add_rms_norm(x, residual, norm.weight, norm.eps)``
with the residual handed from layer to layer beside the activation, as vLLM's models do.

Safety: advice, as the call moves from the norm to the layer that adds. For inference: the operator
has no backward pass. Both summands and the weight have one dtype and the summands one shape.

References: torch_npu.npu_add_rms_norm in the API reference of Ascend Extension for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import Fusable, fusable, passes_on, trains

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

_WANTED = Fusable(
    parts=("Add|AddV2", "RmsNorm"),
    saved=(0,),
    operator="npu_add_rms_norm",
    basis="the addition, whose result the norm would read again, is part of the fused kernel",
    links=passes_on((0, 1)),
)


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where additions and norms follow each other in inference."""
    if not trains(recording):
        yield from fusable(recording, _WANTED)


RULE = Diagnostic(
    id="NPU118",
    name="add-rms-norm-across-modules",
    summary="a residual addition and the RMSNorm of its sum run one after the other",
    advice=(
        "normed, _, residual = torch_npu.npu_add_rms_norm(x, residual, norm.weight, norm.eps) in "
        "the layer that adds, for inference; it does not broadcast"
    ),
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; chip A2 A3",
)
