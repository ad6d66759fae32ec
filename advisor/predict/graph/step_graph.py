"""A recorded run as a graph: what the host launches, what runs when, and who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.predict.graph.segments import Segments
from npufix.advisor.predict.graph.stretches import Stretch, stretches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HostWait:
    """The host waits before it launches kernel ``before``: for a stream, or for the next batch."""

    before: int
    """Row of ``StepGraph``; its length where nothing is launched behind."""
    delta_ns: float
    """From the launch (or the wait) before until the host comes here."""
    own_ns: float
    """What the call takes where there is nothing to wait for."""
    stream: int = -1
    """Of what; -1: of the process that loads."""
    behind_ns: float = 0.0
    """From the end of the last kernel of the stream until the host goes on; of a batch, when it was
    there, from the beginning of the first step."""
    period_ns: float = 0.0
    """How often a batch comes, on average; 0 where the loader is ahead of the steps."""
    period_spread: float = 0.0
    """How far that may be off (one standard deviation), a share of it; 0: nothing says it."""
    operator: int = -1
    """Label of the operator in ``Profile.host_ops``, -1 where the wait was only seen."""


@dataclass(frozen=True)
class StepGraph:
    """Some steps of a run; one row a kernel, in the order in which the host launches them.

    A kernel starts when it has been launched (``latency_ns`` ago), the one before it on its stream
    has ended (``gap_ns`` ago), and the row ``waits_for`` has ended (``behind_ns`` ago).
    """

    label: Integers
    """Index of ``Profile.kernels``."""
    stream: Integers
    duration_ns: Floats
    delta_ns: Floats
    """From the launch, or the wait of the host, before until this launch."""
    own_ns: Floats
    """What the operator takes of that, 0 where it is not known."""
    latency_ns: Floats
    gap_ns: Floats
    waits_for: Integers
    """Row whose end it waits for on another stream, -1 if none."""
    behind_ns: Floats
    host_waits: tuple[HostWait, ...]
    """In order."""
    rest_ns: float
    """From the last launch (or wait) to the end of the last step on the host."""
    depth: int
    """How many launched kernels may wait for the device; 0 for any number."""
    steps: int
    measured_ns: float
    """The average of these steps, as recorded."""
    spread: float
    """Their standard deviation, as a share of that; 0 of one step."""
    alike: float
    """How many steps count as one: what slows one of them often slows the next."""
    repeats: bool
    """Whether one step follows the other; a recording without steps does not."""
    coarse: bool
    """Without the launches: what the host needs is in ``gap_ns``."""
    streams: int
    busy_ns: Floats
    """For how long the streams are still busy with what was launched before."""
    lead_ns: float
    """How much later than on the host the first step begins on the device."""
    communication: NDArray[np.bool_]
    backward: NDArray[np.bool_]
    """Which rows the backward pass launches."""

    @cached_property
    def awaited(self) -> Integers:
        """Rows that others wait for, in order."""
        return np.unique(self.waits_for[self.waits_for >= 0])

    @cached_property
    def segments(self) -> Segments:
        """All rows between one wait and the next, of a graph without a host."""
        return Segments(self)

    @cached_property
    def stretches(self) -> list[Stretch]:
        """All rows, in the order in which they are replayed."""
        return stretches(self)
