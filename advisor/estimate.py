"""What a change would save, calibrated on the dump itself.

The replacement is taken for a kernel limited by memory: it reads and writes the largest tensor of
the place a known number of times, as fast as the element-wise kernels of this very dump do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.reports.report import Saving

if TYPE_CHECKING:
    import pandas as pd

# Kernels that do little more than move their operands.
ELEMENTWISE = (
    "Add", "Adds", "Axpy", "BroadcastTo", "Cast", "Div", "Exp", "MaskedFill", "Mul", "Muls",
    "RealDiv", "Relu", "ReluGrad", "SelectV2", "Sub", "Tanh", "TensorMove",
)  # fmt: skip
_BYTES = {
    "BF16": 2, "BOOL": 1, "COMPLEX64": 8, "DOUBLE": 8, "FLOAT": 4, "FLOAT16": 2, "INT16": 2,
    "INT32": 4, "INT64": 8, "INT8": 1, "UINT8": 1,
}  # fmt: skip
_LARGE = 1 << 20
_FEW = 5
# HBM of an Atlas A2 device reaches about 1.6 TB/s on paper; kernels get a quarter to all of it.
_ASSUMED_BYTES_PER_NS = (400.0, 1600.0)
_ASSUMED_LAUNCH_NS = (2_000.0, 10_000.0)


@dataclass(frozen=True, slots=True)
class Calibration:
    """How fast memory-bound kernels run in this dump; low is the slower end."""

    bytes_per_ns: tuple[float, float]
    launch_ns: tuple[float, float]
    basis: str


def tensor_bytes(shapes: str, dtypes: str) -> list[int]:
    """Return the size of each tensor of a shape cell: ``"4,8;8"`` and ``"FLOAT;INT64"``."""
    sizes = []
    names = dtypes.split(";")
    for index, shape in enumerate(shapes.split(";")):
        dims = [int(d) for d in shape.split(",") if d.strip().isdigit()]
        name = names[index].removeprefix("DT_") if index < len(names) else ""
        sizes.append(int(np.prod(dims, dtype=np.int64)) * _BYTES.get(name, 4) if dims else 0)
    return sizes


def calibrate(kernels: pd.DataFrame) -> Calibration:
    """Measure the bandwidth of the large element-wise kernels and the time of the smallest."""
    own = kernels[kernels["type"].isin(ELEMENTWISE) & (kernels["duration_ns"] > 0)]
    keys = ["input_shapes", "input_dtypes", "output_shapes"]
    groups = own.groupby(keys, observed=True)["duration_ns"].median()
    rates: list[float] = []
    small: list[float] = []
    for inputs, dtypes, outputs, duration in groups.reset_index().itertuples(index=False):
        moved = sum(tensor_bytes(str(inputs), str(dtypes)))
        moved += sum(tensor_bytes(str(outputs), str(dtypes)))
        if moved >= _LARGE:
            rates.append(moved / float(duration))
        elif moved:
            small.append(float(duration))
    launch = _ASSUMED_LAUNCH_NS
    if len(small) >= _FEW:
        launch = (float(np.quantile(small, 0.1)), float(np.quantile(small, 0.5)))
    if len(rates) < _FEW:
        return Calibration(
            _ASSUMED_BYTES_PER_NS,
            launch,
            "assumed bandwidth of 0.4 to 1.6 TB/s: too few large element-wise kernels to measure",
        )
    slow, fast = float(np.quantile(rates, 0.25)), float(np.quantile(rates, 0.75))
    basis = f"element-wise kernels of this dump move {slow / 1000:.2f} to {fast / 1000:.2f} TB/s"
    return Calibration((slow, fast), launch, basis)


@dataclass(frozen=True, slots=True)
class Replacement:
    """The work of the new kernels, over all recorded steps."""

    forward_calls: int
    backward_calls: int
    largest_tensor: int
    """Bytes."""
    passes: tuple[float, float]

    def time_ns(self, bytes_per_ns: float, launch_ns: float) -> float:
        """Return the time of all calls."""
        return sum(
            calls * (launch_ns + passes * self.largest_tensor / bytes_per_ns)
            for calls, passes in zip(
                (self.forward_calls, self.backward_calls), self.passes, strict=True
            )
            if passes
        )


def saving(now_ns: int, new: Replacement, calibration: Calibration, steps: int) -> Saving:
    """Return the interval of what is saved per step; never less than nothing."""
    slow = new.time_ns(calibration.bytes_per_ns[0], calibration.launch_ns[1])
    fast = new.time_ns(calibration.bytes_per_ns[1], calibration.launch_ns[0])
    return Saving(
        low_ns=max(0, round((now_ns - slow) / steps)),
        high_ns=max(0, round((now_ns - fast) / steps)),
        basis=calibration.basis,
    )
