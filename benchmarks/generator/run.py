"""The profiled run: every launch and every kernel on a clock, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from benchmarks.generator.overlap import split_step
from benchmarks.generator.program import PROGRAM
from benchmarks.generator.schedule import step_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.generator.overlap import Split
    from benchmarks.generator.parameters import Parameters
    from benchmarks.generator.program import Program
    from benchmarks.generator.schedule import Part
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

EPOCH_NS = 1_736_408_883_000_000_000
NEST_NS, BEFORE_QUEUE_NS, NODE_NS = 2_000, 8_000, 1_500
"""Start of an operator behind the one around it; of its task in the queue; between its kernels."""
_BETWEEN_LAUNCHES_NS, _DATA_LOADER_NS, _LATENCY_NS = 16_000, 400_000, 6_000
_WARMUP, _OUTLIER = 1.6, 4.0

_HOST_NS = np.array([round(launch.host_us * 1000) for launch in PROGRAM.launches])
_DEVICE_NS = np.array([kernel.duration_us * 1000 for kernel in PROGRAM.kernels])
_FIRST_KERNEL = np.cumsum(PROGRAM.count) - PROGRAM.count


@dataclass(frozen=True)
class Launches:
    """In the order of the host. ``code`` into LAUNCHES, ``step`` from 0; -1: no sequence."""

    code: Integers
    layer: Integers
    sequence: Integers
    step: Integers
    device: Integers
    start_ns: Integers
    host_ns: Integers


@dataclass(frozen=True)
class Kernels:
    """In the order of the device. ``code`` into KERNELS; ``launch`` is a row of Launches.

    ``within`` counts the kernels of one launch, ``number`` the collectives of the run.
    """

    code: Integers
    launch: Integers
    within: Integers
    number: Integers
    start_ns: Integers
    duration_ns: Integers
    wait_ns: Integers


@dataclass(frozen=True)
class Step:
    """When a step runs on the host."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class StepSplit:
    """How the time of a step splits on one device; ``step`` is None without a schedule."""

    step: int | None
    device: int
    start_ns: int
    """Start of the step on the host."""
    split: Split
    bubble_ns: int


@dataclass(frozen=True)
class Run:
    """One process."""

    parameters: Parameters
    launches: Launches
    kernels: Kernels
    steps: tuple[Step, ...]
    program: Program = PROGRAM
    waits_ns: tuple[int, ...] = ()
    """How long the host waited for the device each time, where that was recorded."""
    bubble_ns: int = 0
    """Part of the exposed communication of a step that waits for other stages of a pipeline."""

    @property
    def pid(self) -> int:
        """Process id."""
        return self.parameters.pid + 1000 * self.parameters.rank

    @property
    def queue_ns(self) -> Integers:
        """When the thread of the queue takes up each launch."""
        return queue_ns(self.program, self.launches)

    @cached_property
    def splits(self) -> tuple[StepSplit, ...]:
        """The split of each step and device; without a schedule all is one step."""
        return tuple(_splits(self))

    def step_id(self, step: int) -> int:
        """Return the number of a step as ProfilerStep has it."""
        return self.parameters.first_step + step

    def variants(self, launch: Integers) -> Integers:
        """Return in which shapes each of these launches comes."""
        return self.launches.layer[launch] % self.parameters.variants


def simulate(parameters: Parameters) -> Run:
    """Run the program; equal parameters give equal arrays."""
    clock = _Clock(parameters)
    return clock.run()


_Table = TypeVar("_Table", Launches, Kernels)


