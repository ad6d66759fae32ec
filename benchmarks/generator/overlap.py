"""How the time of a step on a device splits, as step_trace_time.csv has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Nanoseconds; ``start_ns`` is that of the first kernel, 0 without kernels."""

    start_ns: int
    computing: int
    exposed: int
    overlapped: int
    communication: int
    free: int

    @property
    def stage(self) -> int:
        """From the first kernel to the end of the last."""
        return self.computing + self.exposed + self.free


def split_step(start: Integers, end: Integers, collective: NDArray[np.bool_]) -> Split:
    """Split the time from the first kernel to the end of the last."""
    if not len(start):
        return Split(0, 0, 0, 0, 0, 0)
    computing = _covered(start[~collective], end[~collective])
    communication = _covered(start[collective], end[collective])
    both = _covered(start, end)
    return Split(
        start_ns=int(start.min()),
        computing=computing,
        exposed=both - computing,
        overlapped=computing + communication - both,
        communication=communication,
        free=int(end.max() - start.min()) - both,
    )


def _covered(start: Integers, end: Integers) -> int:
    """Return the length of the union of intervals."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    begins = np.append(True, start[1:] > end[:-1])
    last = np.append(np.flatnonzero(begins)[1:] - 1, len(start) - 1)
    return int((end[last] - start[begins]).sum())
