"""What a change would save, calibrated on the dump itself.

The replacement is taken for a kernel limited by memory: it reads and writes the largest tensor of
the place a known number of times, as fast as the element-wise kernels of this very dump do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.evidence.change import NewWork
from npufix.advisor.evidence.kernel_times import KernelSize, is_gradient
from npufix.reports.report import Saving
from npufix.rules.shared.chips import usual_bandwidth
from npufix.rules.shared.quantities import size
from npufix.rules.shared.recording.recorded_cells import (
    CELLS,
    ELEMENT_WISE,
    LARGE_BYTES,
    count_moved_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    import pandas as pd

    from npufix.advisor.evidence.kernel_times import MeasuredKernels

_FEW = 5
_ASSUMED_FAMILY, _ASSUMED_SHARES = "A2", (0.25, 1.0)
"""Whose memory, and how much of what it can do kernels get."""
_REDUCING_PACE, _GRADIENT_PACE = (0.65, 0.85, 1.1), (0.4, 0.65, 0.95)
"""Kernels that look at a row twice, and gradients, move less: on a 910B RmsNorm 0.53 to 0.78 TB/s,
RmsNormGrad 0.22 to 0.36, SwiGluGrad 0.55, where additions of that size move 0.7 to 1.0."""
_PRODUCT_PACE = ((0.4, 0.65, 0.9), (0.35, 0.55, 0.8))
"""Products inside of a fused kernel, of attention, compute so much of what the quickest product of
a run does, forward and backward."""
_ASSUMED_LAUNCH_NS = (2_000.0, 10_000.0)


@dataclass(frozen=True, slots=True)
class Calibration:
    """How fast memory-bound kernels run in this dump; low is the slower end."""

    bytes_per_ns: tuple[float, float]
    launch_ns: tuple[float, float]
    basis: str


def calibrate(kernels: pd.DataFrame) -> Calibration:
    """Measure the bandwidth of the large element-wise kernels and the time of the smallest."""
    wanted = kernels["type"].isin(ELEMENT_WISE) & (kernels["duration_ns"] > 0)
    own = kernels.loc[wanted, [*CELLS, "duration_ns"]]
    own = own.assign(moved=count_moved_bytes(own))
    # One figure for each shape, however often it ran.
    groups = own[own["moved"] > 0].groupby(CELLS, observed=True)
    typical = groups.agg(moved=("moved", "first"), duration=("duration_ns", "median"))
    is_large = typical["moved"] >= LARGE_BYTES
    rates = (typical["moved"] / typical["duration"])[is_large].to_numpy()
    small = typical.loc[~is_large, "duration"].to_numpy()
    launch = _ASSUMED_LAUNCH_NS
    if len(small) >= _FEW:
        launch = (float(np.quantile(small, 0.1)), float(np.quantile(small, 0.5)))
    if len(rates) < _FEW:
        peak = usual_bandwidth(_ASSUMED_FAMILY)
        slow, fast = (share * peak for share in _ASSUMED_SHARES)
        basis = (
            f"assumed bandwidth of {slow / 1000:.1f} to {fast / 1000:.1f} TB/s: too few large "
            "element-wise kernels to measure"
        )
        return Calibration((slow, fast), launch, basis)
    slow, fast = float(np.quantile(rates, 0.25)), float(np.quantile(rates, 0.75))
    basis = f"element-wise kernels of this dump move {slow / 1000:.2f} to {fast / 1000:.2f} TB/s"
    return Calibration((slow, fast), launch, basis)


@dataclass(frozen=True, slots=True)
class NewKernels:
    """The work of the new kernels, over all recorded steps."""

    forward_calls: int
    backward_calls: int
    largest_tensor: int
    """Bytes."""
    passes: tuple[float, float]
    launches: tuple[int, int] = (1, 1)
    """Of one call."""
    operations: tuple[float, float] = (0.0, 0.0)
    """Of the products that one call replaces; 0 where there are none."""
    dtype: str = ""
    """Of the largest tensor."""
    products_ns: tuple[float, float] = (0.0, 0.0)
    """What those products take now: a fused kernel that holds them takes no longer for them."""

    def time_ns(self, bytes_per_ns: float, launch_ns: float) -> float:
        """Return the time of all calls."""
        return sum(
            calls * (count * launch_ns + passes * self.largest_tensor / bytes_per_ns)
            for calls, passes, count in zip(
                (self.forward_calls, self.backward_calls), self.passes, self.launches, strict=True
            )
            if passes
        )

    def _computes_ns(self, way: int, measured: MeasuredKernels) -> tuple[float, float, float]:
        """Return what the products of one call take inside of a fused kernel, the slowest first."""
        now, operations = self.products_ns[way], self.operations[way]
        rate = measured.product_rate(self.dtype)
        if not (now and operations and rate):
            return 0.0, 0.0, 0.0
        slow, usual, fast = (min(now, operations / (rate * pace)) for pace in _PRODUCT_PACE[way])
        return slow, usual, fast

    def work(
        self, calibration: Calibration, measured: MeasuredKernels, becomes: Collection[str]
    ) -> tuple[NewWork | None, NewWork | None]:
        """Return what one execution launches, forward and backward.

        As the kernels of the same Types in the recording, else as fast as element-wise kernels of
        that size move as much, else as fast as all of them.
        """

        def one(calls: int, way: int) -> NewWork | None:
            count, moved = self.launches[way], self.passes[way] * self.largest_tensor
            if not moved or not calls:
                return None
            quick, long = calibration.launch_ns
            wanted = KernelSize(moved, self.operations[way], self.dtype)
            same = measured.of_types(becomes, wanted, quick, backward=bool(way))
            if count == 1 and same:
                return NewWork(1, same.time_ns, same.basis)
            near = measured.rates(moved)
            slow, fast = near or calibration.bytes_per_ns
            # Near in size the time of a launch is in the rate already.
            quick, long = (0.0, quick) if near else (quick, long)
            least, usual, most = _pace(becomes, backward=bool(way))
            corners = (
                (slow * least, long),
                ((slow * fast) ** 0.5 * usual, (quick + long) / 2),
                (fast * most, quick),
            )
            slowest, middle, quickest = (
                count * launch + max(moved / rate, products)
                for (rate, launch), products in zip(
                    corners, self._computes_ns(way, measured), strict=True
                )
            )
            basis = f"as fast as element-wise kernels of this dump, {size(moved)} to move"
            return NewWork(count, (slowest, middle, quickest), basis)

        return one(self.forward_calls, 0), one(self.backward_calls, 1)


def _pace(becomes: Collection[str], *, backward: bool) -> tuple[float, float, float]:
    """Return how fast new kernels move their data, as a share of what element-wise ones do."""
    own = [name for name in becomes if is_gradient(name) == backward]
    if backward and (own or not set(becomes) <= set(ELEMENT_WISE)):
        return _GRADIENT_PACE if own else _REDUCING_PACE
    return _REDUCING_PACE if any("Norm" in name for name in own) else (1.0, 1.0, 1.0)


def estimate_saving(now_ns: int, new: NewKernels, calibration: Calibration, steps: int) -> Saving:
    """Return the interval of what is saved per step; never less than nothing."""
    slow = new.time_ns(calibration.bytes_per_ns[0], calibration.launch_ns[1])
    fast = new.time_ns(calibration.bytes_per_ns[1], calibration.launch_ns[0])
    return Saving(
        low_ns=max(0, round((now_ns - slow) / steps)),
        high_ns=max(0, round((now_ns - fast) / steps)),
        basis=calibration.basis,
    )
