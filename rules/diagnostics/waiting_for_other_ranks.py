"""Collectives that wait for another rank instead of moving data.

What: collectives of which more than 20 % is waiting; above 95 % they do nothing else.

Why it is slow on the NPU: a collective begins when its last rank arrives. Its time on a fast rank
is the lead over the slowest one, and no faster network makes it shorter. In a pipeline it is the
bubble: the stage before has not sent yet.

Evidence: Wait Time and Transit Time of each collective in communication.json.

Use instead: compare the ranks: the one that waits least is the slow one, and what it does meanwhile
(free time, more work, a lower clock) is the thing to change. For pipelines, more micro-batches.

Safety: advice.

References: communication_performance_metrics.md of the FrameworkPTAdapter guide (0.2); rules of a
published anomaly skill (0.95).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.collectives import (
    LEAST_SHARE,
    collective_times,
    kernels_of,
    longest_collectives,
    payload_bytes,
    waiting,
)
from npufix.rules.shared.recording.observing import places, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording

WAIT_FALSE = 0.95
"""Share of waiting from which a collective is no work at all."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for collectives that only wait, one for those that wait as well."""
    rows, steps = collective_times(recording)
    rows = waiting(rows)
    only = rows["ratio"] > WAIT_FALSE
    yield from _observation(rows[only], steps, recording, "did nothing else")
    yield from _observation(rows[~only], steps, recording, "also moved data")


def _observation(
    rows: pd.DataFrame, steps: int, recording: Recording, they: str
) -> Iterator[Observation]:
    waited = int(rows["waiting_ns"].sum()) // steps
    cost = min(waited, _measure_exposed(recording))
    if share(cost, recording) < LEAST_SHARE:
        return
    own = kernels_of(rows["name"], recording)
    spent = own["duration_ns"].to_numpy()
    part = min(1.0, cost * max(1, recording.step_count) / max(1, int(spent.sum())))
    yield Observation(
        what=(
            f"{milliseconds(cost)} per step ({percent(share(cost, recording))} of the step) are "
            f"waiting for other ranks, in {format_count(len(rows) / steps, 'collective')} that {they}: "
            f"{longest_collectives(rows, 'waiting_ns', steps, payload_bytes(recording))}"
        ),
        evidence=(
            ("moved data", f"{milliseconds(rows['moving_ns'].sum() / steps)} per step"),
            ("kind", ", ".join(sorted({str(kind) for kind in rows["kind"] if kind}))),
        ),
        cost_ns=cost,
        basis="what the slowest rank would gain is in its dump, not in this one",
        places=places(own, spent * part, recording),
        kernels=Labels(own.index),
        is_symptom=True,
    )


def _measure_exposed(recording: Recording) -> int:
    """Return how much communication is not hidden: waiting behind computation costs nothing."""
    if recording.steps.empty:
        return recording.step_ns
    return min(round(float(recording.steps["communication_exposed_ns"].mean())), recording.step_ns)


RULE = Diagnostic(
    id="NPU502",
    name="waiting-for-other-ranks",
    summary="collectives wait for another rank instead of moving data",
    advice=(
        "compare the ranks: diagnose the one that waits least; more micro-batches where a pipeline "
        "waits"
    ),
    check=check,
)
