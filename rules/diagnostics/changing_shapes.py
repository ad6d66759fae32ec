"""Shapes change from step to step, so that nothing the host prepared can be used again.

What: more than 20 % of the kernels of a step have shapes that no earlier step had, and all
operators run as dynamic ones.

Why it is slow on the NPU: for a new shape the host works out tiling and workspace again, and an
operator of aclop is even compiled; for a known one it finds them in a cache.

Evidence: Type and shapes of the kernels of each step against those of the steps before it; OP
State; the time of the host in tiling and GetWorkspaceSize. OP State alone says nothing: precompiled
kernels are dynamic as well, and in both real dumps that this was tried on all of them are.

Use instead: pad to a few fixed lengths (buckets); ``torch_npu.npu.set_compile_mode(
jit_compile=False)``; larger caches, ``ACLNN_CACHE_LIMIT=100000`` and ``HOST_CACHE_CAPACITY=20``.

Safety: settings keep the results; caches take memory of the host. Padding must be masked out.

References: dynamic shape check of msprof-analyze (all operators dynamic); other_common_opt_ops.md
of the FrameworkPTAdapter guide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.recording.observing import (
    free_ns,
    host_calls,
    places,
    rows_where,
)
from npufix.rules.shared.recording.run_settings import Setting, advice, at_least, lines_to_set

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording

SCHED = 0.20
"""Share of the kernels of a step."""
_CACHES = (
    Setting("ACLNN_CACHE_LIMIT", "100000", at_least(100_000)),
    Setting("HOST_CACHE_CAPACITY", "20", at_least(1)),
)
_FIRST = "pad to a few fixed lengths; torch_npu.npu.set_compile_mode(jit_compile=False)"
_COLUMNS = ["step", "type", "input_shapes", "state", "path", "line", "function"]
_PREPARE = r"\w+_Tiling|\w+GetWorkspaceSize"


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where the shapes of a later step are mostly new."""
    rows = _in_steps(recording)
    if rows["step"].nunique() < 2 or not _all_dynamic(rows):  # noqa: PLR2004 - one before another
        return
    new = _is_new(rows)
    later = (rows["step"] > rows["step"].min()).to_numpy(bool)
    ratio = new[later].mean()
    if ratio <= SCHED:
        return
    spent = host_calls(recording, _PREPARE).per_step_ns
    cost = min(round(spent), free_ns(recording))
    found = rows[later & new]
    yield Observation(
        what=(
            f"{percent(float(ratio))} of the kernels of a step have shapes that no step before "
            "had, and every operator is dynamic"
        ),
        evidence=(
            ("steps", str(rows["step"].nunique())),
            ("host in tiling and workspace", f"{milliseconds(spent)} per step"),
        ),
        cost_ns=cost,
        saving_ns=(0, cost) if cost else None,
        basis="at most the tiling that the free time of the step shows" if cost else "no API times",
        places=places(found, np.zeros(len(found)), recording),
        is_idle=True,
        advice=advice(_FIRST, lines_to_set(recording, *_CACHES)),
    )


def _in_steps(recording: Recording) -> pd.DataFrame:
    kernels = recording.kernels
    known = kernels["step"].notna() & (kernels["input_shapes"] != "")
    return rows_where(
        kernels[_COLUMNS], known.to_numpy() & ~kernels["communication"].to_numpy(bool)
    )


def _all_dynamic(rows: pd.DataFrame) -> bool:
    states = set(rows["state"].unique()) - {""}
    return states == {"dynamic"}


def _is_new(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which kernels have a Type and shapes that appear in no earlier step."""
    step = rows["step"].to_numpy(np.int64)
    keys = [rows["type"].cat.codes.to_numpy(), rows["input_shapes"].cat.codes.to_numpy()]
    first = rows["step"].groupby(keys, sort=False).transform("min")
    new: NDArray[np.bool_] = first.to_numpy(np.int64) == step
    return new


RULE = Diagnostic(
    id="NPU304",
    name="changing-shapes",
    summary="shapes change from step to step, so the host prepares every launch anew",
    advice=f"{_FIRST}; export ACLNN_CACHE_LIMIT=100000 HOST_CACHE_CAPACITY=20",
    check=check,
)
