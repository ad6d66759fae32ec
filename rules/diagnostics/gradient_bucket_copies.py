"""DDP copies each reduced bucket back into the gradients.

What: copies that ``DistributedDataParallel`` makes after its all-reduce, 0.2 % of the step or more.

Why it is slow on the NPU: every gradient exists twice, once in a bucket and once in the parameter,
and is read and written once more in each step; nothing hides that, as the optimizer waits for it.

Evidence: kernels asked for within ``reducer::copy_bucket_to_grad``, which C++ calls: no line of the
program is on their stacks.

Use instead: ``DistributedDataParallel(model, gradient_as_bucket_view=True)``: the gradients are views
of the buckets.

Safety: exact; ``detach_()`` on gradients is not allowed then, and an optimizer that replaces them
undoes it.

References: gradient_as_bucket_view of torch.nn.parallel.DistributedDataParallel.
"""

from __future__ import annotations

import math

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import (
    LEAST_SHARE_OF_A_NAME,
    bucket_copies,
    tell_together,
)

RULE = Diagnostic(
    id="NPU311",
    name="gradient-bucket-copies",
    summary="DDP copies each reduced bucket back into the gradients",
    advice="DistributedDataParallel(model, gradient_as_bucket_view=True)",
    check=lambda recording: tell_together(
        "DDP copies buckets back into gradients",
        bucket_copies(recording),
        recording,
        basis="all of these copies",
        likely_ns=math.inf,
        least=LEAST_SHARE_OF_A_NAME,
        goes=True,
    ),
)
