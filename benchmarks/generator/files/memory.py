"""Blocks of device memory that operators allocate, of a few of the launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.generator.text import moment, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.generator.run import Run

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
_NOT_IN_2023 = (
    "Total Active(MB)", "Stream Ptr", "Active Release Time(us)", "Active Duration(us)",
    "Allocation Total Active(MB)", "Release Total Active(MB)",
)  # fmt: skip


@dataclass(frozen=True)
class Block:
    """One block; bytes and nanoseconds."""

    name: str
    device: int
    size: int
    allocated_ns: int
    duration_ns: int
    total: int
    """Bytes in use with this block."""
    kept: bool
    """It is not released while the recording goes on."""


def blocks(run: Run) -> Iterator[Block]:
    """Yield the blocks that every tenth launch allocates."""
    launches, count = run.launches, len(run.launches.code)
    for number, at in enumerate(range(0, count, _EVERY)):
        size = (1 + int(launches.layer[at]) % 8) * _MB + 512
        yield Block(
            name=run.program.launches[launches.code[at]].chain[0],
            device=int(launches.device[at]),
            size=size,
            allocated_ns=int(launches.start_ns[at]) + 500,
            duration_ns=int(launches.host_ns[at]) + 4_000,
            total=(512 + number % _LEVELS) * _MB + size,
            kept=at + _EVERY >= count,
        )


def write_memory_record(run: Run, path: Path) -> None:
    """Write memory_record.csv."""
    rows = []
    for each in blocks(run):
        used = each.total / _MB
        common = {
            "Timestamp(us)": f"{moment(each.allocated_ns)}\t",
            "Device Type": f"NPU:{each.device}",
        }
        framework = {"Total Allocated(MB)": used, "Total Active(MB)": used, "Stream Ptr": STREAM}
        rows += [
            {**common, **framework, "Component": "PTA", "Total Reserved(MB)": RESERVED / _MB},
            {**common, "Component": "APP", "Total Reserved(MB)": RESERVED / _MB + 600},
        ]
    _write(run, path, _RECORD, rows)


def write_operator_memory(run: Run, path: Path) -> None:
    """Write operator_memory.csv."""
    rows = []
    for each in blocks(run):
        end, length = moment(each.allocated_ns + each.duration_ns), moment(each.duration_ns)
        rest = (each.total - each.size) / _MB
        released = {
            "Release Time(us)": f"{end}\t", "Active Release Time(us)": f"{end}\t",
            "Duration(us)": f"{length}\t", "Active Duration(us)": f"{length}\t",
            "Release Total Allocated(MB)": rest, "Release Total Reserved(MB)": RESERVED / _MB,
            "Release Total Active(MB)": rest,
        }  # fmt: skip
        rows.append({
            "Name": each.name, "Size(KB)": each.size / _KB,
            "Allocation Time(us)": f"{moment(each.allocated_ns)}\t",
            "Allocation Total Allocated(MB)": each.total / _MB,
            "Allocation Total Reserved(MB)": RESERVED / _MB,
            "Allocation Total Active(MB)": each.total / _MB,
            "Stream Ptr": STREAM, "Device Type": f"NPU:{each.device}",
            **({} if each.kept else released),
        })  # fmt: skip
    _write(run, path, _OPERATOR, rows)


def _write(run: Run, path: Path, header: str, rows: list[dict[str, object]]) -> None:
    """Write the columns that the version has; a cell that a row lacks is empty."""
    lacking = _NOT_IN_2023 if run.parameters.version == "old-2023" else ()
    columns = [name for name in header.split(",") if name not in lacking]
    lines = [",".join(str(row.get(name, "")) for name in columns) for row in rows]
    write_lines(path, [",".join(columns), *lines], run.parameters.line_end)
