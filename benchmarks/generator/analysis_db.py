"""analysis.db: how steps split, and what collectives did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.generator.collectives import GROUP, TRANSPORTS, collectives, links, matrix
from benchmarks.generator.sqlite_file import new_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.generator.run import Run

    Rows = Iterator[tuple[object, ...]]

_STEPS = (
    "step TEXT, computing NUMERIC, communication_not_overlapped NUMERIC, overlapped NUMERIC, "
    "communication NUMERIC, free NUMERIC, stage NUMERIC, bubble NUMERIC, "
    "communication_not_overlapped_and_exclude_receive NUMERIC, preparing NUMERIC"
)
_BANDWIDTH = (
    "hccl_op_name TEXT, group_name TEXT, transport_type TEXT, transit_size NUMERIC, "
    "transit_time NUMERIC, bandwidth NUMERIC, large_packet_ratio NUMERIC, package_size NUMERIC, "
    "count NUMERIC, total_duration NUMERIC, step TEXT, type TEXT"
)
_MATRIX = (
    "hccl_op_name TEXT, group_name TEXT, src_rank TEXT, dst_rank TEXT, transport_type TEXT, "
    "transit_size NUMERIC, transit_time NUMERIC, bandwidth NUMERIC, step TEXT, type TEXT, "
    "op_name TEXT"
)
_TIME = (
    "hccl_op_name TEXT, group_name TEXT, start_timestamp NUMERIC, elapse_time NUMERIC, "
    "transit_time NUMERIC, wait_time NUMERIC, synchronization_time NUMERIC, idle_time NUMERIC, "
    "step TEXT, type TEXT"
)


def write(run: Run, path: Path) -> None:
    """Write the file; at Level0 there is nothing about collectives in it."""
    names = run.parameters.names_device
    with new_database(path) as database:
        columns = "deviceId INTEGER, " + _STEPS if names else _STEPS
        database.table("StepTraceTime", columns, _steps(run))
        if run.parameters.level:
            database.table("CommAnalyzerBandwidth", _BANDWIDTH, _bandwidth(run))
            database.table("CommAnalyzerMatrix", _MATRIX, _matrix(run))
            database.table("CommAnalyzerTime", _TIME, _time(run))


def _steps(run: Run) -> Rows:
    for each in run.splits:
        split = each.split
        preparing = split.start_ns - each.start_ns if split.start_ns else 0
        times = (
            split.computing, split.exposed, split.overlapped, split.communication, split.free,
            split.stage - each.bubble_ns, each.bubble_ns, split.exposed - each.bubble_ns, preparing,
        )  # fmt: skip
        row = ("" if each.step is None else str(each.step), *(value / 1000 for value in times))
        yield (each.device, *row) if run.parameters.names_device else row


def _bandwidth(run: Run) -> Rows:
    for each in collectives(run):
        for transport in TRANSPORTS:
            size, time, speed = each.bandwidth(transport)
            if size:
                yield (each.name, GROUP, transport, size, time, speed, 0, 2.0, 14, time, each.step,
                       "collective")  # fmt: skip


def _matrix(run: Run) -> Rows:
    rank = str(run.parameters.rank)
    for name, moved in matrix(run):
        for other, transport, *values in links(run, moved):
            yield (name, GROUP, rank, str(other), transport, *values, moved[0].step, "collective",
                   moved[0].name)  # fmt: skip


def _time(run: Run) -> Rows:
    for each in collectives(run):
        yield (each.name, GROUP, each.start_us, each.elapse, each.transit, each.wait, each.wait,
               each.idle, each.step, "collective")  # fmt: skip
