"""The small tables: op_statistic.csv, api_statistic.csv and step_trace_time.csv."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.generator.run import Run
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

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
    device = run.launches.device[kernels.launch]
    rows = []
    for number in range(run.parameters.devices if run.parameters.names_device else 1):
        chosen = run.program.listed[kernels.code] & ~run.program.collective[kernels.code]
        if run.parameters.names_device:
            chosen &= device == number
        keys = [(kernel.type, kernel.core) for kernel in run.program.kernels]
        totals = sorted(
            _totals(kernels.code[chosen], kernels.duration_ns[chosen], keys),
            key=lambda row: -int(row[1].sum()),
        )
        everything = sum(int(times.sum()) for _, times in totals)
        rows += [
            [number, kind, core, len(times), _us(times.sum()), _us(times.min()),
             f"{times.mean() / 1000:.3f}", _us(times.max()),
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
        ["host", "acl", name, _us(times.sum()), len(times), f"{times.mean() / 1000:.3f}",
         _us(times.min()), _us(times.max()), f"{times.var() / 1e6:.3f}"]
        for (name,), times in calls
    ]  # fmt: skip
    count = len(run.kernels.code)
    each = _us(_LAUNCH_NS)
    rows.append(["host", "node", "launch", _us(_LAUNCH_NS * count), count, each, each, each, 0.0])
    _write(run, path, _APIS, rows)


def write_step_trace_time(run: Run, path: Path) -> None:
    """Write how each step splits on each device."""
    rows = []
    for each in run.splits:
        split = each.split
        times = (split.computing, split.exposed, split.overlapped, split.communication, split.free)
        bubble, others = each.bubble_ns, split.exposed - each.bubble_ns
        cells = [value / 1000 for value in (*times, split.stage - bubble, bubble, others)]
        name = "" if each.step is None else each.step
        preparing = (split.start_ns - each.start_ns) / 1000 if split.start_ns else 0.0
        rows.append([each.device, name, *cells, preparing])
    _write(run, path, _STEPS, rows)


def _totals(
    codes: Integers, times: Integers, keys: Sequence[tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], Integers]]:
    """Yield the times of each key; several codes may share one."""
    distinct = list(dict.fromkeys(keys))
    key = np.array([distinct.index(each) for each in keys])[codes]
    order = np.argsort(key, kind="stable")
    ends = np.cumsum(np.bincount(key, minlength=len(distinct)))
    for name, part in zip(distinct, np.split(times[order], ends[:-1]), strict=True):
        if len(part):
            yield name, part


def _us(nanoseconds: int | np.int64) -> str:
    return f"{int(nanoseconds) // 1000}.{int(nanoseconds) % 1000:03d}"


def _write(run: Run, path: Path, header: str, rows: Iterable[Sequence[object]]) -> None:
    """Write the table, its first column only in versions that name the device."""
    names = run.parameters.names_device
    lines = ["Device_id," + header if names else header]
    lines += [",".join(map(str, row if names else row[1:])) for row in rows]
    end = run.parameters.line_end
    path.write_text(end.join(lines) + end, encoding="utf-8", newline="")
