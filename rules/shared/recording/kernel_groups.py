"""Kernels that one diagnostic tells of together, if only by the name of the user's function."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, number, percent
from npufix.rules.shared.recording.observing import (
    compute_ns,
    find_named,
    per_step,
    places,
    share,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from npufix.rules.diagnostic import Recording

LEAST_SHARE = 0.01
"""Share of the step from which kernels are told, as for fusible windows (FUSIBLE)."""
LEAST_SHARE_OF_A_NAME = 0.002
"""Share of the step: a name is weak evidence, but what it costs is measured."""
PRIORITY = 0.05
"""Share of the compute time (PRIORITY)."""
_LEAST_SHARE_OF_STEP = 0.001
"""Share of the step: where almost nothing is computed, a twentieth of it is no storm."""


def tell_together(  # noqa: PLR0913 - the parts of an observation
    what: str,
    rows: pd.DataFrame,
    recording: Recording,
    *,
    basis: str,
    saved_ns: float | None = math.inf,
    likely_ns: float | None = None,
    evidence: tuple[tuple[str, str], ...] = (),
    least: float = LEAST_SHARE,
    advice: str = "",
    goes: bool = False,
) -> Iterator[Observation]:
    """Yield one observation about kernels that take at least this share of the step.

    ``what`` names them and is followed by numbers; ``saved_ns``, over all steady steps, is the most
    that can be saved: what they take, and ``None`` if nothing tells; ``likely_ns`` is what is
    expected of it, ``None`` half. ``goes``: it is that of kernels that are not launched any more.
    """
    spent = int(rows["duration_ns"].sum())
    cost = per_step(spent, recording)
    if not cost or share(cost, recording) < least:
        return
    calls = len(rows) / max(1, recording.step_count)
    saving = None if saved_ns is None else (0, per_step(max(0, min(saved_ns, spent)), recording))
    yield Observation(
        what=(
            f"{what}: {format_count(calls, 'kernel')} per step, {milliseconds(cost)} "
            f"({percent(share(cost, recording))} of the step)"
        ),
        evidence=evidence,
        cost_ns=cost,
        saving_ns=saving,
        likely_ns=None
        if likely_ns is None
        else per_step(min(max(0.0, likely_ns), spent), recording),
        basis=basis,
        places=places(rows, rows["duration_ns"].to_numpy(), recording),
        kernels=Labels(rows.index),
        advice=advice,
        goes=goes,
    )


def find_asked_by(recording: Recording, pattern: str) -> pd.DataFrame:
    """Return the kernels that host operators with these names asked for."""
    kernels = recording.kernels
    operators = find_named(recording.host_ops, pattern).index.to_numpy()
    if not len(operators):
        return kernels[:0]
    found: pd.DataFrame = kernels[np.isin(kernels["host_op"].to_numpy(), operators)]
    return found


def find_asked_within(recording: Recording, pattern: str) -> pd.DataFrame:
    """Return the kernels whose host operators lie within others with these names.

    ``copy_bucket_to_grad`` of DDP asks for no kernel by itself: the ``aten::copy_`` inside does.
    """
    kernels, ops = recording.kernels, recording.host_ops
    around = find_named(ops, pattern)
    if around.empty:
        return kernels[:0]
    begins = np.sort(around["start_ns"].to_numpy())
    ends = np.sort((around["start_ns"] + around["duration_ns"]).to_numpy())
    starts = ops["start_ns"].to_numpy()
    at = np.searchsorted(begins, starts, side="right") - 1
    # Operators of one name follow each other, so the last one that began is the one around.
    inside = (at >= 0) & (starts + ops["duration_ns"].to_numpy() <= ends[at.clip(min=0)])
    found: pd.DataFrame = kernels[np.isin(kernels["host_op"].to_numpy(), ops.index[inside])]
    return found


def bucket_copies(recording: Recording) -> pd.DataFrame:
    """Return the kernels with which DDP copies reduced buckets back into the gradients."""
    return find_asked_within(recording, r"(torch\.distributed\.ddp\.)?reducer::copy_bucket_to_grad")


def in_functions(recording: Recording, pattern: str, types: str = ".*") -> pd.DataFrame:
    """Return the kernels of these Types that functions of the user with these names asked for."""
    rows = find_named(recording.kernels, pattern, "function")
    rows = rows[~rows["communication"].to_numpy(bool)]
    return find_named(rows, types, "type")


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """A computation that goes by one name wherever it is copied to, and what does it at once."""

    pattern: str
    """A regular expression over names of functions."""
    what: str
    instead: str
    """What to type."""
    types: str = ".*"
    """Types of its kernels; those of the fused operator itself are left out."""


def by_name(recording: Recording, functions: Sequence[NamedFunction]) -> Iterator[Observation]:
    """Yield one observation per computation that launches several kernels for each call."""
    for function in functions:
        rows = in_functions(recording, function.pattern, function.types)
        # One kernel per line is as good as it gets.
        lines = rows.groupby(["path", "function"], observed=True)["line"].nunique()
        if rows.empty or (rows["type"].nunique() < 2 and lines.max() < 2):  # noqa: PLR2004 - more than one
            continue
        names = sorted({str(name) for name in rows["function"].unique()})
        yield from tell_together(
            f"{function.what} in {', '.join(names)}",
            rows,
            recording,
            basis=f"at most all of it; {function.instead} is not in this dump",
            evidence=(("Types", ", ".join(sorted({str(name) for name in rows["type"].unique()}))),),
            least=LEAST_SHARE_OF_A_NAME,
            advice=function.instead,
            goes=True,
        )


def takes_too_much(rows: pd.DataFrame, recording: Recording) -> bool:
    """Tell whether conversions take a share of the compute time and of the step that matters."""
    spent = int(rows["duration_ns"].sum())
    if not spent or share(per_step(spent, recording), recording) < _LEAST_SHARE_OF_STEP:
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
        goes=True,
    )
