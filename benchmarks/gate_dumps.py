"""Dumps of runs that differ by noise, or by a change: what the gate is tried on.

One generated dump is copied with the times of its steps and kernels changed, so that all runs are
the same program. ``python -m benchmarks.gate_power --dumps`` draws comparisons from a pool of them.
"""

from __future__ import annotations

import csv
import shutil
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.dump import OUTPUT, write_dump
from benchmarks.generator.parameters import Parameters

from npufix.advisor.diagnose.diagnosis import Options
from npufix.advisor.gate.measuring import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npufix.reports.measurement import Measurement

STEPS = 8
_FILES = ("kernel_details.csv", "step_trace_time.csv", "memory_record.csv")
_RUN_NOISE, _STEP_NOISE, _HICCUPS = 0.015, 0.03, 0.03
_POOL = {0.0: 48, 0.08: 16, 0.15: 16}
_BASELINE_RUNS, _CURRENT_RUNS = 5, 3


def program(folder: Path, kernels: int = 400) -> Path:
    """Write the dump that all others are copies of."""
    own = Parameters(kernels=kernels, steps=STEPS, warmup=False, stacks=False)
    return write_dump(own, folder, only=_FILES)


def slowed(dump: Path, copy: Path, factors: Sequence[float]) -> Path:
    """Copy a dump; each of its steps takes that many times as long."""
    shutil.copytree(dump, copy)
    output = copy / OUTPUT
    by_step: dict[str, float] = {}

    def of_steps(header: list[str], row: list[str]) -> list[str]:
        factor = by_step.setdefault(row[header.index("Step")], factors[len(by_step)])
        kept = {"Step", "Device_id"}
        return [cell if name in kept else f"{float(cell) * factor:.3f}"
                for name, cell in zip(header, row, strict=True)]  # fmt: skip

    clock = _Clock(by_step)

    def of_kernels(header: list[str], row: list[str]) -> list[str]:
        step, start = row[header.index("Step Id")], header.index("Start Time(us)")
        at = header.index("Duration(us)")
        row[at] = f"{float(row[at]) * by_step[step]:.3f}"
        row[start] = clock.moment(step, row[start].strip()) + "\t"
        return row

    _rewrite(output / "step_trace_time.csv", of_steps)
    _rewrite(output / "kernel_details.csv", of_kernels)
    return copy


class _Clock:
    """Moments in a run whose steps take longer: each step starts when the one before has ended."""

    def __init__(self, factors: Mapping[str, float]) -> None:
        self._factors = factors
        self._step = ""
        self._first = self._begins = self._last = self._ends = Decimal(0)

    def moment(self, step: str, text: str) -> str:
        """Return when something happens that happened at ``text``, in order of time."""
        now = Decimal(text)
        if step != self._step:
            self._begins = self._ends + now - self._last if self._step else now
            self._step, self._first = step, now
        self._last = now
        self._ends = self._begins + (now - self._first) * Decimal(self._factors[step])
        return f"{self._ends:.3f}"


def _rewrite(path: Path, change: Callable[[list[str], list[str]], list[str]]) -> None:
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *(change(header, row) for row in rows)])


def factors(change: float, random: np.random.Generator) -> list[float]:
    """Return how much longer each step of a run takes, by luck and by a change."""
    step = np.exp(_STEP_NOISE * random.standard_normal(STEPS))
    hiccup = np.where(random.random(STEPS) < _HICCUPS, random.uniform(1.2, 2, STEPS), 1.0)
    of_run = np.exp(_RUN_NOISE * random.standard_normal())
    return [float(each) for each in (1 + change) * of_run * step * hiccup]


def print_dumps(comparisons: int, seed: int) -> None:
    """Print how often comparisons that are drawn from the pool fail."""
    from benchmarks.gate_power import fails  # noqa: PLC0415 - which imports this

    random = np.random.default_rng(seed)
    runs: dict[float, list[Measurement]] = {}
    with tempfile.TemporaryDirectory() as folder:
        original = program(Path(folder) / "program")
        for change, count in _POOL.items():
            for number in range(count):
                copy = Path(folder) / f"{change}-{number}"
                slowed(original, copy, factors(change, random))
                runs.setdefault(change, []).append(measure(copy, None, Options()))
                shutil.rmtree(copy)
    for change in _POOL:
        failed = 0
        for _ in range(comparisons):
            drawn = random.permutation(_POOL[0.0])[: _BASELINE_RUNS + _CURRENT_RUNS]
            before = [runs[0.0][at] for at in drawn[:_BASELINE_RUNS]]
            after = [runs[0.0][at] for at in drawn[_BASELINE_RUNS:]]
            if change:
                chosen = random.permutation(_POOL[change])[:_CURRENT_RUNS]
                after = [runs[change][at] for at in chosen]
            failed += fails(before, after)
        print(f"{change:+.0%}: {failed} of {comparisons} comparisons fail", flush=True)
