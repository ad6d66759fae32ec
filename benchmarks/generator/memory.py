"""Blocks of device memory that operators allocate, of a few of the launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.text import microseconds

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.generator.run import Run
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_EVERY = 10
_KB, _MB = 1 << 10, 1 << 20
RESERVED, STREAM = 2048 * _MB, 897_357_296
_LEVELS = 64
_RECORD = (
    "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,"
    "Device Type"
)
_OPERATOR = (
    "Name,Size(KB),Allocation Time(us),Release Time(us),Active Release Time(us),Duration(us),"
    "Active Duration(us),Allocation Total Allocated(MB),Allocation Total Reserved(MB),"
    "Allocation Total Active(MB),Release Total Allocated(MB),Release Total Reserved(MB),"
    "Release Total Active(MB),Stream Ptr,Device Type"
)


@dataclass(frozen=True)
class Blocks:
    """One row per block; bytes and nanoseconds."""

    name: list[str]
    device: Integers
    size: Integers
    allocated_ns: Integers
    duration_ns: Integers
    total: Integers
    """Bytes in use with this block."""


def blocks(run: Run) -> Blocks:
    """Return the blocks that every tenth launch allocates."""
    code = run.launches.code[::_EVERY]
    size = (1 + run.launches.layer[::_EVERY] % 8) * _MB + 512
    return Blocks(
        name=[run.program.launches[each].chain[0] for each in code.tolist()],
        device=run.launches.device[::_EVERY],
        size=size,
        allocated_ns=run.launches.start_ns[::_EVERY] + 500,
        duration_ns=run.launches.host_ns[::_EVERY] + 4_000,
        total=(512 + np.arange(len(code)) % _LEVELS) * _MB + size,
    )


def write_memory_record(run: Run, path: Path) -> None:
    """Write memory_record.csv."""
    own = blocks(run)
    old = run.parameters.version == "old-2023"
    header = _RECORD.replace(",Total Active(MB),Stream Ptr", "") if old else _RECORD
    lines = [header]
    times = zip(
        microseconds(own.allocated_ns), own.total.tolist(), own.device.tolist(), strict=True
    )
    for at, total, device in times:
        used, more = total / _MB, "" if old else f",{total / _MB},{STREAM}"
        lines.append(f"PTA,{at}\t,{used},{RESERVED / _MB}{more},NPU:{device}")
        nothing = "" if old else ",,"
        lines.append(f"APP,{at}\t,,{RESERVED / _MB + 600}{nothing},NPU:{device}")
    _write(run, path, lines)


def write_operator_memory(run: Run, path: Path) -> None:
    """Write operator_memory.csv; the last block is not released."""
    own = blocks(run)
    old = run.parameters.version == "old-2023"
    header = _OPERATOR
    for column in ("Active Release Time(us),", "Active Duration(us),", "Stream Ptr,",
                   "Allocation Total Active(MB),", "Release Total Active(MB),"):  # fmt: skip
        header = header.replace(column, "") if old else header
    columns = header.split(",")
    lines = [header]
    rows = zip(
        own.name, own.size.tolist(), microseconds(own.allocated_ns),
        microseconds(own.allocated_ns + own.duration_ns), microseconds(own.duration_ns),
        own.total.tolist(), own.device.tolist(), strict=True,
    )  # fmt: skip
    for number, (name, size, start, end, length, total, device) in enumerate(rows):
        kept = number == len(own.name) - 1
        moments = {
            "Release Time(us)": f"{end}\t", "Active Release Time(us)": f"{end}\t",
            "Duration(us)": f"{length}\t", "Active Duration(us)": f"{length}\t",
            "Release Total Allocated(MB)": (total - size) / _MB,
            "Release Total Reserved(MB)": RESERVED / _MB,
            "Release Total Active(MB)": (total - size) / _MB,
        }  # fmt: skip
        cells = {
            "Name": name, "Size(KB)": size / _KB, "Allocation Time(us)": f"{start}\t",
            "Allocation Total Allocated(MB)": total / _MB,
            "Allocation Total Reserved(MB)": RESERVED / _MB,
            "Allocation Total Active(MB)": total / _MB,
            "Stream Ptr": STREAM, "Device Type": f"NPU:{device}",
            **({} if kept else moments),
        }  # fmt: skip
        lines.append(",".join(str(cells.get(column, "")) for column in columns))
    _write(run, path, lines)


def _write(run: Run, path: Path, lines: list[str]) -> None:
    end = run.parameters.line_end
    path.write_text(end.join(lines) + end, encoding="utf-8", newline="")
