"""task_time_*.csv: every task of the device, of which the kernels are taken.

msprof writes it at every level, so it stands in where there is no op_summary. It knows no shapes
and no Types, and of a collective only the copies and waits that it is made of.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.text.kernel_details import Kernels, read_kernel_table

if TYPE_CHECKING:
    from pathlib import Path

_COLUMNS = {
    "device": ("Device_id",),
    "name": ("kernel_name",),
    "core": ("kernel_type",),
    "start": ("task_start(us)",),
    "duration": ("task_time(us)",),
}
_REQUIRED = ("name", "core", "start", "duration")

# kernel_type -> Accelerator Core. The second spelling is of newer chips.
_CORES = {
    "AI_CORE": "AI_CORE",
    "KERNEL_AICORE": "AI_CORE",
    "AI_VECTOR_CORE": "AI_VECTOR_CORE",
    "KERNEL_AIVEC": "AI_VECTOR_CORE",
    "MIX_AIC": "MIX_AIC",
    "KERNEL_MIX_AIC": "MIX_AIC",
    "MIX_AIV": "MIX_AIV",
    "KERNEL_MIX_AIV": "MIX_AIV",
    "AI_CPU": "AI_CPU",
    "KERNEL_AICPU": "AI_CPU",
    "DSA_SQE": "DSA_SQE",
    "DSA": "DSA_SQE",
}


def read_task_time(path: Path) -> Kernels:
    """Read the kernels among the tasks, in the order of the file.

    Raise ``DumpError`` if there is none.
    """
    tasks = read_kernel_table(path, _COLUMNS, _REQUIRED)
    core = tasks.frame["core"].cat
    known = [_CORES.get(text, "") for text in core.categories]
    cores = pd.Categorical(np.array(known, object)[core.codes])
    frame = tasks.frame.assign(core=cores)
    return replace(tasks, frame=frame[frame["core"] != ""].reset_index(drop=True))
