"""analysis.db: how steps split, and what collectives did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.generator.files.sqlite_file import new_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.generator.run import Run

    Json = dict[str, Any]
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
_TIMES = (
    "Start Timestamp(us)", "Elapse Time(ms)", "Transit Time(ms)", "Wait Time(ms)",
    "Synchronization Time(ms)", "Idle Time(ms)",
)  # fmt: skip


def write(run: Run, path: Path, communication: Json, matrix: Json) -> None:
    """Write the file; at Level0 there is nothing about collectives in it."""
    names = run.parameters.names_device
    steps = [
        (each.device, "" if each.step is None else str(each.step), *each.times_us)[not names :]
        for each in run.splits
    ]
    with new_database(path) as database:
        columns = "deviceId INTEGER, " + _STEPS if names else _STEPS
        database.table("StepTraceTime", columns, steps)
        if run.parameters.level:
            database.table("CommAnalyzerBandwidth", _BANDWIDTH, _bandwidth(communication))
            database.table("CommAnalyzerMatrix", _MATRIX, _matrix(matrix))
            database.table("CommAnalyzerTime", _TIME, _time(communication))


def _collectives(steps: Json) -> Iterator[tuple[str, str, str, str, Json]]:
    """Yield name, group, step, kind and content of each entry."""
    for step, kinds in steps.items():
        for kind, entries in kinds.items():
            for key, content in entries.items():
                name, _, group = key.rpartition("@")
                yield name, group, step, kind, content


def _bandwidth(communication: Json) -> Rows:
    for name, group, step, kind, content in _collectives(communication):
        used = {}
        for transport, link in content["Communication Bandwidth Info"].items():
            used.update(link["Size Distribution"])
            if size := link["Transit Size(MB)"]:
                packet, (count, time) = next(
                    ((float(each), what) for each, what in used.items()),
                    (size, (1, link["Transit Time(ms)"])),
                )
                yield (name, group, transport, size, time, link["Bandwidth(GB/s)"],
                       link["Large Packet Ratio"], packet, count, time, step, kind)  # fmt: skip


def _matrix(matrix: Json) -> Rows:
    for name, group, step, kind, content in _collectives(matrix):
        for pair, link in content.items():
            size, time = link["Transit Size(MB)"], link["Transit Time(ms)"]
            yield (name, group, *pair.split("-"), link["Transport Type"], size, time,
                   link["Bandwidth(GB/s)"], step, kind, link.get("Op Name", name))  # fmt: skip


def _time(communication: Json) -> Rows:
    for name, group, step, kind, content in _collectives(communication):
        times = content["Communication Time Info"]
        yield (name, group, *(times[key] for key in _TIMES), step, kind)
