"""How much a chip computes and moves at most, by the table of chips or by what it has shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.roofline.work import RATE_NAMES
from npufix.rules.shared.chips import find_chips, largest_bandwidth, usual_bandwidth
from npufix.rules.shared.recording.recorded_cells import LARGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from npufix.advisor.roofline.work import Work
    from npufix.rules.shared.chips import Chip

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

_LARGE_PRODUCT = 1e9
"""Operations from which a product shows how quickly the chip computes."""
_BEYOND_CACHE = (1 << 28, 1 << 25, LARGE_BYTES)
"""Bytes of kernels that show the bandwidth of the memory, not of a cache: the first there are."""
_FLOOR_SHARE, _LONGEST_FLOOR_NS = 0.01, 5_000.0
_FAMILY = "A2"
"""Of which kind a chip is taken to be where neither its name nor the recording says anything."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak rates."""

    operations: Floats
    """Per nanosecond, by the position of the dtype in ``RATE_NAMES``."""
    bytes_per_ns: float
    floor_ns: float
    """The shortest kernels of the recording: what one takes that does nothing."""
    chip: str
    """"" where it is not known."""
    basis: str
    sources: tuple[str, ...] = ()
    link_bytes_per_ns: float | None = None


def find_rates(
    work: Work, durations: Floats, recorded: str | None, families: Collection[str]
) -> Rates:
    """Return the rates of the chip of a run; of an unknown one, the best that its kernels reach.

    ``durations`` are those of the kernels that ``work`` is of, those that compute.
    """
    floor = _floor(durations)
    chips = find_chips(recorded, families)
    if chips:
        return _of_chips(chips, floor)
    quickest = np.full(len(work.moved), np.inf)
    ran = np.where(durations > 0, durations, np.inf)
    np.minimum.at(quickest, work.of_kernel, ran)
    operations, known = _measure_operations(work, quickest)
    bandwidth = _measure_bandwidth(work, quickest)
    basis = "the best that kernels of this recording reach, as its chip is not recorded"
    if bandwidth is None or not known:
        bandwidth = bandwidth or usual_bandwidth(_FAMILY)
        basis += f" (of {_FAMILY} where none is large enough to tell)"
        assumed = _of_chips(find_chips("?", (_FAMILY,)), floor)
        operations = np.where(operations > 0, operations, assumed.operations)
    # A product of a dtype that has shown nothing is not slower than the quickest that has.
    operations = np.where(operations > 0, operations, operations.max())
    return Rates(operations, bandwidth, floor, "", basis)


def _of_chips(chips: Sequence[Chip], floor: float) -> Rates:
    """Return the rates of the quickest of several chips."""
    operations = np.zeros(len(RATE_NAMES))
    for at, name in enumerate(RATE_NAMES):
        dtypes = (name, "tf32") if name == "fp32" else (name,)
        rates = [chip.tflops.get(dtype, 0.0) for chip in chips for dtype in dtypes]
        operations[at] = 1000 * max(rates)
    operations = np.where(operations > 0, operations, operations.max())
    names = ", ".join(chip.name for chip in chips)
    return Rates(
        operations,
        1000 * max(chip.tb_per_s for chip in chips),
        floor,
        names,
        f"the peak rates of {names}" if len(chips) == 1 else f"the highest peak rates of {names}",
        tuple(chip.source for chip in chips),
        max(chip.link_gb_per_s for chip in chips),
    )


def _floor(durations: Floats) -> float:
    shown = durations[durations > 0]
    if not len(shown):
        return 0.0
    return min(_LONGEST_FLOOR_NS, float(np.quantile(shown, _FLOOR_SHARE)))


def _measure_operations(work: Work, quickest: Floats) -> tuple[Floats, bool]:
    """Return what products of each dtype have reached, 0 where there is no large one."""
    rates = np.zeros(len(RATE_NAMES))
    large = work.operations >= _LARGE_PRODUCT
    np.maximum.at(rates, work.rate[large], work.operations[large] / quickest[large])
    return rates, bool(rates.any())


def _measure_bandwidth(work: Work, quickest: Floats) -> float | None:
    # Quicker than any memory is only what does not read all of it: 10 rows of a large table.
    possible = work.moved <= largest_bandwidth() * quickest
    moves = (work.operations == 0) & np.isfinite(quickest) & possible
    for least in _BEYOND_CACHE:
        large = moves & (work.moved >= least)
        if large.any():
            return float((work.moved[large] / quickest[large]).max())
    return None
