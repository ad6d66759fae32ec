"""One stage of the pipeline computes longer than the others.

What: the slowest stage computes more than 5 % beyond the mean of all stages.

Why it is slow on the NPU: every micro-batch passes every stage, so that the pipeline runs at the
pace of its slowest; all others idle for the difference, once per micro-batch.

Evidence: Computing of step_trace_time by the pipeline groups of profiler_metadata.json; the median
rank of each stage.

Use instead: move layers from this stage to others (``--decoder-first-pipeline-num-layers``,
``--decoder-last-pipeline-num-layers`` of Megatron, ``--num-layer-list`` of MindSpeed): the first
stage also has the embedding, the last one the output layer and the loss.

Safety: the same computation in another place; memory moves with it. Told from 5 % beyond the mean
(as for ranks), 2 % of the step and 0.1 ms.

References: pipeline pages of MindSpeed-LLM; cluster advice of msprof-analyze (by stage).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.cluster.pipeline_bubbles import find_bubbles
from npufix.rules.cluster_diagnostic import ClusterDiagnostic, ClusterObservation
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.ranks.comparing import FLOOR_NS, GAP, LEAST_SHARE, step_ns, typical
from npufix.rules.shared.ranks.groups import stages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.cluster_diagnostic import Cluster

_SEVERAL, _SHOWN = 2, 16


def check(cluster: Cluster) -> Iterator[ClusterObservation]:
    """Yield one observation for the slowest stage."""
    stage = stages(cluster)
    if cluster.steps.empty or not stage:
        return
    medians = typical(cluster)
    medians = medians[medians.index.isin(list(stage))]
    if medians.empty:
        return
    # Of two ranks the faster one: a rank that is late by itself makes no stage heavy.
    of_stage = medians["computing_ns"].groupby(medians.index.map(stage))
    computing = of_stage.quantile(0.5, interpolation="lower")
    if len(computing) < _SEVERAL:
        return
    slowest = int(computing.index.to_numpy()[computing.to_numpy().argmax()])
    mean, most, step = computing.mean(), computing.max(), step_ns(cluster)
    gap = float(most - mean)
    if gap <= max(GAP * mean, LEAST_SHARE * step, FLOOR_NS):
        return
    ranks = [int(rank) for rank in medians.index if stage[int(rank)] == slowest]
    # What the slowest one waits for is one micro-batch of each other stage, which has more to do
    # then: of stages of 2 and 4 layers and 4 micro-batches, 2 + 16 become 3 + 12.
    bubbles = find_bubbles(cluster, medians, named=True).reindex(ranks)
    others = float(computing.sum() - most)
    grows = (len(computing) - 1) * mean / others - 1 if others else 0.0
    longer = min(gap, float(bubbles.fillna(0.0).median()) * grows)
    yield ClusterObservation(
        what=(
            f"stage {slowest} of {len(computing)} computes {milliseconds(most)} per step, "
            f"{milliseconds(gap)} ({percent(gap / step)} of the step) more than the mean stage "
            f"({milliseconds(mean)}), and the others wait for it"
        ),
        ranks=tuple(ranks),
        evidence=tuple(
            (f"stage {number}", f"computes {milliseconds(taken)} per step")
            for number, taken in list(computing.items())[:_SHOWN]
        ),
        cost_ns=round(gap),
        saving_ns=(0, round(gap - longer)),
        basis=(
            "at most what the slowest stage takes longer than the mean, less what the others then "
            "take longer to fill and drain the pipeline: layers are whole"
        ),
    )


RULE = ClusterDiagnostic(
    id="NPU607",
    name="unbalanced-stages",
    summary="one stage of the pipeline computes longer than the others",
    advice=(
        "move layers to other stages: --decoder-first-pipeline-num-layers, "
        "--decoder-last-pipeline-num-layers (Megatron), --num-layer-list (MindSpeed)"
    ),
    check=check,
)
