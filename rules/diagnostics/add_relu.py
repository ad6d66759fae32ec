"""A residual addition whose result goes through a ReLU.

What: ``out += identity; out = relu(out)``, the end of every block of a ResNet.

Why it is slow on the NPU: the sum is written and read once more for the ReLU.

Evidence: Add followed by a Relu that reads a tensor as large as the sum.

Use instead: ``mx_driving.npu_add_relu(out, identity)`` of Ascend's DrivingSDK.

Safety: advice. mx_driving is a package of its own that must be installed; the sum itself no longer
exists, so nobody else may read it.

References: npu_add_relu and the guide to model optimisation of Ascend DrivingSDK.
"""

from __future__ import annotations

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import Fusable, fusable, passes_on

RULE = Diagnostic(
    id="NPU133",
    name="add-relu",
    summary="the sum of a residual block is written only for its ReLU",
    advice="mx_driving.npu_add_relu(out, identity) of Ascend DrivingSDK",
    check=lambda recording: fusable(
        recording,
        Fusable(
            parts=("Add", "Relu"),
            saved=(1,),
            operator="mx_driving.npu_add_relu",
            basis="at most all these ReLUs",
            likely=0.9,  # nothing is read or written for it any more
            links=passes_on((0, 1)),
        ),
    ),
    table="fusion",
    requires="torch_npu>=2.1; chip A2 A3",
)
