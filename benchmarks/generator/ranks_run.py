"""The runs of ranks that wait for each other: the last collective of a step ends together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.run import Run, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.generator.parameters import Parameters
    from benchmarks.generator.ranks import Layout
    from benchmarks.generator.text import Integers

SLOW_LINK, SMALL_NS, SMALL_COUNT = 0.4, 45_000, 200
"""Share of its speed that a slow link has; time and number of small collectives in a step."""
RETRANSMITTED_NS = 4_500_000_000
_BUBBLE = 0.25
_HOST_GAP_NS = 15_000


@dataclass(frozen=True)
class Waits:
    """What one rank waits in each step, in nanoseconds."""

    for_others: Integers
    bubble: int
    together: Integers
    """What all ranks of the job take longer for, whoever is at fault."""

    @property
    def total(self) -> Integers:
        """Return all of it."""
        whole: Integers = self.for_others + self.bubble + self.together
        return whole


def runs(parameters: Parameters) -> Iterator[Run]:
    """Yield the run of each rank; those that wait for others are simulated twice and kept once."""
    ranks = [_of_rank(parameters, rank) for rank in range(parameters.ranks)]
    if not parameters.waits:
        yield from map(simulate, ranks)
        return
    layout = parameters.layout
    own = np.array([_own_ns(each) for each in ranks])
    last = own.max(axis=0)
    together = _together(layout, last)
    bubble = round(_BUBBLE * float(np.median(last))) if layout.has("bubbles") else 0
    for each, taken in zip(ranks, own, strict=True):
        waits = Waits(last - taken, bubble if layout.pp > 1 else 0, together)
        yield replace(_stretch(simulate(each), waits.total), waits=waits)


def _of_rank(parameters: Parameters, rank: int) -> Parameters:
    layout = parameters.layout
    late = layout.late_step(rank)
    slow_host = layout.host_factor(rank) > 1
    return replace(
        parameters,
        rank=rank,
        compute_factor=parameters.compute_factor * layout.compute_factor(rank),
        outlier=parameters.outlier if late < 0 else late,
        gap_ns=parameters.gap_ns + (_HOST_GAP_NS if slow_host else 0),
    )


def _own_ns(parameters: Parameters) -> Integers:
    """Return computing and idle time of each step, of the device that takes longest."""
    run = simulate(replace(parameters, schedule=True))
    times = np.array([each.computing + each.free for each in run.splits])
    longest: Integers = times.reshape(parameters.steps, parameters.devices).max(axis=1)
    return longest


def _together(layout: Layout, last: Integers) -> Integers:
    extra = np.zeros_like(last)
    if layout.has("small-packets"):
        extra += SMALL_COUNT * SMALL_NS
    if layout.has("slow-link"):
        extra += (last * (1 / SLOW_LINK - 1) * 0.07).astype(np.int64)
    if (lost := layout.has("retransmission")) is not None:
        extra[lost.step] += RETRANSMITTED_NS
    return extra


def last_collectives(run: Run) -> dict[int, int]:
    """Return the row of the last collective of each step, by the index of the step."""
    rows = np.flatnonzero(run.program.collective[run.kernels.code])
    steps = run.launches.step[run.kernels.launch[rows]]
    return {int(step): int(row) for step, row in zip(steps, rows, strict=True)}


def _stretch(run: Run, waits: Integers) -> Run:
    """Make the last collective of each step longer; what comes behind it comes later."""
    kernels, launches = run.kernels, run.launches
    duration, host = kernels.duration_ns.copy(), launches.host_ns.copy()
    shift_kernels, shift_launches = np.zeros_like(duration), np.zeros_like(host)
    steps = [(each.start_ns, each.end_ns) for each in run.steps]
    shifts = np.zeros((len(steps), 2), np.int64)
    for step, row in last_collectives(run).items():
        wait, end = int(waits[step]), int(kernels.start_ns[row] + kernels.duration_ns[row])
        duration[row] += wait
        shift_kernels += np.where(kernels.start_ns >= end, wait, 0)
        begun = launches.start_ns < end
        shift_launches += np.where(begun, 0, wait)
        # A call that waits for the device returns that much later.
        host += np.where(begun & (launches.start_ns + launches.host_ns > end), wait, 0)
        shifts[step, 1] += wait
        shifts[step + 1 :] += wait
    moved = replace(kernels, start_ns=kernels.start_ns + shift_kernels, duration_ns=duration)
    called = replace(launches, start_ns=launches.start_ns + shift_launches, host_ns=host)
    late = tuple(
        replace(each, start_ns=each.start_ns + int(begin), end_ns=each.end_ns + int(end))
        for each, (begin, end) in zip(run.steps, shifts, strict=True)
    )
    return replace(run, launches=called, kernels=moved, steps=late)
