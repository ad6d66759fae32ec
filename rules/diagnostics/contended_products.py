"""Matrix products are slower while a collective runs.

What: products of one Type and shape take at least 20 % longer while a collective moves data than
otherwise.

Why it is slow on the NPU: collectives and products share the bandwidth of the memory. Overlap is
meant to hide communication, but where both slow each other down, little of it is gained.

Evidence: each product against the median of the same Type, shapes and dtypes that ran without a
collective at the same time, in this recording.

Use instead: compare a run with and one without the overlap and keep the faster
(``--overlap-grad-reduce`` of Megatron, ``--use-ascend-coc`` of MindSpeed); fewer and larger
buckets.

Safety: results stay the same.

References: bandwidth_contention.yaml of msprof-analyze; CoC page of MindSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.quantities import percent
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.observing import computing

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Observation, Recording

SLOWER = 1.2
"""Time of a product while a collective runs, against that without."""
_FEW = 5
_PRODUCTS = r"(Batch)?MatMul(V\d|Common)?|GroupedMatmul\w*"
_ALIKE = ["name", "type", "input_shapes", "input_dtypes"]


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all products together that are slowed down."""
    rows = computing(recording, _PRODUCTS)
    rows = rows[(rows["input_shapes"] != "").to_numpy(bool)]
    beside = _beside_collectives(rows, recording)
    if beside.sum() < _FEW or (~beside).sum() < _FEW:
        return
    duration = rows["duration_ns"].astype(np.float64)
    alone = duration.where(~beside).groupby([rows[name] for name in _ALIKE], observed=True)
    usual = alone.transform("median").to_numpy()
    known = beside & (alone.transform("count").to_numpy() >= _FEW)
    if not known.any() or duration[known].sum() < SLOWER * usual[known].sum():
        return
    lost = float((duration.to_numpy() - usual)[known].clip(min=0).sum())
    slower = duration[known].sum() / usual[known].sum() - 1
    yield from tell_together(
        f"matrix products take {percent(slower)} longer while a collective runs",
        rows[known],
        recording,
        basis="at most what they take longer; what the collectives gain is not known",
        saved_ns=lost,
    )


def _beside_collectives(rows: pd.DataFrame, recording: Recording) -> NDArray[np.bool_]:
    """Tell which kernels run while a collective does, for at least half of their time."""
    collectives = recording.kernels[recording.kernels["communication"].to_numpy(bool)]
    beside = np.zeros(len(rows), np.bool_)
    for device in collectives["device"].unique():
        own = collectives[collectives["device"] == device]
        here = (rows["device"] == device).to_numpy()
        start = rows["start_ns"].to_numpy()[here]
        duration = rows["duration_ns"].to_numpy()[here]
        begin, end = own["start_ns"].to_numpy(), (own["start_ns"] + own["duration_ns"]).to_numpy()
        # The middle of the kernel: as many collectives have begun as have not ended.
        middle = start + duration // 2
        running = np.searchsorted(np.sort(begin), middle, side="right") - np.searchsorted(
            np.sort(end), middle, side="right"
        )
        beside[here] = running > 0
    return beside


RULE = Diagnostic(
    id="NPU506",
    name="contended-products",
    summary="matrix products are slower while a collective runs",
    advice=(
        "compare a run with and one without overlap of computation and communication "
        "(Megatron --overlap-grad-reduce, MindSpeed --use-ascend-coc) and keep the faster"
    ),
    check=check,
)
