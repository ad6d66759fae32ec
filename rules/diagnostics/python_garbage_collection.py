"""Python's garbage collector stops the host, and the device runs dry.

What: runs of the garbage collector longer than 1 ms during which the device is idle.

Why it is slow on the NPU: a collection of the oldest generation visits every object that Python
holds, with all threads of Python stopped; nothing is launched meanwhile. Each rank does it at
another time, so that in a job of many ranks nearly every step waits for one of them.

Evidence: the records of the collector (``gc_detect_threshold`` of the profiler), and how long the
device is idle while they last.

Use instead: ``gc.freeze()`` after building the model, then ``gc.disable()`` and ``gc.collect()``
every N steps on all ranks at once; or ``gc.set_threshold(700, 10, 1000)``.

Safety: results stay the same; memory of the host grows between collections if objects refer to each
other in circles.

References: gc.yaml of msprof-analyze (threshold 1 ms); optimization_recommendations.md of the
FrameworkPTAdapter guide (PETR, 5 nodes: 2.68 s to 2.60 s per step).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.observing import (
    idle_time,
    per_step,
    share,
)
from npufix.rules.shared.recording.pauses import (
    OF_COLLECTIONS,
    sooner_without_calls,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Recording

GC_1_MS = 1_000_000
"""Nanoseconds of one run."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for the long runs together."""
    runs = recording.signals.gc
    runs = runs[runs["duration_ns"] > GC_1_MS]
    if runs.empty or recording.kernels.empty:
        return
    start, duration = runs["start_ns"].to_numpy(), runs["duration_ns"].to_numpy()
    idle = idle_time(recording, to_marks=True)
    cost = per_step(int(idle.covered(start, start + duration).sum()), recording)
    if not cost:
        return
    # Of those in steps that are left out nothing is waited for here.
    ends = np.maximum.accumulate(idle.end_ns)
    own = np.searchsorted(ends, start) < np.searchsorted(idle.start_ns, start + duration)
    start, duration = start[own], duration[own]
    count = format_count(len(start) / max(1, recording.step_count), "run")
    yield Observation(
        what=(
            f"{count} of the garbage collector longer than 1 ms per step; the device is idle for "
            f"{milliseconds(cost)} of them ({percent(share(cost, recording))} of the step)"
        ),
        evidence=(
            ("longest run", milliseconds(duration.max())),
            ("all long runs", milliseconds(duration.sum())),
        ),
        cost_ns=cost,
        saving_ns=(0, cost),
        basis="at most the idle time during the runs",
        sooner_ns=sooner_without_calls(start, duration, recording),
        is_idle=True,
        is_divided=True,
    )


RULE = Diagnostic(
    id="NPU409",
    name="python-garbage-collection",
    summary="Python's garbage collector stops the host while the device is idle",
    advice=OF_COLLECTIONS,
    check=check,
)
