"""Every other element is cut out of a tensor: ``x[..., ::2]``.

What: kernels of StridedSlice take 5 % of the compute time or more.

Why it is slow on the NPU: memory is read in lines of 32 bytes and more. A stride in the last
dimension uses one element in two, or fewer, of each line, and copies them one by one.

Evidence: time and number of StridedSlice kernels, and the lines that ask for them.

Use instead: split the dimension and take a part of it, which needs no copy of its own:
``x.unflatten(-1, (-1, 2)).unbind(-1)`` for ``x[..., ::2], x[..., 1::2]``; halves instead of even and
odd elements where the order is free (rotary embeddings, gated units), with the weights re-ordered
once.

Safety: the views have the same values; operators that need contiguous input still copy.

References: observation in recordings of language models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.quantities import milliseconds
from npufix.rules.shared.recording.kernel_groups import conversion_storm, takes_too_much
from npufix.rules.shared.recording.observing import computing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where strided copies take a share of the time that matters."""
    rows = computing(recording, r"StridedSlice(D|V\d|Assign\w*|Grad\w*)?")
    if takes_too_much(rows, recording):
        evidence = (("longest", milliseconds(rows["duration_ns"].max())),)
        yield from conversion_storm("StridedSlice", rows, evidence, "at most all", recording)


RULE = Diagnostic(
    id="NPU237",
    name="strided-slicing",
    summary="elements are cut out of tensors with a stride",
    advice=(
        "x.unflatten(-1, (-1, 2)).unbind(-1) instead of x[..., ::2] and x[..., 1::2]; halves "
        "instead of even and odd elements where the order is free"
    ),
    check=check,
    table="affinity",
)
