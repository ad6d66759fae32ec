"""A grouped product of experts, and an all-reduce of its result that nothing hides.

What: experts that are split over ranks multiply, then ``dist.all_reduce`` adds their partial
results.

Why it is slow on the NPU: cube cores and links wait for each other.

Evidence: pairs of GroupedMatmul and hcom_allReduce_ beside which no other kernel runs, and after
which a kernel reads as many numbers as the product has.

Use instead: ``npu_grouped_mat_mul_all_reduce(x, weight, hcomm, group_list=...)`` of MindSpeed.

Safety: advice. 2, 4 or 8 cards; at most 64 tensors in a list; no backward pass is documented.

References: npu_grouped_mat_mul_all_reduce.md of MindSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import GROUPED_MATMUL
from npufix.rules.shared.recording.matmul_collectives import (
    ALL_REDUCE,
    linked,
    neighbours,
    overlappable,
)
from npufix.rules.shared.recording.recorded_shapes import same_elements
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for grouped products whose all-reduce is exposed."""
    found = find(recording, (GROUPED_MATMUL, ALL_REDUCE))
    reader = neighbours(found, 1, after=True)
    found = found.where(linked(found, reader, written=0, relation=same_elements))
    yield from overlappable(found, 0, 1, "npu_grouped_mat_mul_all_reduce")


RULE = Diagnostic(
    id="NPU125",
    name="grouped-matmul-all-reduce",
    summary="a grouped product waits for the all-reduce of its result",
    advice="mindspeed.ops.npu_grouped_mat_mul_all_reduce(x, weight, hcomm, group_list=...)",
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; CANN>=8.0; chip A2",
)
