"""A loop in Python works on a tensor element by element.

What: a line that launches more than 100 kernels of one Type with one shape of at most 1024 elements
per step.

Why it is slow on the NPU: a kernel on a few elements takes as long as one on thousands, and a launch
costs the host more than that. A loop over points, boxes or rows of a mask launches them one by
one; where the loop reads lengths from the device (``m[i][:n] = 1``), it waits each time as well.

Evidence: number and time of such kernels at each line; a line that also launches kernels on large
tensors, as an optimizer does, is none.

Use instead: one operator over all elements: ``t = torch.arange(n, device=x.device)[:, None] / n``
and a broadcast; ``mask = torch.arange(n, device=x.device) < lengths[:, None]`` for rows of different
lengths; ``torch._foreach_*`` and ``torch_npu.utils.npu_combine_tensors`` for lists of tensors.

Safety: advice; equal up to rounding where the steps of the loop do not depend on each other.

References: other_common_opt_ops.md of the FrameworkPTAdapter guide (loops over points and masks).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.recorded_cells import per_row
from npufix.rules.shared.recording.recorded_shapes import elements, shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Observation, Recording

LEAST_CALLS = 100
"""Of one Type with one shape at one line, per step."""
MOST_ELEMENTS = 1024
_ALIKE = ["path", "line", "type", "input_shapes"]


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all such lines together."""
    kernels = recording.kernels
    known = (kernels["path"] != "").to_numpy(bool) & ~kernels["communication"].to_numpy(bool)
    known &= (kernels["basis"] == "call-stack").to_numpy(bool)
    known &= (kernels["input_shapes"] != "").to_numpy(bool)
    rows = _where_all_are_small(kernels[known])
    if len(rows) <= LEAST_CALLS * recording.step_count:
        return
    calls = rows.groupby(_ALIKE, observed=True, sort=False)["duration_ns"].transform("size")
    rows = rows[calls.to_numpy() > LEAST_CALLS * max(1, recording.step_count)]
    yield from tell_together(
        "lines launch the same kernel on a few elements more than 100 times per step",
        rows,
        recording,
        basis="at most all of them; the host saves their launches as well",
        least=0.001,
        goes=True,
    )


def _where_all_are_small(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the kernels of lines that launch none on a larger tensor, as an optimizer does."""
    large = per_row(rows, ["input_shapes"], _most_elements) > MOST_ELEMENTS
    line = rows["path"].cat.codes.to_numpy(np.int64) << 32 | rows["line"].to_numpy(np.int64)
    found: pd.DataFrame = rows[~np.isin(line, np.unique(line[large]))]
    return found


def _most_elements(inputs: str) -> float:
    return max(elements(shape) for shape in shapes(inputs))


RULE = Diagnostic(
    id="NPU242",
    name="loop-over-elements",
    summary="a loop in Python launches a kernel for each element",
    advice=(
        "one operator over all elements: torch.arange(n, device=x.device)[:, None] and a broadcast; "
        "arange(n) < lengths[:, None] for masks; torch._foreach_* for lists of tensors"
    ),
    check=check,
    table="affinity",
)
