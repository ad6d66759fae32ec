"""Views are copied into contiguous memory again and again.

What: Transpose, AsStrided, ViewCopy and TensorMove take 5 % of the compute time or more.

Why it is slow on the NPU: ``transpose``, ``permute`` and slices only change how a tensor is looked
at. An operator that cannot read such a view copies it first, and every operator that reads the same
view copies it anew.

Evidence: time and number of these kernels, the lines that ask for them, and copies of one shape in
one function more than once per step. Copies that DDP makes of its buckets are a finding of their
own.

Use instead: where several operators read one view, ``z = x.transpose(1, 2).contiguous()`` once;
where nothing needs the new order, none at all: ``einsum``, ``matmul`` and the fused attention of
layout BSND take the order that projections give.

Safety: exact; a view that only one operator reads gains nothing from ``contiguous``.

References: other_common_opt_ops.md of the FrameworkPTAdapter guide; ModelArts best practice (16
copies to 2 in one model).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.quantities import number
from npufix.rules.shared.recording.kernel_groups import (
    bucket_copies,
    conversion_storm,
    takes_too_much,
)
from npufix.rules.shared.recording.observing import computing

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Observation, Recording

COPIES = r"Transpose(D|V\d)?|AsStrided|ViewCopy|TensorMove"
_SAME = ["type", "input_shapes", "output_shapes", "path", "function"]


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where copies take a share of the compute time that matters."""
    rows = computing(recording, COPIES)
    rows = rows.drop(index=rows.index.intersection(bucket_copies(recording).index))
    if takes_too_much(rows, recording):
        evidence = (_alike(rows, max(1, recording.step_count)),)
        basis = "at most all copies"
        yield from conversion_storm("layout copy", rows, evidence, basis, recording)


def _alike(rows: pd.DataFrame, steps: int) -> tuple[str, str]:
    """Return how many copies repeat one of the same shape in the same function."""
    known = rows[(rows["input_shapes"] != "") & (rows["path"] != "")]
    if known.empty:
        return "same shape in one function", "unknown: shapes or stacks were not recorded"
    counts = known.groupby(_SAME, observed=True).size() / steps
    return "same shape in one function", f"{number(counts[counts > 1].sum())} copies per step"


RULE = Diagnostic(
    id="NPU238",
    name="layout-copies",
    summary="views are copied into contiguous memory again and again",
    advice=(
        "x.transpose(1, 2).contiguous() once where several operators read the view; no transpose "
        "where matmul, einsum or attention (layout BSND) take the order as it is"
    ),
    check=check,
    table="affinity",
)
