"""The profiled run: every launch and every kernel on a clock, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from benchmarks.generator.program import AUTOGRAD, MAIN, QUEUE
from benchmarks.generator.transformer import PROGRAM, step_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.generator.parameters import Parameters
    from benchmarks.generator.program import Program
    from benchmarks.generator.ranks_run import Waits
    from benchmarks.generator.text import Integers
    from benchmarks.generator.transformer import Part

EPOCH_NS = 1_736_408_883_000_000_000
NEST_NS, BEFORE_QUEUE_NS, NODE_NS = 2_000, 8_000, 1_500
"""Start of an operator behind the one around it; of its task in the queue; between its kernels."""
_BETWEEN_LAUNCHES_NS, _DATA_LOADER_NS, _LATENCY_NS = 16_000, 400_000, 6_000
_ENQUEUE_NS, _CONNECTION = 1_500, 1_000
ENQUEUE_LENGTH_NS, NODE_LENGTH_NS = 3_000, 1_000
_DEQUEUE_NS, _NODE_BEFORE_NS = 2_000, 1_000
FULL_MHZ, _REDUCED_MHZ = 1800, 1200
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
class Split:
    """How the time of a step splits on one device, in nanoseconds."""

    step: int | None
    """None without a schedule."""
    device: int
    start_ns: int
    """Start of the first kernel, 0 without kernels."""
    computing: int
    exposed: int
    overlapped: int
    communication: int
    free: int
    preparing: int
    """From the start of the step on the host to the first kernel."""
    bubble: int
    """Part of the exposed communication."""

    @property
    def times_us(self) -> list[float]:
        """Return what step_trace_time.csv has behind step and device."""
        stage = self.computing + self.exposed + self.free
        times = (
            self.computing, self.exposed, self.overlapped, self.communication, self.free,
            stage - self.bubble, self.bubble, self.exposed - self.bubble, self.preparing,
        )  # fmt: skip
        return [each / 1000 for each in times]


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
    waits: Waits | None = None
    """What it waits for other ranks, if they wait for each other."""

    @property
    def pid(self) -> int:
        """Process id."""
        return self.parameters.pid + 1000 * self.parameters.rank

    def thread(self, which: int) -> int:
        """Return the id of a thread of the host."""
        return self.pid + {MAIN: 0, AUTOGRAD: 8_571, QUEUE: 3_198}[which]

    @property
    def nested_ns(self) -> Integers:
        """When the innermost operator of each launch starts."""
        return _sum_nested_ns(self.program, self.launches)

    @property
    def enqueue_ns(self) -> Integers:
        """When each launch is handed to the thread of the queue."""
        return self.nested_ns + _ENQUEUE_NS

    @property
    def queue_ns(self) -> Integers:
        """When the thread of the queue takes up each launch."""
        return self.nested_ns + BEFORE_QUEUE_NS

    @property
    def dequeue_length_ns(self) -> Integers:
        """How long the thread of the queue is busy with each launch."""
        length: Integers = _DEQUEUE_NS + NODE_NS * self.program.count[self.launches.code]
        return length

    @property
    def node_ns(self) -> Integers:
        """When CANN launches each kernel."""
        queue = self.queue_ns[self.kernels.launch]
        return queue + _NODE_BEFORE_NS + NODE_NS * self.kernels.within

    @property
    def connections(self) -> Integers:
        """The number that joins each kernel to its launch by CANN."""
        count = self.program.count[self.launches.code]
        first = (np.cumsum(count) - count)[self.kernels.launch]
        connection: Integers = _CONNECTION + 2 * (first + self.kernels.within)
        return connection

    @property
    def devices(self) -> Integers:
        """The device of each kernel."""
        return self.launches.device[self.kernels.launch]

    def frequencies(self) -> Iterator[tuple[int, int]]:
        """Yield when the clock of the cores changes, and to how many MHz."""
        for number, step in enumerate(self.steps):
            yield step.start_ns, _REDUCED_MHZ if number == self.parameters.outlier else FULL_MHZ

    def collections(self) -> Iterator[tuple[int, int]]:
        """Yield start and duration of each run of the garbage collector."""
        for step in self.steps:
            yield step.start_ns + 2_000, 25_000

    @cached_property
    def splits(self) -> tuple[Split, ...]:
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
        launches, kernels = _join(Launches, self.launches), _join(Kernels, self.kernels)
        number = np.cumsum(PROGRAM.collective[kernels.code]) - 1
        return Run(self.parameters, launches, replace(kernels, number=number), steps)

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
        launches = _join(Launches, [part for part, _ in parts])
        kernels = _join(Kernels, [part for _, part in parts])
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
        queued = _sum_nested_ns(PROGRAM, launches) + BEFORE_QUEUE_NS
        ready = queued[launch] + NODE_NS * (within + 1) + _LATENCY_NS
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


def _sum_nested_ns(program: Program, launches: Launches) -> Integers:
    nested: Integers = launches.start_ns + NEST_NS * (program.depth[launches.code] - 1)
    return nested


def _splits(run: Run) -> Iterator[Split]:
    own, kernels = run.parameters, run.kernels
    step, listed = run.launches.step[kernels.launch], run.program.listed[kernels.code]
    for number in range(own.steps if own.schedule else 1):
        for device in range(own.devices):
            rows = listed & (run.devices == device) & ((step == number) | (not own.schedule))
            start = kernels.start_ns[rows]
            end = start + kernels.duration_ns[rows]
            collective = run.program.collective[kernels.code[rows]]
            computing = _measure_covered(start[~collective], end[~collective])
            communication = _measure_covered(start[collective], end[collective])
            both = _measure_covered(start, end)
            first = int(start.min()) if len(start) else 0
            yield Split(
                step=run.step_id(number) if own.schedule else None,
                device=device,
                start_ns=first,
                computing=computing,
                exposed=both - computing,
                overlapped=computing + communication - both,
                communication=communication,
                free=int(end.max()) - first - both if first else 0,
                preparing=first - run.steps[number].start_ns if first else 0,
                bubble=run.waits.bubble if run.waits else 0,
            )


def _measure_covered(start: Integers, end: Integers) -> int:
    """Return the length of the union of intervals."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    begins = np.append(True, start[1:] > end[:-1])
    last = np.append(np.flatnonzero(begins)[1:] - 1, len(start) - 1)
    return int((end[last] - start[begins]).sum())


def _in_turn(ready: Integers, taken: Integers, free: int) -> Integers:
    """Return when each task starts: when it is ready and the one before is done."""
    before = np.cumsum(taken) - taken
    return before + np.maximum.accumulate(np.maximum(ready, free) - before)


def _join(table: type[_Table], parts: Sequence[_Table]) -> _Table:
    names = table.__dataclass_fields__
    return table(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in names})
