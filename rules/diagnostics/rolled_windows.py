"""Windows are shifted by ``torch.roll``.

What: kernels that ``aten::roll`` asked for take 1 % of the step or more, as in Swin transformers.

Why it is slow on the NPU: a roll along two dimensions is two passes of slices and concatenations,
there and back in every second block, forward and backward.

Evidence: time and number of the kernels below ``aten::roll``.

Use instead: ``torch_npu.contrib.function.roll(x, shifts, dims)``, which gathers by an index that is
made once for each shape.

Safety: exact; a beta interface.

References: affinity API page of the FrameworkPTAdapter guide (contrib).
"""

from __future__ import annotations

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import find_asked_by, tell_together

RULE = Diagnostic(
    id="NPU143",
    name="rolled-windows",
    summary="windows are shifted by torch.roll",
    advice="torch_npu.contrib.function.roll(x, shifts, dims) instead of torch.roll",
    check=lambda recording: tell_together(
        "windows are shifted by torch.roll",
        find_asked_by(recording, "aten::roll"),
        recording,
        basis="at most all of it",
    ),
    table="fusion",
    requires="torch_npu>=2.1",
)
