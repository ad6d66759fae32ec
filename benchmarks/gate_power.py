"""How often the gate is wrong: false alarms, and true changes that it misses.

``python -m benchmarks.gate_power`` prints the table. Every run is a list of steps; it goes through
the same medians, the same baseline file and the same decision as a dump. The steps of a run share
its luck, each has some of its own, and a few have a hiccup.

A change is put into the free time alone: then only the step time shows it, and the correction for
testing several metrics costs the most. ``--dumps`` makes dumps instead, and reads them: runs of the
same program whose steps take longer, by luck or by a change.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.dump import write_dump
from benchmarks.generator.parameters import Parameters
from benchmarks.generator.run import Run, Step, simulate

from npufix.advisor.diagnose.diagnosis import Options
from npufix.advisor.gate import baselines
from npufix.advisor.gate.deciding import cases, decide
from npufix.advisor.gate.measuring import measure, median_of
from npufix.advisor.project.gate_settings import GateSettings
from npufix.reports.baseline import from_json, to_json
from npufix.reports.measurement import MeasuredMetric, Measurement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.generator.text import Integers

STEPS = 8
_FILES = ("kernel_details.csv", "step_trace_time.csv", "memory_record.csv")
_PARTS = {"computing_ns": 500e6, "communication_exposed_ns": 200e6, "free_ns": 100e6}
_STEP_NS = sum(_PARTS.values())
_TAIL = 3
"""Degrees of freedom of the heavy-tailed noise."""
CHANGES = (0.0, 0.08, 0.15)
RUNS = ((5, 3), (10, 3), (3, 3))
PAIRS = ((5, 5), (3, 3))
_POOL = {0.0: 48, 0.08: 16, 0.15: 16}
FEW_RUNS = ((3, 1), (1, 1))
_CLOSE = 10
"""So many times more comparisons where runs are disturbed: all of three are in 0.8 % of the cases,
which is what makes most false alarms."""


@dataclass(frozen=True)
class Noise:
    """Relative standard deviations, and how often a step takes 1.2 to 2 times as long.

    ``disturbed``: how often a run takes 10% longer, ``day``: by what all runs of the change differ
    from those of the baseline. ``drift``: runs are taken in turn, and while they last everything
    becomes that much slower, with as much luck from run to run as they have themselves.
    """

    run: float
    step: float
    hiccups: float = 0.03
    heavy: bool = False
    disturbed: float = 0.0
    day: float = 0.0
    drift: float | None = None

    def __str__(self) -> str:
        """Return the cells of a row."""
        tail = ", heavy tails" if self.heavy else ""
        tail += f", {self.disturbed:.0%} of the runs +10%" if self.disturbed else ""
        tail += f", another day {self.day:.0%}" if self.day else ""
        tail += "" if self.drift is None else f", in turn, drift {self.drift:.0%}"
        return f"{self.run:.1%} / {self.step:.0%} / {self.hiccups:.0%}{tail}"


NOISES = (
    Noise(0.015, 0.0, 0.0), Noise(0.015, 0.03), Noise(0.015, 0.03, heavy=True), Noise(0.03, 0.03),
    Noise(0.03, 0.05, heavy=True), Noise(0.015, 0.01), Noise(0.015, 0.01, disturbed=0.2),
    Noise(0.015, 0.01, day=0.02),
)  # fmt: skip
IN_TURN = (
    Noise(0.015, 0.01, drift=0.0), Noise(0.015, 0.01, drift=0.06), Noise(0.03, 0.03, drift=0.06),
    Noise(0.015, 0.01, disturbed=0.2, drift=0.06),
)  # fmt: skip


def a_run(
    noise: Noise, change: float, random: np.random.Generator, day: float = 1.0
) -> Measurement:
    """Return a run whose steps take ``change`` longer, all of it idle time.

    On such a day everything takes ``day`` times as long.
    """
    luck = random.standard_t(_TAIL, 2) / _TAIL**0.5 if noise.heavy else random.standard_normal(2)
    # Communication has its own luck: the network's.
    of_run = np.exp(noise.run * luck)[[0, 1, 0]] * (1.1 if random.random() < noise.disturbed else 1)
    of_step = np.exp(noise.step * random.standard_normal((STEPS, 1)))
    hiccup = random.random((STEPS, 1)) < noise.hiccups
    of_step = np.where(hiccup, of_step * random.uniform(1.2, 2, (STEPS, 1)), of_step)
    parts = np.add(list(_PARTS.values()), [0, 0, change * _STEP_NS])
    computing, exposed, free = np.rint(parts * of_run * of_step * day).T
    times = {
        "step-time": computing + exposed + free,
        "compute": computing,
        "exposed-communication": exposed,
        "free-time": free,
    }
    metrics = {name: median_of(each) for name, each in times.items()}
    memory = MeasuredMetric(2e10 * float(np.exp(0.001 * random.standard_normal())), "bytes")
    return Measurement("", None, STEPS, {**metrics, "peak-memory": memory})


def fails(
    before: Sequence[Measurement], after: Sequence[Measurement], *, paired: bool = False
) -> bool:
    """Tell whether the gate fails these runs, by default settings."""
    baseline = from_json(to_json(baselines.merge_baseline(before)))
    partners = before if paired else ()
    decided = decide(cases(baseline, after, GateSettings(), partners), GateSettings(), {})
    return any(m.level == "error" and m.verdict == "regression" for m in decided)


def shares_failed(
    noise: Noise,
    runs: tuple[int, int],
    comparisons: int,
    changes: Sequence[float] = CHANGES,
    seed: int = 0,
) -> list[float]:
    """Return for each change how often runs that are slower by it fail."""
    random = np.random.default_rng([seed, *runs])
    failed = [0] * len(changes)
    for _ in range(comparisons):
        days = np.ones(sum(runs)) if noise.drift is None else drifting(noise, sum(runs), random)
        before = [a_run(noise, 0.0, random, day) for day in days[: runs[0]]]
        for at, change in enumerate(changes):
            day = float(np.exp(noise.day * random.standard_normal()))
            after = [a_run(noise, change, random, day * each) for each in days[runs[0] :]]
            failed[at] += fails(before, after, paired=noise.drift is not None)
    return [each / comparisons for each in failed]


def drifting(noise: Noise, count: int, random: np.random.Generator) -> list[float]:
    """Return by what the runs of base, then those of head, are slower when they are taken in turn.

    Base is first in every other pair.
    """
    walk = np.cumsum(noise.run * random.standard_normal(count)) if noise.drift else np.zeros(count)
    slower = np.exp(walk + (noise.drift or 0.0) * np.linspace(0, 1, count))
    first = [2 * pair + pair % 2 for pair in range(count // 2)]
    return [*slower[first], *slower[[place + 1 - 2 * (place % 2) for place in first]]]


def write_slowed(dump: Path, factors: Sequence[float], kernels: int = 400) -> Path:
    """Write a dump of the same program each time; each of its steps takes that many times as long.

    ``dump`` is the path of its folder, which is returned.
    """
    own = Parameters(kernels=kernels, steps=STEPS, warmup=False, stacks=False)
    run = slow_down(simulate(own), factors)
    return write_dump(own, dump.parent, only=_FILES, run=run).rename(dump)


def slow_down(run: Run, factors: Sequence[float]) -> Run:
    """Stretch everything in each step of a run; each step starts when the one before has ended."""
    begin = run.steps[0].start_ns
    before = np.array([*(step.start_ns for step in run.steps), run.steps[-1].end_ns]) - begin
    after = np.append(0, np.cumsum(np.diff(before) * factors))

    def moved(times: Integers) -> Integers:
        behind: Integers = np.rint(np.interp(times - begin, before, after)).astype(np.int64)
        return begin + behind

    launches, kernels = run.launches, run.kernels
    started, began = moved(launches.start_ns), moved(kernels.start_ns)
    host = moved(launches.start_ns + launches.host_ns) - started
    duration = moved(kernels.start_ns + kernels.duration_ns) - began
    wait = began - moved(kernels.start_ns - kernels.wait_ns)
    edges = moved(np.array([(step.start_ns, step.end_ns) for step in run.steps])).tolist()
    return replace(
        run,
        launches=replace(launches, start_ns=started, host_ns=host),
        kernels=replace(kernels, start_ns=began, duration_ns=duration, wait_ns=wait),
        steps=tuple(Step(*each) for each in edges),
    )


def step_factors(change: float, random: np.random.Generator) -> list[float]:
    """Return how much longer each step of a run takes, by luck and by a change."""
    noise = NOISES[1]
    step = np.exp(noise.step * random.standard_normal(STEPS))
    hiccup = np.where(random.random(STEPS) < noise.hiccups, random.uniform(1.2, 2, STEPS), 1.0)
    of_run = np.exp(noise.run * random.standard_normal())
    return [float(each) for each in (1 + change) * of_run * step * hiccup]


def _print_dumps(comparisons: int, seed: int) -> None:
    """Print how often comparisons that are drawn from the pool fail."""
    random = np.random.default_rng(seed)
    runs: dict[float, list[Measurement]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for change, count in _POOL.items():
            for number in range(count):
                dump = Path(folder) / f"{change}-{number}"
                write_slowed(dump, step_factors(change, random))
                runs.setdefault(change, []).append(measure(dump, None, Options()))
                shutil.rmtree(dump)
    for change in _POOL:
        failed = 0
        for _ in range(comparisons):
            drawn = random.permutation(_POOL[0.0])[: sum(RUNS[0])]
            before = [runs[0.0][at] for at in drawn[: RUNS[0][0]]]
            after = [runs[0.0][at] for at in drawn[RUNS[0][0] :]]
            if change:
                chosen = random.permutation(_POOL[change])[: RUNS[0][1]]
                after = [runs[change][at] for at in chosen]
            failed += fails(before, after)
        print(f"{change:+.0%}: {failed} of {comparisons} comparisons fail", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.gate_power", description=__doc__)
    parser.add_argument("--comparisons", type=int, default=200, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dumps", action="store_true", help="make dumps and read them")
    options = parser.parse_args()
    if options.dumps:
        _print_dumps(options.comparisons, options.seed)
        return
    print("| noise: run / step / hiccups | runs | false alarms | +8 % found | +15 % found |")
    print("|---|---|---|---|---|")
    for noise in (*NOISES, *IN_TURN):
        sizes = RUNS if noise.drift is None else PAIRS
        sizes += ((10, 5),) if noise.disturbed and noise.drift is None else ()
        for runs in (*RUNS, *FEW_RUNS) if noise is NOISES[1] else sizes:
            count = options.comparisons * (_CLOSE if noise.disturbed else 1)
            shares = shares_failed(noise, runs, count, seed=options.seed)
            cells = [f"{share:.1%}" for share in shares]
            print(f"| {noise} | {runs[0]} / {runs[1]} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
