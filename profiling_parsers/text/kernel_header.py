"""Which columns a kernel table has, and whether one of them was dropped or renamed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.profiling_parsers.kernels.pmu_bound import UTILISATION, is_pipe_ratio

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# key -> spellings: of the PyTorch profiler (MindSpore's: "Step ID"), of msprof's op_summary, of
# MindStudio's db converter.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "step": ("Step Id", "Step ID"),
    "device": ("Device_id", "device_id"),
    "stream": ("Stream ID", "stream_id"),
    "name": ("Name", "Op Name", "op_name"),
    "type": ("Type", "OP Type", "op_type"),
    "state": ("OP State", "op_state"),
    "hf32": ("HF32 Eligible", "hf32_eligible"),
    "core": ("Accelerator Core", "Task Type", "task_type"),
    "start": ("Start Time(us)", "Task Start Time(us)", "task_start_time"),
    "duration": ("Duration(us)", "Task Duration(us)", "task_duration"),
    "wait": ("Wait Time(us)", "Task Wait Time(us)", "task_wait_time"),
    "input_shapes": ("Input Shapes", "input_shapes"),
    "input_dtypes": ("Input Data Types", "input_data_types"),
    "output_shapes": ("Output Shapes", "output_shapes"),
}
"""The columns of ``Profile.kernels`` by the names that exports give them."""
CHECKED = ("step", "device", "stream", "name", "type", "core", "start", "duration")
"""Those that show whether rows are damaged, or are of another export than the files beside."""

REQUIRED = ("name", "type", "core", "start", "duration")
RECORDED_SHAPES = ("input_shapes", "input_dtypes", "output_shapes")
"""Written all or none."""

_PIPE_TIME = re.compile(
    r"(?:aic_|aiv_)?(?:mac|vec|scalar|mte[123]|fixpipe)(?:_exe)?_time(?:\(us\))?"
)


def find_ratio_columns(header: Collection[str]) -> tuple[str, ...]:
    """Return the columns that say how busy a pipe was, and the cube as a whole."""
    wanted = (name for name in header if is_pipe_ratio(name) or name == UTILISATION)
    return tuple(dict.fromkeys(wanted))


def find_missing_columns(header: Collection[str]) -> list[str]:
    """Return columns that must be there by those that are: dropped or renamed by someone.

    Only what changes a diagnosis is looked for; ``REQUIRED`` columns are the reader's to ask for.
    """
    missing = [] if _has(header, "wait") else [COLUMNS["wait"][0]]
    shapes = [key for key in RECORDED_SHAPES if _has(header, key)]
    if shapes:
        missing += [COLUMNS[key][0] for key in RECORDED_SHAPES if key not in shapes]
    return missing + _ratios_lacking(header)


def _has(header: Collection[str], key: str) -> bool:
    return any(name in header for name in COLUMNS[key])


def _ratios_lacking(header: Collection[str]) -> list[str]:
    """Return the ratios whose times are there: PipeUtilization always writes both."""
    of_times = [
        name.removesuffix("(us)").removesuffix("_time") + "_ratio"
        for name in header
        if _PIPE_TIME.fullmatch(name)
    ]
    return [ratio for ratio in of_times if ratio not in header]
