"""kernel_details.csv: one row per kernel, in the columns of each version."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.text import fill, microseconds, of_variant, write_lines

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.generator.parameters import Parameters
    from benchmarks.generator.program import Kernel
    from benchmarks.generator.run import Run

_TIMES = "Start Time(us),Duration(us),Wait Time(us)"
_SHAPES = (
    "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats"
)
_PIPES = (
    "aicore_time(us),aic_total_cycles,aic_mac_time(us),aic_mac_ratio,aic_scalar_time(us),"
    "aic_scalar_ratio,aic_mte1_time(us),aic_mte1_ratio,aic_mte2_time(us),aic_mte2_ratio,"
    "aic_fixpipe_time(us),aic_fixpipe_ratio,aic_icache_miss_rate,aiv_time(us),aiv_total_cycles,"
    "aiv_vec_time(us),aiv_vec_ratio,aiv_scalar_time(us),aiv_scalar_ratio,aiv_mte2_time(us),"
    "aiv_mte2_ratio,aiv_mte3_time(us),aiv_mte3_ratio,aiv_icache_miss_rate,cube_utilization(%)"
)
_ARITHMETIC = (
    "aicore_time(us),aic_total_cycles,aic_mac_fp16_ratio,aic_mac_int8_ratio,aic_cube_fops,"
    "aic_vector_fops,aiv_time(us),aiv_total_cycles,aiv_vec_fp32_ratio,aiv_vec_fp16_ratio,"
    "aiv_vec_int32_ratio,aiv_vec_misc_ratio,aiv_cube_fops,aiv_vector_fops"
)
_BUSY_CUBE, _BUSY_VECTOR = (0.62, 0.125, 0.0, 0.41, 0.0), (0.62, 0.125, 0.41, 0.0)
"""Share of their time that mac, scalar, mte1, mte2, fixpipe or vec, scalar, mte2, mte3 work."""
_ACTIVE, _MHZ = 0.95, 1800
_TASKS = 1 << 16
_CUBE = {"AI_CORE", "MIX_AIC"}
_WITHOUT_PIPES = {"AI_CPU", "DSA_SQE"}
_SKIP = "%.0s"
"""Takes a number of the row and writes nothing."""


def header(own: Parameters) -> str:
    """Return the names of the columns."""
    step = "Step Id," if own.schedule else ""
    device = "Device_id," if own.names_device else ""
    block = "Block Num" if own.version == "newest" else "Block Dim"
    if own.level == 0:
        return f"{step}{device}Name,Type,Accelerator Core,{_TIMES},{block}"
    state, hf32 = ("", "") if own.version == "old-2023" else ("OP State,", "HF32 Eligible,")
    pipes = _ARITHMETIC if own.version == "old-2023" else _PIPES
    return (
        f"{step}{device}Model ID,Task ID,Stream ID,Name,Type,{state}Accelerator Core,{_TIMES},"
        f"{block},Mix {block},{hf32}{_SHAPES},Context ID,{pipes}"
    )


def write(run: Run, path: Path) -> None:
    """Write the file."""
    own, kernels = run.parameters, run.kernels
    templates = [
        _row(own, kernel, v) for kernel in run.program.kernels for v in range(own.variants)
    ]
    busy = np.array([_busy(kernel) for kernel in run.program.kernels]).T
    at = np.flatnonzero(run.program.listed[kernels.code])
    code, launch, duration = kernels.code[at], kernels.launch[at], kernels.duration_ns[at]
    active = duration * (_ACTIVE / 1000)
    rows = fill(
        templates,
        code * own.variants + run.variants(launch),
        run.step_id(0) + run.launches.step[launch],
        run.launches.device[launch],
        at % _TASKS,
        kernels.number[at],
        (microseconds, kernels.start_ns[at]),
        (microseconds, duration),
        (microseconds, kernels.wait_ns[at]),
        active,
        (active * _MHZ).astype(np.int64),
        *(active * share[code] for share in busy),
    )
    write_lines(path, chain([header(own)], rows), own.line_end)


def _row(own: Parameters, kernel: Kernel, variant: int) -> str:
    """Return a row with gaps, in the order of the columns of ``write``."""
    step = "%d," if own.schedule else _SKIP
    device = "%d," if own.names_device else _SKIP
    number = "" if kernel.collective else _SKIP
    core = own.collective_core if kernel.collective else kernel.core
    rest = _SKIP * 7
    if own.level == 0:
        # At Level0 the device says nothing of its kernels but their times.
        core = core if kernel.collective else "N/A"
        return f"{step}{device}{_SKIP}{kernel.name}{number},N/A,{core},%s\t,%s,%s,0{rest}"
    old = own.version == "old-2023"
    where = f"{_SKIP}N/A,N/A" if kernel.collective else f"%d,{kernel.stream}"
    state = "" if old else "N/A," if kernel.collective else "dynamic,"
    head = (
        f"{step}{device}4294967295,{where},{kernel.name}{number},{kernel.type},{state}{core},"
        f"%s\t,%s,%s,{kernel.blocks}"
    )
    if kernel.collective:
        empty = ",N/A" * (header(own).count(",") - head.count(","))
        return f"{head}{empty}{rest}"
    hf32 = "" if old else "NO,"
    mixed = "0" if kernel.core.startswith("MIX") else "N/A"
    pipes = _arithmetic(kernel) if old else _pipes(kernel)
    return f"{head},0,{hf32}{_tensors(kernel, variant)},{mixed},{pipes}"


def _tensors(kernel: Kernel, variant: int) -> str:
    cells = []
    for shapes, dtypes, formats in (kernel.inputs, kernel.outputs):
        text = of_variant(shapes, variant)
        cells += [text if text == "N/A" else f'"""{text}"""', dtypes, formats]
    return ",".join(cells)


def _pipes(kernel: Kernel) -> str:
    if kernel.core in _WITHOUT_PIPES:
        return _SKIP * 7 + ",".join(["N/A"] * (_PIPES.count(",") + 1))
    pipes = [f"%.3f,{share}" if share else f"{_SKIP}0.0,0.0" for share in _busy(kernel)]
    none = ",0.0,0.0"
    if kernel.core in _CUBE:
        return f"%.3f,%d,{','.join(pipes)},0.02,0.0,0{none * 4},0.0,81.5"
    return f"0.0,0{none * 5},0.0,%.3f,%d,{','.join(pipes[:4])},0.023,0{_SKIP}"


def _busy(kernel: Kernel) -> tuple[float, ...]:
    """Return five shares, the last of them none for a vector core."""
    if kernel.core in _CUBE:
        return kernel.busy or _BUSY_CUBE
    return (*(kernel.busy or _BUSY_VECTOR), 0.0)


def _arithmetic(kernel: Kernel) -> str:
    if kernel.core in _WITHOUT_PIPES:
        return _SKIP * 7 + ",".join(["N/A"] * (_ARITHMETIC.count(",") + 1))
    used, none, rest, busy = "%.3f,%d", "0.0,0", _SKIP * 5, _busy(kernel)[0]
    if kernel.core in _CUBE:
        return f"{used},{busy},0.0,120000,0,{none},0.0,0.0,0.0,0.0,0,0{rest}"
    return f"{none},0.0,0.0,0,0,{used},{busy},0.0,0.0,0.001,0,90000{rest}"
