"""Long gaps in which the host did something else than launch kernels, and what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npufix.rules.diagnostic import kept
from npufix.rules.shared.recording.observing import explained_ns, idle_time

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.observing import Idle, Integers

SHORTEST_NS = 1_000_000
"""A host that is merely slow launches many kernels in that time."""
_TYPICAL = 10
"""Times the median gap: where all gaps are long, none is a pause."""
_COVERS = 0.5
"""Share of a pause from which a call says what the host did."""
_AS_GOOD = 0.8
"""Share of the best cover from which an inner call says it more exactly."""
_MARK = "ProfilerStep#"


class Pauses(NamedTuple):
    """Gaps of ``idle``; ``idle_ns`` is what no other finding explains, 0 where it is no pause."""

    idle: Idle
    idle_ns: Integers

    @property
    def rows(self) -> NDArray[np.int64]:
        """Return which gaps are pauses."""
        return np.flatnonzero(self.idle_ns)


@kept
def find_pauses(recording: Recording) -> Pauses:
    """Return the gaps of 1 ms or more whose kernel was launched only after the device ran dry.

    A wait for a batch, for a value of the device and for the garbage collector is none.
    """
    idle = idle_time(recording)
    gaps = idle.end_ns - idle.start_ns
    none = np.zeros(len(gaps), np.int64)
    if not len(gaps):
        return Pauses(idle, none)
    launched = recording.kernels["launch_ns"].to_numpy()[idle.next_kernel]
    late = np.where(launched >= 0, np.clip(launched - idle.start_ns, 0, gaps), 0)
    left = np.minimum(late, np.clip(gaps - explained_ns(recording, idle), 0, None))
    short = gaps[gaps < SHORTEST_NS]
    usual = float(np.median(short)) if len(short) else 0.0
    return Pauses(idle, np.where(left >= max(SHORTEST_NS, _TYPICAL * usual), left, none))


def calls_in(pauses: Pauses, recording: Recording) -> Integers:
    """Return the row of ``host_ops`` that fills each pause, -1 where it is Python between calls.

    Of calls around each other the innermost that covers about as much: the copy in a function.
    """
    rows = _long_calls(recording.host_ops)
    long = recording.host_ops.iloc[rows]
    starts = long["start_ns"].to_numpy()
    ends = starts + long["duration_ns"].to_numpy()
    found = []
    for at in pauses.rows:
        begin, end = pauses.idle.start_ns[at], pauses.idle.end_ns[at]
        cover = np.minimum(ends, end) - np.maximum(starts, begin)
        best = cover.max(initial=0)
        if best < _COVERS * pauses.idle_ns[at]:
            found.append(-1)
            continue
        good = np.flatnonzero(cover >= _AS_GOOD * best)
        innermost = good[np.argmin((ends - starts)[good])]
        found.append(int(rows[innermost]))
    return np.array(found, np.int64)


def _long_calls(ops: pd.DataFrame) -> Integers:
    """Return the rows of the calls that may fill a pause, without the marks around steps."""
    names = ops["name"].array
    marks = np.array([*(str(n).startswith(_MARK) for n in names.categories), False], np.bool_)
    long = (ops["duration_ns"] >= _COVERS * SHORTEST_NS).to_numpy(bool)
    return np.flatnonzero(long & ~marks[names.codes]).astype(np.int64)
