"""How often ``npufix history check`` finds a step or a drift, and how often there is none.

``python -m benchmarks.history_power`` prints the table of ``docs/howto/gate.md``: histories with
luck of several kinds, with nothing in them, with a step before the last five runs, with a drift.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.history.shifts import find_shifts
from npufix.advisor.history.trends import SMALLEST_CHANGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Luck = Callable[[np.random.Generator, int], Floats]

_LAST_RUNS = 5
_MONTH = 30


def _disturb(rng: np.random.Generator, count: int) -> Floats:
    """One run of seven is slowed by 8 % on average."""
    hit = rng.random(count) < 1 / 7
    return rng.normal(0, 0.01, count) + hit * rng.exponential(0.08, count)


def _of_days(rng: np.random.Generator, count: int) -> Floats:
    """Five runs of a day share its luck."""
    days = np.repeat(rng.normal(0, 0.01, count // 5 + 1), 5)[:count]
    return days + rng.normal(0, 0.012, count)


_LUCK: dict[str, Luck] = {
    "1.5 %": lambda rng, count: rng.normal(0, 0.015, count),
    "3 %": lambda rng, count: rng.normal(0, 0.03, count),
    "heavy tail": lambda rng, count: 0.012 * rng.standard_t(3, count),
    "1 run of 7 disturbed": _disturb,
    "5 runs a day": _of_days,
}
_RUNS_A_DAY = {"5 runs a day": 5}


def _measure(
    luck: Luck, count: int, times: int, rng: np.random.Generator, a_day: int = 1
) -> tuple[float, ...]:
    """Return the shares of histories with a false alarm, a step of 5 % or 8 % found, a drift."""
    found = np.zeros(4)
    slope = np.arange(count) * np.log1p(0.04) / _MONTH
    days = [number // a_day for number in range(count)]
    for _ in range(times):
        found[0] += bool(find_shifts(np.exp(luck(rng, count)), SMALLEST_CHANGE, days).shifts)
        for number, size in enumerate((0.05, 0.08), 1):
            x = luck(rng, count)
            x[-_LAST_RUNS:] += np.log1p(size)
            shifts = find_shifts(np.exp(x), SMALLEST_CHANGE, days).shifts
            found[number] += any(s.change > 0 and s.end >= count - 7 for s in shifts)
        shifts = find_shifts(np.exp(luck(rng, count) + slope), SMALLEST_CHANGE, days).shifts
        found[3] += any(s.change > 0 for s in shifts)
    return tuple(found / times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.history_power", description=__doc__)
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    print("| luck between runs | runs | found in nothing | +5 % | +8 % | +4 % a month |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, luck in _LUCK.items():
        for count in (20, 60, 120):
            found = _measure(luck, count, asked.times, rng, _RUNS_A_DAY.get(name, 1))
            shares = " | ".join(f"{s:.0%}" for s in found)
            print(f"| {name} | {count} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
