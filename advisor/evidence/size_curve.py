"""How long a kernel takes by its size: what was measured of other sizes, and how far that is off.

Between two measured sizes the time is a line, latency + size / rate, as the two of them show it;
beyond them it goes on so from the outermost. It never falls with the size: where measured times
do, they are taken together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_SPREAD, _PER_FACTOR = 0.15, 0.25
"""Of the time, where too few sizes show how far off it is; and for each factor e in size."""
_ENOUGH, _SURE, _LEAST = 5, 0.9, 0.03
"""Sizes of which each one, left out, shows how far off the others are with it."""


@dataclass(frozen=True, slots=True)
class SizeCurve:
    """Sizes in order, each once, and the times of them."""

    sizes: Floats
    times: Floats
    latency_ns: float

    def time(self, size: float) -> float:
        """Return the expected time, nanoseconds."""
        first, last = self.sizes[0], self.sizes[-1]
        if first <= size <= last:
            return float(np.interp(size, self.sizes, self.times))
        edge, known = (first, self.times[0]) if size < first else (last, self.times[-1])
        latency = min(self.latency_ns, float(known))
        return latency + (float(known) - latency) * size / float(edge)

    def spread(self, size: float) -> float:
        """Return how far off it may be, a share of the time: in nine of ten cases less."""
        beyond = abs(np.log(size / min(max(size, self.sizes[0]), self.sizes[-1])))
        if len(self.sizes) < _ENOUGH:
            nearest = np.abs(np.log(size / self.sizes)).min()
            return float(_SPREAD + _PER_FACTOR * nearest)
        seen = np.quantile(self._errors(), _SURE, method="higher")
        return float(max(_LEAST, np.expm1(seen)) + _PER_FACTOR * beyond)

    def _errors(self) -> Floats:
        """Return how far off the time of each size between is that the others show, logarithms."""
        inner = range(1, len(self.sizes) - 1)
        found = [
            _curve(np.delete(self.sizes, at), np.delete(self.times, at), self.latency_ns).time(
                float(self.sizes[at])
            )
            for at in inner
        ]
        return np.abs(np.log(np.array(found) / self.times[1:-1]))


def size_curve(sizes: Floats, times: Floats, latency_ns: float) -> SizeCurve:
    """Return the curve of some measured kernels, at least one; sizes and times are above 0."""
    own, of_row = np.unique(sizes, return_inverse=True)
    middle = np.array([np.median(times[of_row == at]) for at in range(len(own))])
    return _curve(own, middle, latency_ns)


def _curve(sizes: Floats, times: Floats, latency_ns: float) -> SizeCurve:
    """Join neighbours whose times fall until none does: their geometric mean counts."""
    blocks: list[tuple[float, int]] = []
    for value in np.log(times).tolist():
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            other, more = blocks.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        blocks.append((mean, count))
    joined = np.repeat([mean for mean, _ in blocks], [count for _, count in blocks])
    return SizeCurve(sizes, np.exp(joined), latency_ns)
