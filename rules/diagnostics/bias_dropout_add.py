"""A bias, a dropout and a residual that are added kernel by kernel.

What: ``residual + F.dropout(x + bias, p, training)``, the end of an attention or feed-forward block
that keeps the bias apart (Megatron with ``skip_bias_add``).

Why it is slow on the NPU: three kernels read and write the activation where one would do.

Evidence: Add > DropOutDoMask > Add of tensors of one size.

Use instead: let the projection add its bias (no ``skip_bias_add``): one Add less. Where a LayerNorm
or an RMSNorm follows, ``npu_dropout_add_layer_norm`` or ``npu_dropout_add_rms_norm`` of
``mindspeed.ops`` take dropout, addition and norm. Else ``torch.compile`` with the backend of
torchair; ``--use-fused-...`` flags of the framework, if it has them.

Safety: advice. There is no operator for these three alone. Another kernel draws other random
numbers for the dropout.

References: list of patterns of the advisor of msprof-analyze; dropout_add_layer_norm.md of
MindSpeed.
"""

from __future__ import annotations

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import Fusable, fusable, passes_on

_DROPOUT = "DropOutDoMask(V3)?|DropoutV3|DropoutDoMask"


RULE = Diagnostic(
    id="NPU131",
    name="bias-dropout-add",
    summary="bias, dropout and residual are added kernel by kernel",
    advice=(
        "let the projection add its bias; in front of a norm npu_dropout_add_layer_norm or "
        "npu_dropout_add_rms_norm of mindspeed.ops; else torch.compile with torchair"
    ),
    check=lambda recording: fusable(
        recording,
        Fusable(
            parts=("Add", _DROPOUT, "Add"),
            saved=(0, 1),
            operator="one pass over the activation",
            basis="at most the bias and the dropout, if they become part of the last addition",
            likely=0.9,  # but for the mask and the bias nothing is read for them any more
            between=("DropOutGenMask", "DropOutGenMaskV4", "StatelessDropOutGenMask"),
            links=passes_on((0, 1), (1, 2)),
        ),
    ),
    table="fusion",
    requires="torch_npu>=2.1",
)
