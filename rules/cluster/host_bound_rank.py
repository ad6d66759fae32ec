"""A rank is late because its device waits for the host.

What: the device of a rank is idle for longer than those of its peers, by more than 5 % of their
time, and the rank is late as a whole. Or no rank stands out, but over all ranks idle time and
exposed communication go against each other.

Why it is slow on the NPU: the host of that rank launches later (a busy or badly bound CPU, data
loading, garbage collection, memory reallocation). The others wait for it in the next collective:
what is Free there is communication here.

Evidence: Free and Communication(Not Overlapped) of step_trace_time on all ranks, and their rank
correlation.

Use instead: on that host, bind processes to the cores of their device (``export
CPU_AFFINITY_CONF=1 TASK_QUEUE_ENABLE=2``), stop other load, check the data loader; diagnose the
rank alone for what its host does meanwhile.

Safety: advice. Thresholds as for slow-computing-rank; for the correlation at most -0.7 over at
least eight ranks of which the idle times differ by 5 % of the step.

References: solution_to_top1 of the troubleshooting guide (dispatch-caused slow rank: Free and
Communication negatively correlated); slow_rank_analyzer of msprof-analyze (5 %).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.cluster_diagnostic import ClusterDiagnostic, ClusterObservation
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.ranks.comparing import (
    FLOOR_NS,
    GAP,
    correlation,
    format_ranks,
    late_ranks,
    typical,
)
from npufix.rules.shared.ranks.groups import peers

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.cluster_diagnostic import Cluster
    from npufix.rules.shared.ranks.comparing import Late

_ENOUGH = 8
"""Ranks; with fewer, a correlation of -0.7 is often chance."""
_AGAINST = -0.7
_CERTAIN = 0.5
"""Of the lead: a rank that waits in a collective for 5 ms has not to wait for its own host, which
would be 2 ms late, meanwhile."""
_HIDES = 0.5
"""Of what communication of the late rank nothing hides, at most."""
_QUARTER = 0.25


def check(cluster: Cluster) -> Iterator[ClusterObservation]:
    """Yield one observation per stage of the pipeline."""
    if cluster.steps.empty:
        return
    single = False
    for late in late_ranks(cluster, "free_ns"):
        single = True
        waits = late.medians["communication_exposed_ns"]
        others = milliseconds(waits.loc[list(late.others)].median())
        low, high = late.saving_ns()
        # A late host launches its collectives late, too, so that less of them hides than elsewhere.
        exposed = float(waits.loc[late.ranks[0]])
        high += round(_HIDES * min(exposed, float(waits.loc[list(late.others)].min())))
        likely = _likely_ns(late, cluster)
        least = round(_CERTAIN * low) if likely is None else min(round(_CERTAIN * low), likely)
        yield ClusterObservation(
            what=(
                f"the device is idle {milliseconds(late.gap_ns)} per step longer on {late.who} "
                f"than on {late.compared}: {late.times}"
            ),
            ranks=late.ranks,
            evidence=(
                ("exposed communication of the others", f"{others} per step"),
                ("exposed communication of this rank", milliseconds(exposed)),
                *_list_correlated(late.medians),
            ),
            cost_ns=late.gap_ns,
            saving_ns=(least, high),
            likely_ns=likely,
            basis=(
                "half of the lead over all other ranks, whose hosts may be late while they wait, "
                "to that over the typical one"
            ),
            is_idle=True,
        )
    if not single:
        medians = typical(cluster)
        for members in peers(cluster, [int(rank) for rank in medians.index]):
            yield from _uneven(medians.loc[members])


def _likely_ns(late: Late, cluster: Cluster) -> int | None:
    """Return what the step gains when the host is as quick as others, by what these need to launch.

    A host that needs 23 ms where others need 15 is 8 ms late, however long the others, which wait
    in collectives meanwhile, do not wait for their own.
    """
    needs = {rank: detail.host_ns for rank, detail in cluster.details.items() if detail.host_ns}
    others = [needs[rank] for rank in late.others if rank in needs]
    own = needs.get(late.ranks[0], 0)
    if not others or own <= max(others):
        return None
    return round(late.step_ns * (1 - float(np.mean(others)) / own))


def _list_correlated(rows: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    if len(rows) < _ENOUGH:
        return ()
    return (("correlation of idle time and communication", f"{_correlation(rows):.2f}"),)


def _correlation(rows: pd.DataFrame) -> float:
    return correlation(
        rows["free_ns"].to_numpy(np.float64),
        rows["communication_exposed_ns"].to_numpy(np.float64),
    )


def _uneven(rows: pd.DataFrame) -> Iterator[ClusterObservation]:
    """Yield an observation where no rank stands out and yet idle time makes them late."""
    step = float(rows["step_ns"].median())
    if len(rows) < _ENOUGH or _correlation(rows) > _AGAINST:
        return
    idle = rows["free_ns"].sort_values(ascending=False, kind="stable")
    low, high = (float(idle.quantile(share)) for share in (_QUARTER, 1 - _QUARTER))
    gap = float(rows["own_ns"].max() - rows["own_ns"].median())
    if high - low < max(GAP * step, FLOOR_NS) or gap < FLOOR_NS:
        return
    late = idle[idle >= high]
    yield ClusterObservation(
        what=(
            f"over {len(rows)} ranks the device is idle between {milliseconds(idle.min())} and "
            f"{milliseconds(idle.max())} per step, and where it is idle longer the communication "
            f"is shorter: the others wait for late launches"
        ),
        ranks=tuple(int(rank) for rank in late.index),
        evidence=(
            ("correlation of idle time and communication", f"{_correlation(rows):.2f}"),
            ("the middle half differs by", f"{percent((high - low) / step)} of the step"),
            ("idle longest", format_ranks([int(rank) for rank in late.index])),
        ),
        cost_ns=round(gap),
        saving_ns=(0, round(gap)),
        basis="at most what the last rank is behind the typical one",
        is_idle=True,
    )


RULE = ClusterDiagnostic(
    id="NPU602",
    name="host-bound-rank",
    summary="a rank is late because its device waits for the host",
    advice=(
        "on that host: export CPU_AFFINITY_CONF=1 TASK_QUEUE_ENABLE=2, stop other load, check the "
        "data loader; npufix diagnose DUMP --rank N says what its host does"
    ),
    check=check,
    gpu_advice=(
        "on that host: bind the process to the cores beside its device (numactl), stop other load, "
        "check the data loader; npufix diagnose DUMP --rank N says what its host does"
    ),
)
