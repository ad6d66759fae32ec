"""How long a kernel takes that the run has not launched: as those that it has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npufix.advisor.evidence.size_curve import size_curve
from npufix.advisor.roofline.work import work_of
from npufix.rules.shared.quantities import size
from npufix.rules.shared.recording.recorded_cells import (
    CELLS,
    ELEMENT_WISE,
    count_moved_bytes,
    dtype_name,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.advisor.evidence.change import Corners

_ALIKE = 4.0
"""Beyond so many times the largest size that was measured, or below the smallest, nobody knows."""
_NEAR, _FEW = 8.0, 3
_LARGE_PRODUCT = 1e9
"""Operations from which a product shows how quickly the chip computes."""
_GRADIENTS = ("Grad", "Backward", "GradV2")


def is_gradient(name: str) -> bool:
    """Tell whether a Type of kernel computes a gradient."""
    return name.endswith(_GRADIENTS)


class KernelSize(NamedTuple):
    """How large a kernel is."""

    moved: float
    """Bytes."""
    operations: float = 0.0
    """Of products, 0 where there are none."""
    dtype: str = ""


class KernelTime(NamedTuple):
    """What one call takes, and as which kernel of the run."""

    time_ns: Corners
    basis: str


@dataclass(frozen=True)
class MeasuredKernels:
    """The kernels of a run, by Type and by how much they move."""

    kernels: pd.DataFrame

    @cached_property
    def _typical(self) -> pd.DataFrame:
        """One row a Type and shapes: ``moved`` (bytes), ``operations``, ``duration``, ``dtype``."""
        own = self.kernels.loc[self.kernels["duration_ns"] > 0, ["type", *CELLS, "duration_ns"]]
        own = own.assign(moved=count_moved_bytes(own))
        groups = own[own["moved"] > 0].groupby(["type", *CELLS], observed=True)
        typical = groups.agg(moved=("moved", "first"), duration=("duration_ns", "median"))
        typical = typical.reset_index()
        work = work_of(typical)
        dtype = [dtype_name(cell.partition(";")[0]) for cell in typical["input_dtypes"].astype(str)]
        return typical.assign(operations=work.operations[work.of_kernel], dtype=dtype)

    def of_types(
        self, types: Collection[str], wanted: KernelSize, launch_ns: float, *, backward: bool
    ) -> KernelTime | None:
        """Return the time of a kernel of one of the Types, by the sizes of it that were measured.

        The size of a product is its ``operations``, where both are known; else the bytes. Those
        of the ``dtype`` count, if there are any.
        """
        from npufix.profiling_parsers.tables.columns import find_rows_with

        names = [name for name in types if is_gradient(name) == backward]
        rows = self._typical
        at = find_rows_with(rows["type"], names.__contains__)
        computes = wanted.operations > 0 and bool((rows["operations"].to_numpy()[at] > 0).any())
        by, own = ("operations", wanted.operations) if computes else ("moved", wanted.moved)
        at &= rows[by].to_numpy() > 0
        same = at & (rows["dtype"] == wanted.dtype).to_numpy(bool)
        at = same if same.any() else at
        if not at.any() or own <= 0:
            return None
        sizes = rows[by].to_numpy(np.float64)[at]
        if not sizes.min() / _ALIKE <= own <= sizes.max() * _ALIKE:
            return None
        curve = size_curve(sizes, rows["duration"].to_numpy(np.float64)[at], launch_ns)
        time, spread = curve.time(own), curve.spread(own)
        nearest = np.flatnonzero(at)[np.abs(np.log(own / sizes)).argmin()]
        kind, moved = rows["type"].iloc[nearest], float(rows["moved"].iloc[nearest])
        basis = f"{kind} of this dump, which moves {size(moved)}"
        return KernelTime((time * (1 + spread), time, time / (1 + spread)), basis)

    def product_rate(self, dtype: str) -> float:
        """Return how much the quickest large product of a dtype computes, operations per ns.

        0 where there is none.
        """
        return self._product_rates.get(dtype, 0.0)

    @cached_property
    def _product_rates(self) -> dict[str, float]:
        rows = self._typical[self._typical["operations"] >= _LARGE_PRODUCT]
        rates = (rows["operations"] / rows["duration"]).groupby(rows["dtype"]).max()
        return {str(dtype): float(rate) for dtype, rate in rates.items()}

    def rates(self, moved: float) -> tuple[float, float] | None:
        """Return how fast element-wise kernels of about this size move it, bytes per ns."""
        sizes, durations = self._element_wise
        if moved <= 0:
            return None
        near = (sizes >= moved / _NEAR) & (sizes <= moved * _NEAR)
        if np.count_nonzero(near) < _FEW:
            return None
        found = sizes[near] / durations[near]
        return float(np.quantile(found, 0.25)), float(np.quantile(found, 0.75))

    @cached_property
    def _element_wise(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bytes and time of the kernels that compute element by element."""
        rows = self._typical[self._typical["type"].isin(ELEMENT_WISE)]
        return rows["moved"].to_numpy(np.float64), rows["duration"].to_numpy(np.float64)
