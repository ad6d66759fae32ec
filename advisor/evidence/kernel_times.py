"""How long a kernel takes that the run has not launched: as those that it has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npufix.rules.shared.quantities import size
from npufix.rules.shared.recording.recorded_cells import CELLS, ELEMENT_WISE, moved_bytes

if TYPE_CHECKING:
    from collections.abc import Collection

    import pandas as pd

    from npufix.advisor.evidence.change import Corners

_ALIKE = 4.0
"""A kernel of the same Type that moves so many times as much, or as little, is a neighbour."""
_SPREAD = 0.15
"""Of the time of a neighbour, besides how far off in size it is."""
_NEAR, _FEW = 8.0, 3
_GRADIENTS = ("Grad", "Backward", "GradV2")


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
        """One row for each Type and shapes: ``type``, ``moved`` (bytes), ``duration`` (ns)."""
        own = self.kernels.loc[self.kernels["duration_ns"] > 0, ["type", *CELLS, "duration_ns"]]
        own = own.assign(moved=moved_bytes(own))
        groups = own[own["moved"] > 0].groupby(["type", *CELLS], observed=True)
        typical = groups.agg(moved=("moved", "first"), duration=("duration_ns", "median"))
        return typical.reset_index()

    def of_types(
        self, types: Collection[str], moved: float, launch_ns: float, *, backward: bool
    ) -> KernelTime | None:
        """Return the time of a kernel of one of the Types, by the one that is nearest in size."""
        wanted = [name for name in types if name.endswith(_GRADIENTS) == backward]
        rows = self._typical[self._typical["type"].isin(wanted)]
        if rows.empty or moved <= 0:
            return None
        ratio = moved / rows["moved"].to_numpy(np.float64)
        at = int(np.abs(np.log(ratio)).argmin())
        if not 1 / _ALIKE <= ratio[at] <= _ALIKE:
            return None
        nearest = rows.iloc[at]
        busy = max(0.0, float(nearest["duration"]) - launch_ns)
        time = float(nearest["duration"]) - busy + busy * float(ratio[at])
        spread = _SPREAD + 0.25 * abs(float(np.log(ratio[at])))
        corners = (time * (1 + spread), time, time / (1 + spread))
        basis = f"{nearest['type']} of this dump, which moves {size(float(nearest['moved']))}"
        return KernelTime(corners, basis)

    def rates(self, moved: float) -> tuple[float, float] | None:
        """Return how fast element-wise kernels of about this size move it, bytes per ns."""
        rows = self._typical[self._typical["type"].isin(ELEMENT_WISE)]
        sizes = rows["moved"].to_numpy(np.float64)
        if moved <= 0:
            return None
        near = (sizes >= moved / _NEAR) & (sizes <= moved * _NEAR)
        if np.count_nonzero(near) < _FEW:
            return None
        found = sizes[near] / rows["duration"].to_numpy(np.float64)[near]
        return float(np.quantile(found, 0.25)), float(np.quantile(found, 0.75))