class _Clock:
    """Host and devices while they run."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.host = EPOCH_NS + 1_000_000_000 * parameters.rank
        self.compute = [self.host] * parameters.devices
        self.links = [self.host] * parameters.devices
        self.launched = 0
        self.sequence = 1000
        self.launches: list[Launches] = []
        self.kernels: list[Kernels] = []

    def run(self) -> Run:
        steps = tuple(self._step(step) for step in range(self.parameters.steps))
        launches, kernels = _joined(Launches, self.launches), _joined(Kernels, self.kernels)
        number = np.cumsum(PROGRAM.collective[kernels.code]) - 1
        return Run(
            self.parameters,
            launches,
            Kernels(**{**vars(kernels), "number": number}),
            steps,
        )

    def _step(self, step: int) -> Step:
        own = self.parameters
        count = own.kernels // own.steps + (step < own.kernels % own.steps)
        random = np.random.default_rng([own.seed, own.rank, step])
        factor = _WARMUP if own.warmup and step == 0 else 1.0
        factor = _OUTLIER if step == own.outlier else factor
        start, self.host = self.host, self.host + 50_000 + round(_DATA_LOADER_NS * factor)
        first = self.launched
        parts = [
            self._part(part, step, factor, random)
            for part in step_parts(count, communication=own.communication)
            if len(part.code)
        ]
        self.host = max(self.host, *self.compute, *self.links) + 30_000
        launches = _joined(Launches, [part for part, _ in parts])
        kernels = _joined(Kernels, [part for _, part in parts])
        self.sequence = max(self.sequence, int(launches.sequence.max()) + 1)
        self.launches.append(launches)
        device = launches.device[kernels.launch - first]
        self.kernels.append(_in_device_order(kernels, device, own.devices))
        end, self.host = self.host, self.host + 20_000
        return Step(start, end)

    def _part(
        self, part: Part, step: int, factor: float, random: np.random.Generator
    ) -> tuple[Launches, Kernels]:
        own, code = self.parameters, part.code
        host = (_HOST_NS[code] * factor * random.uniform(0.9, 1.1, len(code))).astype(np.int64)
        step_ns = host + _BETWEEN_LAUNCHES_NS
        start = self.host + _BETWEEN_LAUNCHES_NS + np.cumsum(step_ns) - step_ns
        sequence = np.where(part.sequence < 0, -1, part.sequence + self.sequence)
        device = part.layer % own.devices
        launches = Launches(
            code, part.layer, sequence, np.full_like(code, step), device, start, host
        )
        kernels = self._device(launches, factor, random)
        if PROGRAM.launches[int(code[-1])].waits:
            behind = int((kernels.start_ns + kernels.duration_ns)[-1]) + 5_000
            host[-1] = max(int(host[-1]), behind - int(start[-1]))
        self.host = int(start[-1] + host[-1])
        self.launched += len(code)
        return launches, kernels

    def _device(self, launches: Launches, factor: float, random: np.random.Generator) -> Kernels:
        own, code = self.parameters, launches.code
        count = PROGRAM.count[code]
        launch = np.repeat(np.arange(len(code)), count)
        within = np.arange(len(launch)) - np.repeat(np.cumsum(count) - count, count)
        kernel = PROGRAM.kernel_of[_FIRST_KERNEL[code[launch]] + within]
        batch = 1 + 0.5 * (launches.layer[launch] % own.variants)
        jitter = random.uniform(0.95, 1.05, len(launch))
        speed = np.where(PROGRAM.collective[kernel], factor, factor * own.compute_factor)
        duration = np.maximum((_DEVICE_NS[kernel] * speed * batch * jitter).astype(np.int64), 20)
        ready = queue_ns(PROGRAM, launches)[launch] + NODE_NS * (within + 1) + _LATENCY_NS
        start = np.empty_like(ready)
        for device in range(own.devices):
            here = launches.device[launch] == device
            for clocks, rows in (
                (self.links, here & PROGRAM.collective[kernel]),
                (self.compute, here & ~PROGRAM.collective[kernel]),
            ):
                begins = _in_turn(ready[rows], duration[rows] + own.gap_ns, clocks[device])
                start[rows] = begins
                if len(begins):
                    clocks[device] = int(begins[-1] + duration[rows][-1]) + own.gap_ns
            # The optimizer waits for the gradients of the other ranks.
            self.compute[device] = max(self.compute[device], self.links[device])
        zeros = np.zeros_like(start)
        return Kernels(kernel, launch + self.launched, within, zeros, start, duration, zeros)


def _in_device_order(kernels: Kernels, device: Integers, devices: int) -> Kernels:
    """Sort by start, and note how long each device was idle before."""
    order = np.argsort(kernels.start_ns, kind="stable")
    columns = {name: column[order] for name, column in vars(kernels).items()}
    device, listed = device[order], PROGRAM.listed[columns["code"]]
    for number in range(devices):
        rows = np.flatnonzero((device == number) & listed)
        start = columns["start_ns"][rows]
        end = start + columns["duration_ns"][rows]
        columns["wait_ns"][rows[1:]] = (start[1:] - end[:-1]).clip(min=0)
    return Kernels(**columns)


def queue_ns(program: Program, launches: Launches) -> Integers:
    """Return when the thread of the queue takes up each launch."""
    nested = NEST_NS * (program.depth[launches.code] - 1)
    queued: Integers = launches.start_ns + nested + BEFORE_QUEUE_NS
    return queued


def _splits(run: Run) -> Iterator[StepSplit]:
    own, launches, kernels = run.parameters, run.launches, run.kernels
    device, step = launches.device[kernels.launch], launches.step[kernels.launch]
    listed = run.program.listed[kernels.code]
    for number in range(own.steps if own.schedule else 1):
        for each in range(own.devices):
            rows = np.flatnonzero(
                listed & (device == each) & ((step == number) | (not own.schedule))
            )
            start = kernels.start_ns[rows]
            end = start + kernels.duration_ns[rows]
            split = split_step(start, end, run.program.collective[kernels.code[rows]])
            name = run.step_id(number) if own.schedule else None
            yield StepSplit(name, each, run.steps[number].start_ns, split, run.bubble_ns)


def _in_turn(ready: Integers, taken: Integers, free: int) -> Integers:
    """Return when each task starts: when it is ready and the one before is done."""
    before = np.cumsum(taken) - taken
    return before + np.maximum.accumulate(np.maximum(ready, free) - before)


def _joined(table: type[_Table], parts: Sequence[_Table]) -> _Table:
    names = table.__dataclass_fields__
    return table(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in names})
