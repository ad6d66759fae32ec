"""Cosine and sine of the same positions are computed in every layer.

What: Cos and Sin kernels with the same shapes more than four times per step at one line.

Why it is slow on the NPU: the tables of a rotary embedding depend on positions and frequencies, not
on the layer. Cos and Sin have no unit of their own: they are long series on the vector core, and the
casts, products and concatenations around them are repeated as well.

Evidence: number and time of Cos and Sin per step and shape. More than one micro-batch, and layers
that are recomputed in the backward pass, make more of them too: the first of each shape in a step
is not counted.

Use instead: compute the tables once per step, outside of the layers, and hand them down; or keep
them as buffers for the longest sequence (``register_buffer(..., persistent=False)``).

Safety: advice; positions that change from step to step need new tables in every step.

References: observation in the recording of a language model (56 launches, 1.8 ms).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.observing import computing
from npufix.rules.shared.recording.recorded_cells import per_row
from npufix.rules.shared.recording.recorded_shapes import elements, shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Observation, Recording

LAYERS = 4
"""Times per step of one shape at one line."""
LEAST_SHARE = 0.001
_ONE = ["step", "type", "input_shapes", "path", "line"]


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all repetitions together."""
    rows = computing(recording, "Cos|Sin")
    rows = rows[(rows["input_shapes"] != "").to_numpy(bool)]
    if rows.empty:
        return
    again = _repeated(rows, recording)
    beside = _repeated(_beside(again, recording), recording)
    yield from tell_together(
        "cosine or sine of tensors of a shape that was computed in this step already",
        recording.kernels.loc[again.index.union(beside.index)] if len(beside) else again,
        recording,
        basis="at most all but the first of each shape in a step",
        likely_ns=math.inf,
        least=LEAST_SHARE,
        goes=True,
    )


def _repeated(rows: pd.DataFrame, recording: Recording) -> pd.DataFrame:
    """Return all but the first of each shape at one line in one step, where there are many."""
    same = rows.groupby(_ONE, observed=True, dropna=False)["duration_ns"]
    number, size = same.cumcount().to_numpy(), same.transform("size").to_numpy()
    if recording.kernels["step"].isna().all():
        size = size / max(1, recording.step_count)
    again: pd.DataFrame = rows[(size > LAYERS) & (number > 0)]
    return again


def _beside(tables: pd.DataFrame, recording: Recording) -> pd.DataFrame:
    """Return the casts, products and concatenations of functions that make nothing but tables.

    What is computed beside them in a function of anything larger need not be of them.
    """
    rows = computing(recording, ".*")
    own: pd.DataFrame = rows[np.isin(_functions(rows), _functions(tables).clip(min=0))]
    if own.empty:
        return own
    function, size = _functions(own), per_row(own, ["output_shapes"], _count)
    is_table = own.index.isin(tables.index)
    largest = dict.fromkeys(function.tolist(), 0.0)
    for number, elements_of in zip(function[is_table], size[is_table], strict=True):
        largest[int(number)] = max(largest[int(number)], float(elements_of))
    more = size > np.array([largest[number] for number in function.tolist()])
    return own[~np.isin(function, function[more]) & ~is_table]


def _functions(rows: pd.DataFrame) -> NDArray[np.int64]:
    """Return a number for the function of each kernel, below 0 where none is known."""
    path, function = (rows[name].cat.codes.to_numpy(np.int64) for name in ("path", "function"))
    known = (rows["path"] != "").to_numpy(bool) & (path >= 0)
    return np.where(known, (path << 32) + function, -1)


def _count(outputs: str) -> float:
    return max(map(elements, shapes(outputs)), default=0.0)


RULE = Diagnostic(
    id="NPU235",
    name="recomputed-cos-sin",
    summary="cosine and sine of the same positions are computed in every layer",
    advice=(
        "compute the tables of the rotary embedding once per step and hand them to the layers, or "
        "register_buffer(..., persistent=False) for the longest sequence"
    ),
    check=check,
    table="affinity",
)
