"""Which pipe of the core a kernel keeps busy, from the PMU columns of any chip and export."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

BOUNDS = ("", "cube", "vector", "mte", "scalar", "none")
"""Values of ``kernels.bound``."""

BUSY = 0.8
"""A pipe that is busy for less of the time is no bound (msprof-analyze)."""
UTILISATION = "cube_utilization(%)"
_ATTENTION = re.compile(r"\w*Attention\w*")

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
    ratios: Mapping[str, NDArray[Any]], types: pd.Categorical[str]
) -> tuple[pd.Categorical[str], NDArray[np.float32]]:
    """Return ``bound`` and ``bound_ratio`` of each kernel: its busiest pipe, and how busy it was.

    ``ratios`` are PMU columns by name, in 0..1 or percent, NaN where not recorded; columns that
    are no ratio of a pipe are ignored. Where no pipe is busy, ``bound`` is ``none``. Attention uses
    cube and vector cores in turn, so that no pipe of it tells: there the utilisation of the cube
    counts, and without it nothing is known. A kernel whose core did nothing (AI CPU, collectives)
    has no bound.
    """
    rows = len(types)
    codes, busiest = np.zeros(rows, np.int8), np.zeros(rows, np.float32)
    pipes = _pipes(ratios)
    for bound, ratio in pipes:
        higher = ratio > busiest  # False for NaN
        codes[higher] = BOUNDS.index(bound)
        np.copyto(busiest, ratio, where=higher)
    if _is_percent(busiest):
        busiest /= 100
    attention = _is_attention(types)
    used = np.asarray(ratios.get(UTILISATION, np.zeros(rows)), np.float32) / 100
    codes[attention] = np.where(used[attention] > 0, BOUNDS.index("cube"), 0)
    np.copyto(busiest, used, where=attention)
    idle = (busiest < BUSY) & (codes > 0)
    # Where only the arithmetic was counted, what kept an idle kernel busy is not known.
    memory_too = {"mte", "scalar"} & {bound for bound, _ in pipes}
    codes[idle] = BOUNDS.index("none") if memory_too else 0
    unknown = (codes == 0) | (busiest > _HIGHEST)
    codes[unknown], busiest[unknown] = 0, np.nan
    return (
        pd.Categorical.from_codes(codes, categories=pd.Index(BOUNDS, dtype=object)),
        np.minimum(busiest, 1, out=busiest),
    )


def _is_attention(types: pd.Categorical[str]) -> NDArray[np.bool_]:
    matches = [_ATTENTION.fullmatch(str(name)) is not None for name in types.categories]
    found: NDArray[np.bool_] = np.array([*matches, False], np.bool_)[types.codes]
    return found


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
