"""Cross entropy with smoothed labels, written out.

What: functions and losses named after label smoothing that launch several kernels: one-hot,
log-softmax, gather, products and means over all classes.

Why it is slow on the NPU: each of them reads and writes scores for all classes.

Evidence: kernels of such Types that a function whose name speaks of label smoothing asked for.

Use instead: ``F.cross_entropy(logits, target, label_smoothing=0.1)`` or, with integer classes and
the mean over a batch, ``torch_npu.contrib.module.LabelSmoothingCrossEntropy(num_classes, 0.1)``.

Safety: definitions differ in whether the true class takes part in the smoothing; compare the loss of
one batch.

References: affinity API page of the FrameworkPTAdapter guide (contrib); torch.nn.CrossEntropyLoss.
"""

from __future__ import annotations

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import NamedFunction, by_name

_FUNCTION = NamedFunction(
    r".*label_?smooth.*|smooth(ed)?_(nll|cross_?entropy)\w*|cross_?entropy_with_smooth\w*",
    "cross entropy with smoothed labels is written out",
    "F.cross_entropy(logits, target, label_smoothing=0.1)",
    r"OneHot|LogSoftmax\w*|NLLLoss\w*|GatherElements\w*|Mul|Muls|Add|Adds|Sub|Neg|ReduceSum|"
    r"ReduceMean|Scatter\w*|Fill|SelectV2|MaskedFill",
)


RULE = Diagnostic(
    id="NPU144",
    name="written-out-label-smoothing",
    summary="cross entropy with smoothed labels launches several kernels",
    advice=(
        f"{_FUNCTION.instead}; or torch_npu.contrib.module.LabelSmoothingCrossEntropy("
        "num_classes, 0.1)"
    ),
    check=lambda recording: by_name(recording, [_FUNCTION]),
    table="fusion",
    requires="torch_npu>=2.1",
)
