"""Tensors are converted between dtypes again and again.

What: kernels of Cast take 5 % of the compute time or more.

Why it is slow on the NPU: a cast reads and writes the whole tensor and computes nothing. Mixed
precision inserts them where operators of both kinds alternate; so do masks and indices in int64 or
bool that are turned into floats in every layer.

Evidence: time and number of Cast kernels; shapes that are cast from more than one dtype, which is
what back and forth looks like. Casts of a loss that is written out, and those inside of operators
that make random numbers, are not counted: no autocast removes them.

Use instead: ``model.to(torch.bfloat16)`` or one autocast region around the whole step instead of
single ``.float()`` calls; create masks once, in the dtype of their use; cast weights once, outside
of the loop.

Safety: advice; fewer casts to float32 mean less precision in between.

References: performance pages of the troubleshooting guide on vector operators; PRIORITY of
msprof-analyze (5 %).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import format_count, milliseconds
from npufix.rules.shared.recording.kernel_groups import conversion_storm, takes_too_much
from npufix.rules.shared.recording.observing import computing, find_named
from npufix.rules.shared.recording.vocabulary import find_written_out_loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording

_MOST_DTYPES = 3
_RANDOM = r"aclnn(Inplace)?(Normal|Uniform|Random|Bernoulli|Multinomial|Dropout\w*)_.*"
"""Operators that make random numbers in float32, whatever dtype they return."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where conversions take a share of the compute time that matters."""
    rows = computing(recording, "Cast")
    loss, _ = find_written_out_loss(recording)
    within = find_named(rows, _RANDOM, "name").index
    rows = rows[~rows.index.isin(loss.index.union(within))]
    if takes_too_much(rows, recording):
        steps = max(1, recording.step_count)
        evidence = (*_sources(rows), _back_and_forth(rows, steps))
        basis = "at most all casts"
        yield from conversion_storm("Cast", rows, evidence, basis, recording)


def _sources(rows: pd.DataFrame) -> Iterator[tuple[str, str]]:
    cells = rows[rows["input_dtypes"] != ""].groupby("input_dtypes", observed=True)["duration_ns"]
    totals = cells.agg(["sum", "size"]).sort_values("sum", ascending=False, kind="stable")
    for dtype, spent, count in totals.head(_MOST_DTYPES).itertuples():
        yield f"from {dtype}", f"{count} kernels, {milliseconds(spent)}"


def _back_and_forth(rows: pd.DataFrame, steps: int) -> tuple[str, str]:
    """Return how many casts of a shape meet a cast of the same shape from another dtype."""
    known = rows[(rows["input_dtypes"] != "") & (rows["input_shapes"] != "")]
    if known.empty:
        return "same shape cast from two dtypes", "unknown, shapes were not recorded"
    counts = known.groupby(["input_shapes", "input_dtypes"], observed=True).size()
    by_shape = counts.groupby(level=0, observed=True).agg(["sum", "max"])
    # The most common dtype of a shape pairs with the others, at most one to one.
    others = by_shape["sum"] - by_shape["max"]
    pairs = int(others.clip(upper=by_shape["max"]).sum())
    return "same shape cast from two dtypes", f"{format_count(pairs / steps, 'pair')} per step"


RULE = Diagnostic(
    id="NPU303",
    name="cast-storm",
    summary="tensors are converted between dtypes again and again",
    advice=(
        "one autocast region around the whole step instead of single .float() calls; create masks "
        "once in the dtype of their use; cast weights once, outside of the loop"
    ),
    check=check,
)
