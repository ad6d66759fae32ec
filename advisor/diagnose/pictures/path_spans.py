"""Where the critical path runs through the recorded time, for the lanes that show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from npufix.advisor.predict.graph.critical_path import CriticalPath

    Integers = NDArray[np.int64]


class PathSpans(NamedTuple):
    """One behind the other."""

    start: Integers
    end: Integers
    label: Integers
    """Of the kernel, -1 for what lies between two."""


def spans_of_path(
    path: CriticalPath, kernels: pd.DataFrame, begin_ns: int, end_ns: int
) -> PathSpans | None:
    """Return what is waited for in some time, ``None`` where the path does not run through it.

    A kernel that waited is drawn from when it could start, the end of what is before it.
    """
    own = kernels.loc[path.label[path.device_ns > 0], ["start_ns", "duration_ns"]]
    starts = own["start_ns"].to_numpy(np.int64)
    ends = starts + own["duration_ns"].to_numpy(np.int64)
    order = np.argsort(ends, kind="stable")
    order = order[(ends[order] > begin_ns) & (starts[order] < end_ns)]
    labels, start, end = own.index.to_numpy(np.int64)[order], starts[order], ends[order]
    known = kernels.loc[path.label, "start_ns"].to_numpy()
    if known.min(initial=end_ns) >= end_ns or known.max(initial=-1) < begin_ns:
        return None
    start = np.maximum(start, np.maximum.accumulate(np.concatenate([[begin_ns], end[:-1]])))
    since = np.concatenate([[begin_ns], end])
    until = np.concatenate([start, [end_ns]])
    between = np.flatnonzero(until > since)
    begins = np.concatenate([start, since[between]])
    by_begin = np.argsort(begins, kind="stable")
    columns = (
        begins,
        np.concatenate([end, until[between]]),
        np.concatenate([labels, np.full(len(between), -1)]),
    )
    return PathSpans(*(column[by_begin] for column in columns))


def between_kernels(path: CriticalPath) -> str:
    """Return what is waited for between kernels: without launches nobody knows what."""
    return "host" if path.parts["host"] or path.parts["loading"] else ""
