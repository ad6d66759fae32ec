"""An all-gather that nothing hides, and a matrix product of what it gathered.

What: column-parallel layers with sequence parallelism gather the activation of all ranks, then
multiply.

Why it is slow on the NPU: the cube cores wait until the last part has arrived, although each part
could be multiplied on its own. ``npu_all_gather_base_mm`` does so (MC2).

Evidence: pairs of hcom_allGather_ and MatMul beside which no other kernel runs, where what the
product reads is 2 to 64 times as long as what the kernel before the all-gather wrote. Weights that
are gathered ahead of their layer (FSDP, a distributed optimizer) follow no kernel that wrote them.

Use instead: ``torch_npu.npu_all_gather_base_mm(x, weight.t(), hcom, world_size)``; in training
``--use-ascend-mc2`` of MindSpeed, which also has the backward pass.

Safety: advice. Matrices only; k from 256 to below 65535; ``x`` not transposed; no bias; Atlas A2
with 2, 4 or 8 cards that are all connected, Atlas A3 with up to 32; all MC2 operators of a model
share one group; MindSpeed: not with MoE or CoC and not on A3; CANN 8.0.RC2 or newer.

References: torch_npu.npu_all_gather_base_mm in the API reference of Ascend Extension for PyTorch;
ascend-mc2 of MindSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import MATMUL
from npufix.rules.shared.recording.matmul_collectives import (
    ALL_GATHER,
    find_linked,
    neighbours,
    overlappable,
)
from npufix.rules.shared.recording.recorded_shapes import is_gathered_from_ranks
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for products that wait for an exposed all-gather."""
    found = find(recording, (ALL_GATHER, MATMUL))
    source = neighbours(found, 0, after=False)
    found = found.where(find_linked(found, source, read=1, relation=is_gathered_from_ranks))
    yield from overlappable(found, 1, 0, "npu_all_gather_base_mm")


RULE = Diagnostic(
    id="NPU122",
    name="all-gather-matmul",
    summary="a matrix product waits for the all-gather of its input",
    advice=(
        "torch_npu.npu_all_gather_base_mm(x, weight.t(), hcom, world_size); training: "
        "--use-ascend-mc2 of MindSpeed"
    ),
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; CANN>=8.0; chip A2 A3",
)
