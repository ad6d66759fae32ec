"""SyncBatchNorm in many layers: a collective for each of them.

What: more than 20 calls of SyncBatchNorm in a step.

Why it is slow on the NPU: each one gathers its statistics from all ranks, forward and backward, in
a collective of a few kilobytes. Such a collective costs its latency and waits for the slowest rank,
however small it is; a deep network has a hundred of them.

Evidence: kernels of SyncBatchNormGatherStats and the like per step and their time. The collectives
belong to it as well but cannot be told from others, so their time is not part of the cost.

Use instead: ``nn.BatchNorm2d`` where the batch of each rank is large enough (16 and more); frozen
statistics in fine-tuning; GroupNorm. Do not convert layers whose statistics do not matter.

Safety: advice; statistics of one rank are others than those of all ranks, so training changes.

References: SyncBatchNorm check of msprof-analyze (20); PETR case (5 nodes: 3.03 s to 2.68 s).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.quantities import number
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.observing import find_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

SYNCBN_20 = 20
"""Calls of the layer per step."""
_ONCE_PER_CALL = r"SyncBatchNormGatherStats\w*|SyncBNTrainingUpdate\w*"
_ALL = r"SyncBatchNorm\w*|SyncBN\w*"


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all such layers together."""
    calls = len(find_named(recording.kernels, _ONCE_PER_CALL, "type")) / max(
        1, recording.step_count
    )
    if calls <= SYNCBN_20:
        return
    yield from tell_together(
        f"SyncBatchNorm is called {number(calls)} times per step",
        find_named(recording.kernels, _ALL, "type"),
        recording,
        basis="what the collectives of these layers take is not told apart from others",
        saved_ns=None,
        evidence=(("collectives", f"{number(_collectives(recording))} per step"),),
        least=0,
    )


def _collectives(recording: Recording) -> float:
    return recording.kernels["communication"].sum() / max(1, recording.step_count)


RULE = Diagnostic(
    id="NPU231",
    name="many-sync-batch-norms",
    summary="SyncBatchNorm gathers statistics from all ranks in many layers",
    advice=(
        "nn.BatchNorm2d where the batch per rank is large enough, or nn.GroupNorm; convert only "
        "the layers that need statistics of all ranks"
    ),
    check=check,
    table="affinity",
)
