"""The shortest time of kernels: what they compute or move over the rates of the chip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.advisor.roofline.rates import Rates
    from npufix.advisor.roofline.work import Work

    Floats = NDArray[np.float64]

LIMITS = ("", "compute", "memory", "launch", "link")
COMPUTE, MEMORY, LAUNCH, LINK = range(1, len(LIMITS))


@dataclass(frozen=True)
class Bounds:
    """One row for each row of ``Work``."""

    time_ns: Floats
    """0 where nothing is known."""
    limit: NDArray[np.int8]
    """Position in ``LIMITS`` of what sets it."""


def compute_bounds(work: Work, rates: Rates) -> Bounds:
    """Return the longest of what its products take, its bytes, and the launch alone."""
    computing = work.operations / rates.operations[work.rate]
    moving = work.moved / rates.bytes_per_ns
    parts = np.stack([computing, moving, np.full(len(moving), rates.floor_ns)])
    limit = parts.argmax(axis=0).astype(np.int8) + 1
    time = np.where(work.known, parts.max(axis=0), 0.0)
    return Bounds(time, np.where(work.known, limit, 0).astype(np.int8))
