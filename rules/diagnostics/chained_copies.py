"""Two copies in a row make one view contiguous.

What: two kernels that only re-arrange one tensor (Transpose, AsStrided, Slice, ViewCopy), one after
the other at one line.

Why it is slow on the NPU: a view of a view, ``x.transpose(1, 2)[:, :n]``, is made
contiguous step by step: the first copy is read only by the second. Each is a pass over the tensor
and a launch.

Evidence: the sequence of kernels, where the second reads as many numbers as the first wrote.

Use instead: ``COMBINED_ENABLE=1``, which lets torch_npu work out both steps at once; or one of the
two in the code: slice first, then transpose.

Safety: the results stay the same.

References: COMBINED_ENABLE in the environment variable reference of torch_npu.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.recorded_shapes import reads, same_elements
from npufix.rules.shared.recording.run_settings import Setting
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

_COPIES = r"Transpose(D|V\d)?|AsStrided|(Strided)?Slice(D|V\d)?|ViewCopy|TensorMove"
_COMBINED = Setting("COMBINED_ENABLE", "1")


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where such pairs take a share of the step worth telling."""
    if _COMBINED.is_set(recording):
        return
    found = find(recording, (_COPIES, _COPIES), within="line")
    if not found.count:
        return
    found = found.where(reads(found.part(0), found.part(1), same_elements))
    yield from tell_together(
        "two copies in a row make one view contiguous",
        found.kernels,
        recording,
        basis="at most the first of each two",
        saved_ns=float(found.durations[:, 0].sum()),
        goes=True,
    )


RULE = Diagnostic(
    id="NPU307",
    name="chained-copies",
    summary="two copies in a row make one view contiguous",
    advice=f"{_COMBINED.line}; or slice first, then transpose",
    check=check,
)
