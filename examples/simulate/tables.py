"""The CSV files of the dump."""

from __future__ import annotations

import csv
import io
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from simulate.counters import COUNTERS, counters
from simulate.text import (
    Recorded,
    device_formats,
    device_shapes,
    device_types,
    host_dims,
    microseconds,
)
from simulate.timeline import DeviceEvent, HostEvent, Timeline

KERNEL_COLUMNS = [
    *("Step Id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State"),
    *("Accelerator Core", "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim"),
    *("Mix Block Dim", "HF32 Eligible", "Input Shapes", "Input Data Types", "Input Formats"),
    *("Output Shapes", "Output Data Types", "Output Formats", "Context ID"),
    *COUNTERS,
]


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], end: str) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=end)
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def us(nanoseconds: float) -> float:
    return round(nanoseconds / 1000, 3)


def block_dim(device: DeviceEvent) -> int:
    """Cores at work: 24 cube, 48 vector, fewer for small tensors."""
    kernel = device.kernel
    if kernel.core in ("AI_CPU", "DSA_SQE"):
        return 0 if kernel.core == "DSA_SQE" else 1
    elements = sum(tensor.numel for tensor in kernel.outputs or kernel.inputs)
    return max(1, min(24 if kernel.core == "AI_CORE" else 48, -(-elements // 2048)))


def kernel_details(timeline: Timeline) -> str:
    rows = []
    for device in timeline.devices:
        kernel, blocks = device.kernel, block_dim(device)
        row = [device.step, 4294967295, device.task, 2, kernel.name, kernel.type, "dynamic"]
        row += [kernel.core, f"{microseconds(device.start_ns)}\t", us(device.duration_ns)]
        row += [us(device.wait_ns), blocks, 0, "NO"]
        for tensors in (kernel.inputs, kernel.outputs):
            row += [device_shapes(tensors), device_types(tensors), device_formats(tensors)]
        rows.append([*row, "N/A", *counters(kernel, us(device.duration_ns), blocks)])
    return table(KERNEL_COLUMNS, rows, "\r\n")


def summary(times_ns: Sequence[int]) -> list[Any]:
    return [us(sum(times_ns)), us(min(times_ns)), us(statistics.fmean(times_ns)), us(max(times_ns))]


def op_statistic(timeline: Timeline) -> str:
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for device in timeline.devices:
        groups[device.kernel.type, device.kernel.core].append(device.duration_ns)
    total = sum(map(sum, groups.values()))
    rows = []
    for (type_, core), times in sorted(groups.items(), key=lambda item: -sum(item[1])):
        rows.append([type_, core, len(times), *summary(times), round(100 * sum(times) / total, 3)])
    header = ["OP Type", "Core Type", "Count", "Total Time(us)", "Min Time(us)", "Avg Time(us)"]
    return table([*header, "Max Time(us)", "Ratio(%)"], rows, "\n")


def operator_details(timeline: Timeline, recorded: Recorded) -> str:
    header = ["Name", "Input Shapes", "Call Stack", "Host Self Duration(us)"]
    header += ["Host Total Duration(us)", "Device Self Duration(us)", "Device Total Duration(us)"]
    header += ["Device Self Duration With AICore(us)", "Device Total Duration With AICore(us)"]
    rows = []
    for position, event in enumerate(timeline.hosts):
        inside = children(timeline.hosts, position)
        direct = [
            child
            for child in inside
            if not any(other.start_ns < child.start_ns < other.end_ns for other in inside)
        ]
        total_ns = event.end_ns - event.start_ns
        self_ns = total_ns - sum(child.end_ns - child.start_ns for child in direct)
        device_self = device_times(event.kernels)
        device_total = device_times([k for e in (event, *inside) for k in e.kernels])
        dims = host_dims(event.operator.arguments) if event.operator and not event.is_node else ""
        row = [event.name, dims, recorded.stack(event.stack), us(self_ns), us(total_ns)]
        row += [device_self[0], device_total[0], device_self[1], device_total[1]]
        rows.append(row)
    return table(header, rows, "\r\n")


def children(hosts: Sequence[HostEvent], position: int) -> list[HostEvent]:
    inside = []
    for event in hosts[position + 1 :]:
        if event.start_ns >= hosts[position].end_ns:
            break
        inside.append(event)
    return inside


def device_times(kernels: Iterable[DeviceEvent]) -> tuple[float, float]:
    """All device time, and the part of it on tasks of type AI_CORE."""
    times = [(event.duration_ns, event.kernel.core == "AI_CORE") for event in kernels]
    return us(sum(time for time, _ in times)), us(sum(time for time, cube in times if cube))


def step_trace_time(timeline: Timeline) -> str:
    header = ["Step", "Computing", "Communication(Not Overlapped)", "Overlapped", "Communication"]
    header += ["Free", "Stage", "Bubble", "Communication(Not Overlapped and Exclude Receive)"]
    rows = []
    for step in timeline.steps:
        kernels = [device for device in timeline.devices if device.step == step.number]
        first, last = kernels[0].start_ns, kernels[-1].start_ns + kernels[-1].duration_ns
        computing = sum(device.duration_ns for device in kernels)
        free, preparing = last - first - computing, first - step.start_ns
        row = [step.number, us(computing), 0.0, 0.0, 0.0, us(free), us(last - first), 0.0, 0.0]
        rows.append([*row, us(preparing)])
    return table([*header, "Preparing"], rows, "\r\n")


def api_statistic(timeline: Timeline) -> str:
    """The host side of the launches: the part of each operator behind the dispatcher."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in timeline.hosts:
        for device in event.kernels:
            api = device.kernel.name.split("_")[0]
            # About a third of an operator's time on the host goes by inside of aclnn.
            groups["acl", api].append((event.end_ns - event.start_ns) // (3 * len(event.kernels)))
            groups["node", "launch"].append(device.launch_ns % 4000 + 3000)
    groups["acl", "aclrtSynchronizeStreamWithTimeout"] = timeline.waits_ns
    rows = [
        [*key, us(sum(times)), len(times), us(statistics.fmean(times)), us(min(times))]
        + [us(max(times)), round(statistics.pvariance([time / 1000 for time in times]), 3)]
        for key, times in sorted(groups.items())
    ]
    header = ["Level", "API Name", "Time(us)", "Count", "Avg(us)", "Min(us)", "Max(us)"]
    return table([*header, "Variance"], rows, "\n")
