"""The small tables: op_statistic.csv, api_statistic.csv and step_trace_time.csv."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.text import moment, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.generator.run import Run
    from benchmarks.generator.text import Integers

_OPERATORS = (
    "OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)"
)
_APIS = "Level,API Name,Time(us),Count,Avg(us),Min(us),Max(us),Variance"
_STEPS = (
    "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing"
)
_LAUNCH_NS = 1_000


def write_op_statistic(run: Run, path: Path) -> None:
    """Write the totals per Type and core of all kernels but collectives."""
    kernels = run.kernels
    keys = [(kernel.type, kernel.core) for kernel in run.program.kernels]
    rows = []
    for device in range(run.parameters.devices):  # several only where the table names them
        chosen = run.program.computes[kernels.code] & (run.devices == device)
        totals = sorted(
            _totals(kernels.code[chosen], kernels.duration_ns[chosen], keys),
            key=lambda row: -int(row[1].sum()),
        )
        everything = sum(int(times.sum()) for _, times in totals)
        rows += [
            [device, kind, core, len(times), moment(times.sum()), moment(times.min()),
             f"{times.mean() / 1000:.3f}", moment(times.max()),
             f"{100 * times.sum() / everything:.3f}"]
            for (kind, core), times in totals
        ]  # fmt: skip
    _write(run, path, _OPERATORS, rows)


def write_api_statistic(run: Run, path: Path) -> None:
    """Write how often and how long the host called CANN."""
    program, kernels = run.program, run.kernels
    if run.parameters.runtime:
        codes, spans = run.launches.code, run.launches.host_ns
        keys = [(launch.chain[-1],) for launch in program.launches]
    else:  # about a third of an operator's time on the host goes by inside of aclnn
        codes, launch = kernels.code, kernels.launch
        spans = run.launches.host_ns[launch] // (3 * program.count[run.launches.code[launch]])
        keys = [(kernel.name.split("_")[0],) for kernel in program.kernels]
    calls = sorted(each for each in _totals(codes, spans, keys) if each[0][0].startswith("aclnn"))
    if run.waits_ns:
        calls.append((("aclrtSynchronizeStreamWithTimeout",), np.array(run.waits_ns)))
    rows: list[list[object]] = [
        ["host", "acl", name, moment(times.sum()), len(times), f"{times.mean() / 1000:.3f}",
         moment(times.min()), moment(times.max()), f"{times.var() / 1e6:.3f}"]
        for (name,), times in calls
    ]  # fmt: skip
    count = len(kernels.code)
    each = moment(_LAUNCH_NS)
    total = moment(_LAUNCH_NS * count)
    rows.append(["host", "node", "launch", total, count, each, each, each, 0.0])
    _write(run, path, _APIS, rows)


def write_step_trace_time(run: Run, path: Path) -> None:
    """Write how each step splits on each device."""
    rows = [
        [each.device, "" if each.step is None else each.step, *each.times_us] for each in run.splits
    ]
    _write(run, path, _STEPS, rows)


def _totals(
    codes: Integers, times: Integers, keys: Sequence[tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], Integers]]:
    """Yield the times of each key; several codes may share one."""
    distinct = list(dict.fromkeys(keys))
    key = np.array([distinct.index(each) for each in keys])[codes]
    for number, name in enumerate(distinct):
        if (key == number).any():
            yield name, times[key == number]


def _write(run: Run, path: Path, header: str, rows: Iterable[Sequence[object]]) -> None:
    """Write the table, its first column only in versions that name the device."""
    names = run.parameters.names_device
    lines = [",".join(map(str, row if names else row[1:])) for row in rows]
    write_lines(path, ["Device_id," + header if names else header, *lines], run.parameters.line_end)
