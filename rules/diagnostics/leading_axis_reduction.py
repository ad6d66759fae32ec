"""A sum or maximum over a dimension that is not the last one.

What: ReduceSum, ReduceMean, ReduceMax and their like on floating-point tensors, of more than 20 µs,
that keep the last dimension and read their input at less than a quarter of the bandwidth of this recording.

Why it is slow on the NPU: the vector core adds up what lies side by side. Along another dimension
the elements to add are far apart; where the last dimension is short, most of each line that is
read is not used.

Evidence: the recorded shapes say which dimension went; the bandwidth is that of the large
element-wise kernels of the same recording, below which one slow reduction is nothing to tell.

Use instead: ``x.transpose(1, 2).contiguous().sum(-1)``, or keep the tensor in that order from the
start; a product with a vector of ones for large sums over the rows.

Safety: another order of addition rounds differently. A transpose costs two passes over the tensor:
measure.

References: other_common_opt_ops.md of the FrameworkPTAdapter guide ("may help").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.observing import computing
from npufix.rules.shared.recording.recorded_cells import (
    ELEMENT_WISE,
    LARGE_BYTES,
    count_moved_bytes,
    dtypes,
    per_row,
)
from npufix.rules.shared.recording.recorded_shapes import elements, shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

SHORTEST_NS = 20_000
SLOW = 0.25
"""Share of the bandwidth of element-wise kernels."""
_PASSES = 3
"""A transpose reads and writes the tensor, the reduction reads it."""
_REDUCTIONS = r"Reduce(Sum|Mean|Max|Min|Any|All|Prod)(D|V\d)?|Arg(Max|Min)(V\d|WithValue|D)?"
_FLOATS = frozenset({"BF16", "FLOAT", "FLOAT16"})
"""Whole numbers are slow along any axis."""
_FEW = 5
_SAMPLE = 10_000


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all such reductions together."""
    rows = computing(recording, _REDUCTIONS)
    rows = rows[(rows["duration_ns"] > SHORTEST_NS) & (rows["core"] != "AI_CPU")]
    rows = rows[per_row(rows, ["input_shapes", "input_dtypes", "output_shapes"], _is_odd) > 0]
    if rows.empty:
        return
    usual = _bandwidth(recording)
    moved, duration = count_moved_bytes(rows), rows["duration_ns"].to_numpy()
    slow = (moved > 0) & (moved < SLOW * usual * duration)
    lost = duration[slow] - _PASSES * moved[slow] / usual if usual else duration[slow]
    yield from tell_together(
        "reductions over a dimension before the last",
        rows[slow],
        recording,
        basis=f"at most what is lost against three passes at {usual / 1000:.2f} TB/s",
        saved_ns=float(lost.clip(min=0).sum()),
    )


def _is_odd(inputs: str, kinds: str, outputs: str) -> float:
    """Tell whether a dimension before the last is gone or 1, and the last one is as it was."""
    given, left = shapes(inputs)[0], shapes(outputs)[0]
    if dtypes(kinds)[0] not in _FLOATS:
        return False
    if not given or not left or elements(left) >= elements(given) or given[-1] <= 1:
        return False
    return left[-1] == given[-1] and (len(left) < len(given) or left[:-1] != given[:-1])


def _bandwidth(recording: Recording) -> float:
    """Return the bytes per nanosecond of large element-wise kernels, 0 if there are too few."""
    rows = computing(recording, "|".join(ELEMENT_WISE))
    # Some thousand of them tell as much as all.
    rows = rows.iloc[:: len(rows) // _SAMPLE + 1]
    moved, duration = count_moved_bytes(rows), rows["duration_ns"].to_numpy()
    large = (moved >= LARGE_BYTES) & (duration > 0)
    return float(np.median(moved[large] / duration[large])) if large.sum() >= _FEW else 0.0


RULE = Diagnostic(
    id="NPU239",
    name="leading-axis-reduction",
    summary="a slow reduction over a dimension that is not the last one",
    advice="x.transpose(dim, -1).contiguous().sum(-1), or keep the tensor in that order",
    check=check,
    table="affinity",
)
