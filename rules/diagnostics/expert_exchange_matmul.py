"""Expert layers that exchange tokens and multiply one after the other.

What: experts over several ranks with tensor parallelism inside: all-to-all, all-gather, batched
product on the way in; batched product, reduce-scatter, all-to-all on the way out.

Why it is slow on the NPU: three steps that wait for each other, although the tokens of one expert
could be multiplied while those of the next one travel.

Evidence: hcom_alltoallv_ > hcom_allGather_ > BatchMatMul, and BatchMatMul > hcom_reduceScatter_ >
hcom_alltoallv_, with nothing else in between.

Use instead: ``npu_alltoall_allgather_bmm`` and ``npu_bmm_reducescatter_alltoall`` of MindSpeed.

Safety: advice. Groups of 2 to 32 ranks for experts and for tensors.

References: npu_all_to_all_all_gather_bmm.md and npu_bmm_reduce_scatter_all_to_all.md of MindSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import BATCH_MATMUL
from npufix.rules.shared.recording.matmul_collectives import (
    ALL_GATHER,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    overlappable,
)
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for the way in, and one for the way out."""
    way_in = find(recording, (ALL_TO_ALL, ALL_GATHER, BATCH_MATMUL))
    yield from overlappable(way_in, 2, 1, "npu_alltoall_allgather_bmm")
    way_out = find(recording, (BATCH_MATMUL, REDUCE_SCATTER, ALL_TO_ALL))
    yield from overlappable(way_out, 0, 1, "npu_bmm_reducescatter_alltoall")


RULE = Diagnostic(
    id="NPU124",
    name="expert-exchange-matmul",
    summary="experts exchange tokens and multiply one after the other",
    advice=(
        "mindspeed.ops: npu_alltoall_allgather_bmm before the experts, "
        "npu_bmm_reducescatter_alltoall behind them"
    ),
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; CANN>=8.0; chip A2 A3",
)
