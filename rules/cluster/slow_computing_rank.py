"""A rank computes longer than the ranks that do the same work.

What: computing takes more than 5 % longer on a rank than on the median of its peers (the ranks of
its pipeline stage), and the rank is late as a whole.

Why it is slow on the NPU: every collective begins when its last rank arrives. One late rank makes
the step of all ranks longer; on the others the time shows as communication.

Evidence: Computing of step_trace_time on all ranks; op_statistic tells the same calls that take
longer (the clock, the temperature or a neighbour on the chip) from more calls or other inputs
(uneven work). Where a late rank and a peer were read as a whole, the lines that differ.

Use instead: with equal calls that all take longer, check clock and temperature (``npu-smi info -t
common -i ID``, ``npu-smi info -t temp -i ID``) and other processes on the device, or give the job
another device. With more calls or longer inputs, spread the work evenly.

Safety: advice. Found is what is beyond 5 % of the time of a rank, five standard deviations of its
peers (from the median absolute deviation), 2 % of the step and 0.1 ms; of two ranks, 10 %.

References: slow_rank_analyzer of msprof-analyze (5 %); positioning_process of the troubleshooting
guide.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.rules.cluster import unbalanced_experts
from npufix.rules.cluster_diagnostic import ClusterDiagnostic, ClusterObservation
from npufix.rules.shared.quantities import milliseconds
from npufix.rules.shared.ranks.comparing import late_ranks
from npufix.rules.shared.ranks.groups import is_place
from npufix.rules.shared.ranks.operators import CLOCKS, SAME_KERNELS, compare, lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.cluster_diagnostic import Cluster
    from npufix.rules.shared.ranks.comparing import Late
    from npufix.rules.shared.ranks.operators import Cause

_CLOCK = (
    "check clock, temperature and other processes of the device (npu-smi info -t common -i ID; "
    "npu-smi info -t temp -i ID); try the job on another device"
)
_WORK = "spread the work evenly: the rank makes more calls than its peers (data, experts, layers)"
_INPUTS = (
    "compare the lengths of the inputs (packing, buckets, sampler); where they are the same, "
    "compare the kernels of both ranks"
)
_EXPLAINS = 0.5
"""Share of the gap that the products of its experts take, from which they are why."""
_ADVICE = {"clock": _CLOCK, "work": _WORK, "inputs": _INPUTS}
_WHY = {
    "clock": "all operators take longer in the same number of calls: clock, temperature, neighbour",
    "work": "it makes more calls: more work",
    "inputs": "some operators take longer in the same number of calls: longer inputs, or memory",
}


def check(cluster: Cluster) -> Iterator[ClusterObservation]:
    """Yield one observation per stage of the pipeline that has such ranks."""
    if cluster.steps.empty:
        return
    experts = {seen.ranks[0]: seen.cost_ns for seen in unbalanced_experts.check(cluster)}
    for late in late_ranks(cluster, "computing_ns"):
        if is_place(cluster, late.ranks):  # unbalanced-group
            continue
        if late.ranks[0] in experts and experts[late.ranks[0]] >= _EXPLAINS * late.gap_ns:
            continue  # unbalanced-experts
        cause = compare(cluster, late.ranks[0], late.others)
        own = late.medians.loc[list(late.others), "communication_exposed_ns"].median()
        saving = _saving(late, cluster)
        if _is_of_experts(cause):  # the tokens go to the others: all come to the mean then
            share = len(late.others) / (len(late.others) + len(late.ranks))
            saving = round(saving[0] * share), round(saving[1] * share)
        yield ClusterObservation(
            what=_what(late, cause),
            ranks=late.ranks,
            evidence=(
                *((("why", _WHY[cause.kind]),) if cause.kind else ()),
                *cause.evidence,
                ("exposed communication of the others", f"{milliseconds(own)} per step"),
            ),
            cost_ns=late.gap_ns,
            saving_ns=saving,
            # How far the others are from each other is mostly luck, another one in each step.
            likely_ns=round((saving[0] + 3 * saving[1]) / 4),
            basis=(
                "the lead over all other ranks less the communication that hides behind it, to "
                "that over the typical one"
            ),
            # All lines are slower then, and none of them is why.
            places=() if _device(cause)[0] else lines(cluster, late.ranks[0], late.others),
            advice=_advice(cause),
        )


def _advice(cause: Cause) -> str:
    """Return what to do."""
    return unbalanced_experts.RULE.advice if _is_of_experts(cause) else _ADVICE.get(cause.kind, "")


def _is_of_experts(cause: Cause) -> bool:
    """Tell whether grouped products take longer: those of experts with more tokens.

    Where the buffers of all-to-all are padded to one size, its bytes do not tell it.
    """
    operator = cause.evidence[0][0] if cause.kind == "inputs" and cause.evidence else ""
    return bool(re.fullmatch(unbalanced_experts.PRODUCT, operator))


def _saving(late: Late, cluster: Cluster) -> tuple[int, int]:
    """Return what the step gains; what hid behind the longer computing is seen then."""
    low, high = late.saving_ns()
    own = cluster.steps[cluster.steps["rank"] == late.ranks[0]]
    hidden = float((own["communication_ns"] - own["communication_exposed_ns"]).median())
    longer = high / max(1.0, float(own["computing_ns"].median()))
    return max(0, round(low - max(0.0, hidden) * longer)), high


def _device(cause: Cause) -> tuple[str, str]:
    """Return the fact that says that it is the device that is slow, empty where none does."""
    first = cause.evidence[0] if cause.kind == "clock" and cause.evidence else ("", "")
    return first if first[0] in {CLOCKS, SAME_KERNELS} else ("", "")


def _what(late: Late, cause: Cause) -> str:
    """Say who is late and, where something says that it is the device, what."""
    gap, (name, told) = milliseconds(late.gap_ns), _device(cause)
    whom, compared, times = late.who, late.compared, late.times
    if name == CLOCKS:
        return (
            f"computing takes {gap} per step longer on {whom} than on {compared}, as the AI cores "
            f"run at {told}: {times}"
        )
    if name == SAME_KERNELS:
        return (
            f"computing takes {gap} per step longer on {whom} than on {compared}, as the same "
            f"kernels take {told}: {times}"
        )
    if _is_of_experts(cause) and cause.is_mostly_first:
        return (
            f"computing takes {gap} per step longer on {whom} than on {compared}, most of it in "
            f"the grouped products of experts, which get more tokens there: {times}"
        )
    return f"computing takes {gap} per step longer on {whom} than on {compared}: {times}"


RULE = ClusterDiagnostic(
    id="NPU601",
    name="slow-computing-rank",
    summary="a rank computes longer than its peers, which wait for it",
    advice=f"{_CLOCK}; with more calls or longer inputs, spread the work evenly",
    check=check,
    gpu_advice=(
        "check clock, temperature and other processes of the device (nvidia-smi or rocm-smi); with "
        "more calls or longer inputs, spread the work evenly"
    ),
)
