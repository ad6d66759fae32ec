"""Kernels that only convert tensors, where they take a share of the compute time that matters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import milliseconds, number, percent
from npufix.rules.shared.recording.observing import compute_ns, per_step, places, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording

PRIORITY = 0.05
"""Share of the compute time (PRIORITY)."""
_LEAST_SHARE = 0.001
"""Share of the step: where almost nothing is computed, a twentieth of it is no storm."""


def takes_too_much(rows: pd.DataFrame, recording: Recording) -> bool:
    """Tell whether conversions take a share of the compute time and of the step that matters."""
    spent = int(rows["duration_ns"].sum())
    if not spent or share(per_step(spent, recording), recording) < _LEAST_SHARE:
        return False
    return spent >= PRIORITY * compute_ns(recording)


def conversion_storm(
    noun: str,
    rows: pd.DataFrame,
    evidence: tuple[tuple[str, str], ...],
    basis: str,
    recording: Recording,
) -> Iterator[Observation]:
    """Yield one observation about all conversions together."""
    spent = int(rows["duration_ns"].sum())
    cost, steps = per_step(spent, recording), max(1, recording.step_count)
    yield Observation(
        what=(
            f"{number(len(rows) / steps)} {noun} kernels per step take {milliseconds(cost)}, "
            f"{percent(spent / compute_ns(recording))} of the compute time"
        ),
        evidence=evidence,
        cost_ns=cost,
        saving_ns=(0, cost),
        likely_ns=cost,
        basis=basis,
        places=places(rows, rows["duration_ns"].to_numpy(), recording),
        kernels=Labels(rows.index),
    )
