"""trace_view.json: a bare array, on one line, that the profiler writes in two phases."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from benchmarks.generator.trace_device import device_events
from benchmarks.generator.trace_host import flows_to_device, host_events

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.generator.run import Run


def write(run: Run, path: Path) -> None:
    """Write the file, a few thousand events at a time."""
    with path.open("w", encoding="utf-8", newline="") as file:
        separator = "["
        for events in chain(host_events(run), device_events(run), flows_to_device(run)):
            if events:
                file.write(separator)
                file.write(", ".join(events))
                separator = ", "
        file.write("]")
