"""Channels are shuffled by a transpose in five dimensions.

What: the function ``channel_shuffle`` of ShuffleNet and its copies: view, transpose, contiguous,
view.

Why it is slow on the NPU: the transpose moves single channels between groups of a tensor with five
dimensions, for which no fast path exists, and the branches around it split and join the tensor
once more.

Evidence: kernels that a function named ``channel_shuffle`` asked for.

Use instead: ``torch_npu.contrib.module.ChannelShuffle``, which picks channels by an index made once.

Safety: exact; a beta interface.

References: affinity API page of the FrameworkPTAdapter guide (contrib).
"""

from __future__ import annotations

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import in_functions, tell_together

RULE = Diagnostic(
    id="NPU142",
    name="channel-shuffle",
    summary="channels are shuffled by a transpose in five dimensions",
    advice="torch_npu.contrib.module.ChannelShuffle instead of view, transpose, contiguous, view",
    check=lambda recording: tell_together(
        "channels are shuffled by a transpose",
        in_functions(recording, r"_?channel_shuffle", r"Transpose\w*|Concat\w*|Slice|AsStrided"),
        recording,
        basis="at most all of it",
    ),
    table="fusion",
    requires="torch_npu>=2.1",
)
