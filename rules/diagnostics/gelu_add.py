"""A GELU whose result is only added to something.

What: ``F.gelu(x) + y``.

Why it is slow on the NPU: the activation is written and read once more for the addition.

Evidence: Gelu followed by an Add that reads a tensor as large as its result.

Use instead: no operator does these two alone: ``torch.compile`` with the backend of torchair.

Safety: advice. Only the number of kernels changes.

References: list of patterns of the advisor of msprof-analyze.
"""

from __future__ import annotations

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import Fusable, fusable, passes_on

RULE = Diagnostic(
    id="NPU132",
    name="gelu-add",
    summary="the result of GELU is written only to be added",
    advice="torch.compile with the backend of torchair: no operator of its own does the two",
    check=lambda recording: fusable(
        recording,
        Fusable(
            parts=("Gelu|GeluV2|FastGelu|FastGeluV2", "Add"),
            saved=(1,),
            operator="compiled code",
            basis="at most all these additions",
            links=passes_on((0, 1)),
        ),
    ),
    table="fusion",
    requires="torch_npu>=2.1",
)
