"""Stages of a pipeline wait for each other.

What: the ranks of the pipeline spend more than 10 % of the step waiting for the stage before or
behind.

Why it is slow on the NPU: a pipeline of P stages and M micro-batches is filled and drained once per
step, which takes P-1 of M+P-1 parts of the time. Nothing runs on a device meanwhile.

Evidence: Bubble of step_trace_time (the time in receive operations) or, where that is longer,
because sends and receives are batched, the time of point-to-point collectives in the pipeline
groups; of both without that in which data moves.

Use instead: more micro-batches per step (``--global-batch-size`` or a smaller
``--micro-batch-size``); several virtual stages per rank, which divides the bubble by their number
(``--num-layers-per-virtual-pipeline-stage`` of Megatron).

Safety: the same computation; a larger global batch changes training.

References: step_trace_time.csv in the profiler guide (Stage, Bubble); FSDP2 and pipeline pages of
MindSpeed-LLM (up to 10 % is fine).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.cluster_diagnostic import ClusterDiagnostic, ClusterObservation
from npufix.rules.shared.quantities import milliseconds
from npufix.rules.shared.ranks.communication import per_step
from npufix.rules.shared.ranks.comparing import FLOOR_NS, GAP, typical
from npufix.rules.shared.ranks.groups import parts, stages

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.cluster_diagnostic import Cluster

_LEAST = 0.10
"""Share of the step (FREE-LLM)."""
_SHOWN = 16


def check(cluster: Cluster) -> Iterator[ClusterObservation]:
    """Yield one observation for the pipeline."""
    stage = stages(cluster)
    if cluster.steps.empty:
        return
    medians = typical(cluster)
    # Where no group is called one, what receives for long is in a pipeline.
    bubble = find_bubbles(cluster, medians, named=bool(stage))
    bubble = bubble[bubble.index.isin(list(stage))] if stage else bubble[bubble > 0]
    if bubble.empty:
        return
    step, mean = float(medians["step_ns"].median()), float(bubble.mean())
    if mean <= max(_LEAST * step, FLOOR_NS):
        return
    place = stage or {int(rank): int(rank) for rank in bubble.index}
    by_stage = bubble.groupby(bubble.index.map(place)).median()
    computing = medians["computing_ns"].groupby(medians.index.map(place)).median()
    what = "stage" if stage else "rank"
    uneven = float(computing.max() - computing.mean())
    # For the stage that computes longest nobody else is too slow: what it waits fills and drains.
    filling = float(by_stage.reindex([computing.idxmax()]).fillna(0.0).iloc[0])
    most = bubble.sort_values(ascending=False, kind="stable")
    yield ClusterObservation(
        what=f"ranks of the pipeline wait {milliseconds(mean)} per step for other stages",
        ranks=tuple(int(rank) for rank in most.index),
        evidence=(
            *((("stages", str(max(stage.values()) + 1)),) if stage else ()),
            *(
                (f"{what} {number}", f"waits {milliseconds(taken)} per step")
                for number, taken in list(by_stage.items())[:_SHOWN]
            ),
        ),
        # What uneven stages cost is theirs (NPU607): it goes without any more micro-batches.
        cost_ns=round(mean - uneven if uneven > GAP * computing.mean() else mean),
        saving_ns=(0, max(0, round((mean - uneven) / 2))),
        basis=(
            "at most half, with twice the micro-batches or virtual stages, and without what uneven "
            "stages cost"
        ),
        is_communication=True,
        is_symptom=filling <= uneven,
    )


def find_bubbles(cluster: Cluster, medians: pd.DataFrame, *, named: bool) -> pd.Series[float]:
    """Return how long each rank waits for other stages per step."""
    rows = cluster.steps
    known = rows[rows["bubble_ns"] >= 0].groupby("rank")["bubble_ns"].median()
    stated = known.reindex(medians.index).fillna(0.0)
    rows = per_step(cluster)
    rows = rows[rows["kind"] == "p2p"]
    # In what the profiler states data moves, too: attention around a ring waits for little else.
    moved = rows.groupby("rank")["moved_ns"].sum().reindex(stated.index).fillna(0.0)
    stated = (stated - moved).clip(lower=0.0)
    of_pipeline = [not named or "pp" in parts(str(role)) for role in rows["role"]]
    waited = rows.loc[of_pipeline].groupby("rank")["waited_ns"].sum()
    waited = waited.reindex(stated.index).fillna(0.0)
    # What computation hides is no bubble.
    exposed = medians["communication_exposed_ns"]
    longer: pd.Series[float] = stated.where(stated > waited, waited)
    return longer.where(longer < exposed, exposed)


RULE = ClusterDiagnostic(
    id="NPU608",
    name="pipeline-bubbles",
    summary="stages of the pipeline wait for each other",
    advice=(
        "more micro-batches per step (--micro-batch-size smaller, --global-batch-size larger), or "
        "--num-layers-per-virtual-pipeline-stage"
    ),
    check=check,
)
