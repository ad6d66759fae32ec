"""A collective over the network takes so long that packets were lost and sent again.

What: a collective that moves data over RDMA takes about 4 s or more, and not because it waits for
another rank.

Why it is slow on the NPU: a lost packet is sent again only after a timeout of about 4 s, during
which all ranks of the group wait.

Evidence: Elapse Time, Wait Time and the RDMA transfer of each collective in communication.json.

Use instead: have the switches checked (PFC, ECN, buffer); the traffic class must be the one that
they protect: ``HCCL_RDMA_TC=132``, ``HCCL_RDMA_SL=4``.

Safety: nothing changes in the program.

References: rdma_analysis.yaml of msprof-analyze (threshold 4 s); solution_to_top1.md of the
troubleshooting guide; HCCL_RDMA_TC.md, HCCL_RDMA_SL.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import milliseconds
from npufix.rules.shared.recording.collectives import (
    RETRANSMIT_NS,
    kernels_of,
    of_steady_steps,
    waiting_ratio,
)
from npufix.rules.shared.recording.observing import places
from npufix.rules.shared.recording.run_settings import find_recorded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Recording

WAIT_FALSE = 0.95
"""Share of waiting from which a collective is no work at all."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all such collectives together."""
    rows, steps = of_steady_steps(recording.signals.collectives, recording)
    transports, _ = of_steady_steps(recording.signals.transports, recording)
    over_rdma = transports[(transports["transport"] == "RDMA") & (transports["size_bytes"] > 0)]
    slow = rows[(rows["elapse_ns"] > RETRANSMIT_NS) & rows["name"].isin(over_rdma["name"].unique())]
    slow = slow[waiting_ratio(slow) <= WAIT_FALSE]
    if slow.empty:
        return
    cost = min(int(slow["elapse_ns"].sum()) // steps, recording.step_ns)
    own = kernels_of(slow["name"], recording)
    longest = slow.iloc[int(slow["elapse_ns"].to_numpy().argmax())]
    groups = {str(group) for group in slow["group"] if group}
    variables = recording.environment.variables
    yield Observation(
        what=(
            f"{len(slow)} collectives over RDMA take about 4 s or more, the longest "
            f"{milliseconds(longest['elapse_ns'])}"
        ),
        evidence=(
            ("longest", str(longest["name"])),
            ("groups", str(len(groups))),
            ("HCCL_RDMA_TC", variables.get("HCCL_RDMA_TC") or "not recorded or not set"),
            ("HCCL_RDMA_SL", variables.get("HCCL_RDMA_SL") or "not recorded or not set"),
        ),
        cost_ns=cost,
        basis="what the collectives take without loss is not in the dump",
        places=places(own, own["duration_ns"].to_numpy(), recording),
        kernels=Labels(own.index),
        advice=_advice(recording),
    )


def _advice(recording: Recording) -> str:
    """Return what to check: HCCL uses class 132 and level 4 where nothing is set."""
    traffic = find_recorded(recording, "HCCL_RDMA_TC") or "132, the default"
    level = find_recorded(recording, "HCCL_RDMA_SL") or "4, the default"
    return (
        f"have the switches checked (PFC, ECN) for the traffic class ({traffic}) and the service "
        f"level ({level}) of HCCL; where they protect others, export HCCL_RDMA_TC=4*DSCP "
        "HCCL_RDMA_SL=LEVEL"
    )


RULE = Diagnostic(
    id="NPU504",
    name="rdma-retransmission",
    summary="packets between servers are lost and sent again",
    advice=(
        "have the switches checked (PFC, ECN); export HCCL_RDMA_TC=132 HCCL_RDMA_SL=4 (the "
        "defaults), or as the switches are configured"
    ),
    check=check,
)
