"""Which pipe of the core a kernel keeps busy, from the PMU columns of any chip and export."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

BOUNDS = ("", "cube", "vector", "mte", "scalar", "launch")
"""Values of ``kernels.bound``."""

LAUNCH_RATIO = 0.5
"""No pipe is busy even half of the time ..."""
LAUNCH_NS = 20_000
"""... of so short a kernel: its fixed costs are what it costs. Longer ones are tiled badly
instead (msprof-analyze asks from 20 us on for one busy pipe)."""

# aic_ and aiv_ are the cube and the vector core; chips that have one core write neither. The
# group ArithmeticUtilization splits a pipe by data type, older ones add _exe or _extra.
_RATIO = re.compile(
    r"(?:aic_|aiv_)?(?P<pipe>mac|cube|vec|scalar|mte[123]|fixpipe)"
    r"(?P<part>_(?:fp16|fp32|int8|int32|misc))?(?:_exe)?_ratio(?:_extra)?"
)
_BOUND_OF = {"mac": "cube", "cube": "cube", "vec": "vector", "scalar": "scalar"}
_HIGHEST = 1.5
"""Counters round and clocks differ, so a ratio may exceed 1 a little; above it is no ratio."""


def is_pipe_ratio(column: str) -> bool:
    """Tell whether a PMU column says how long a pipe was busy."""
    return _RATIO.fullmatch(column) is not None


def dominant_pipe(
    ratios: Mapping[str, NDArray[Any]], duration_ns: NDArray[np.int64] | None = None
) -> tuple[pd.Categorical[str], NDArray[np.float32]]:
    """Return ``bound`` and ``bound_ratio`` of each kernel: its busiest pipe, and how busy it was.

    ``ratios`` are PMU columns by name, in 0..1 or percent, NaN where not recorded; columns that
    are no ratio of a pipe are ignored. Without ``duration_ns`` a kernel of idle pipes counts as
    short, however long it was. A kernel whose core did nothing (AI CPU, collectives) has no bound.
    """
    rows = (
        len(next(iter(ratios.values())))
        if ratios
        else len(() if duration_ns is None else duration_ns)
    )
    codes, busiest = np.zeros(rows, np.int8), np.zeros(rows, np.float32)
    pipes = _pipes(ratios)
    for bound, ratio in pipes:
        higher = ratio > busiest  # False for NaN
        codes[higher] = BOUNDS.index(bound)
        np.copyto(busiest, ratio, where=higher)
    if _is_percent(busiest):
        busiest /= 100
    idle = busiest < LAUNCH_RATIO
    if not {"mte", "scalar"} & {bound for bound, _ in pipes}:
        # Only the arithmetic was counted: what kept an idle kernel busy is not known.
        codes[idle] = 0
    elif duration_ns is not None:
        idle &= duration_ns < LAUNCH_NS
    codes[idle & (codes > 0)] = BOUNDS.index("launch")
    unknown = (codes == 0) | (busiest > _HIGHEST)
    codes[unknown], busiest[unknown] = 0, np.nan
    return (
        pd.Categorical.from_codes(codes, categories=pd.Index(BOUNDS, dtype=object)),
        np.minimum(busiest, 1, out=busiest),
    )


def _pipes(ratios: Mapping[str, NDArray[Any]]) -> list[tuple[str, NDArray[np.float32]]]:
    """Return bound and ratio of each pipe, its parts by data type added up."""
    pipes: dict[str, tuple[str, NDArray[np.float32]]] = {}
    for column, values in ratios.items():
        found = _RATIO.fullmatch(column)
        if found is None:
            continue
        bound = _BOUND_OF.get(found["pipe"], "mte")
        ratio = np.asarray(values, np.float32)
        if not found["part"]:
            pipes[column] = bound, ratio
            continue
        pipe = column.removesuffix(column[found.start("part") :])
        part = np.nan_to_num(ratio)
        pipes[pipe] = bound, pipes[pipe][1] + part if pipe in pipes else part
    return list(pipes.values())


def _is_percent(busiest: NDArray[np.float32]) -> bool:
    active = busiest[busiest > 0]
    if not active.size:
        return False
    middle = active.size // 2
    return float(np.partition(active, middle)[middle]) > _HIGHEST
