"""Batch norm counts its batches on the device, one kernel per layer.

What: an Add on a single int64 number right before each kernel of batch norm:
``num_batches_tracked``.

Why it is slow on the NPU: the count is only read where ``momentum`` is None, but every layer launches
a kernel for it, and int64 has the slower kernels.

Evidence: Add on one INT64 number followed by a kernel of batch norm at the same function.

Use instead: ``torch_npu.contrib.module.FastBatchNorm2d`` (1d, 3d, FastSyncBatchNorm), which counts
in int32 and skips checks of each step; or ``track_running_stats=False`` where the statistics are
not used.

Safety: the count in checkpoints is int32 then; a beta interface.

References: affinity API page of the FrameworkPTAdapter guide (contrib).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.recorded_cells import dtypes, per_row
from npufix.rules.shared.recording.recorded_shapes import elements, shapes
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

_BATCH_NORM = r"BNTraining(Reduce|Update)\w*|BatchNorm(V\d|ElemtV?\d?)?|BNInfer\w*|SyncBatchNorm\w*"


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all counters together."""
    found = find(recording, ("Adds?", _BATCH_NORM), between=("TransData", "Cast"))
    if not found.count:
        return
    rows = found.part(0)
    rows = rows[per_row(rows, ["input_shapes", "input_dtypes"], _counts) > 0]
    yield from tell_together(
        "batch norm counts its batches on the device",
        rows,
        recording,
        basis="at most all of them; the host saves their launches as well",
        least=0.001,
        goes=True,
    )


def _counts(inputs: str, kinds: str) -> float:
    """Tell whether one int64 number is added to."""
    return dtypes(kinds)[0] == "INT64" and elements(shapes(inputs)[0]) == 1


RULE = Diagnostic(
    id="NPU146",
    name="batch-norm-counter",
    summary="batch norm counts its batches with a kernel per layer",
    advice="torch_npu.contrib.module.FastBatchNorm2d (1d, 3d) instead of nn.BatchNorm2d",
    check=check,
    table="fusion",
    requires="torch_npu>=2.1",
)
