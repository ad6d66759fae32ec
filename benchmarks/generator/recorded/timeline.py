"""When everything happens: one host thread, its autograd thread, and one device stream.

The host walks through the operators of the run in order and pays a modelled price for each; a
kernel starts when it has been launched and the one before it is done. Where the host needs a
result of the device, it waits. Times are integer nanoseconds since the epoch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from benchmarks.generator.parameters import Parameters
from benchmarks.generator.program import AUTOGRAD, MAIN, Kernel, Launch, Program
from benchmarks.generator.recorded.kernels import launches
from benchmarks.generator.recorded.record import Tensor
from benchmarks.generator.run import Kernels, Launches, Run
from benchmarks.generator.run import Step as StepTimes

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from benchmarks.generator.recorded.record import Frame, Operator, Step

FORWARD_US, BACKWARD_US = 21.0, 14.0
SILENT_US = 2.2  # views and other operators that launch nothing
SYNC_US = 16.0  # from the end of a kernel to the host going on
LAUNCH_US = 7.0  # from the end of the host call to the earliest start of its kernel
KERNEL_GAP_NS = 240
NOISE = 0.012
_JOIN = ";\r\n"
READS = "aten::_local_scalar_dense"
COPY = Kernel("MEMCPY_ASYNC", "MEMCPY_ASYNC", "PCIE_DMA_SQE", 2.3, blocks=0)


@dataclass
class Task:
    """A kernel or a copy on the device."""

    kernel: Kernel
    start_ns: int
    duration_ns: int
    wait_ns: int


@dataclass
class Event:
    """One cpu_op of the trace."""

    name: str
    start_ns: int
    step: int
    end_ns: int = 0
    backward: bool = False
    is_node: bool = False
    """One of the autograd engine's own events, around the operators of a backward node."""
    sequence: int = -1
    stack: tuple[Frame, ...] = ()
    arguments: tuple[Any, ...] = ()
    tasks: list[Task] = field(default_factory=list)


class Simulation:
    """Host and device while they run the steps that a recorder has seen."""

    def __init__(self, start_ns: int, seed: int) -> None:
        """Begin at a moment."""
        self.now = start_ns
        self.random = random.Random(seed)  # noqa: S311 - noise
        self.device_free = 0
        self.step = -1
        self.events: list[Event] = []
        self.waits_ns: list[int] = []
        self.evaluate: Event | None = None
        self.inner: Event | None = None
        self.node = ("", -1)
        self.ranges: list[Event] = []
        self.differentiated: set[int] = set()

    def noisy_ns(self, microseconds: float, noise: float = NOISE) -> int:
        """Return nanoseconds with noise."""
        factor = min(max(self.random.gauss(1.0, noise), 1 - 3 * noise), 1 + 3 * noise)
        return round(microseconds * 1000 * factor)

    def run(self, steps: list[Step], program: Path) -> Run:
        """Return the run; ``program`` is the folder of its sources."""
        for step in steps:
            self._step(step)
        parameters = Parameters(
            version="cann8.2", steps=len(steps), first_step=steps[0].number, pid=4021,
            modules=False, runtime=False, variants=1,
        )  # fmt: skip
        run = _run_of(parameters, _without_empty_nodes(self.events), program)
        return replace(run, waits_ns=tuple(self.waits_ns))

    def _event(self, name: str, start_ns: int | None = None, **facts: Any) -> Event:
        event = Event(name, self.now if start_ns is None else start_ns, self.step, **facts)
        self.events.append(event)
        return event

    def _step(self, step: Step) -> None:
        self.step += 1
        whole = self._event(f"ProfilerStep#{step.number}", stack=step.stack)
        self.now += self.noisy_ns(90, 0.1)
        self.differentiated = {
            operator.node_sequence
            for operator in step.operators
            if operator.node and launches(operator)
        }
        for operator in step.operators:
            self._enter_node(operator)
            if operator.range:
                self._range(operator)
            else:
                self._call(operator)
        self._leave_node()
        self.now += self.noisy_ns(40, 0.1)
        whole.end_ns = self.now

    def _enter_node(self, operator: Operator) -> None:
        """Open and close the autograd engine's two events around the operators of a node."""
        identity = (operator.node, operator.node_sequence)
        if operator.node and identity == self.node:
            return
        if operator.engine and not operator.node:
            # The engine adds up gradients behind the node's own event, inside of the outer one.
            self._leave_inner()
            return
        self._leave_node()
        if operator.node:
            name, sequence = operator.node, operator.node_sequence
            if name == "torch::autograd::AccumulateGrad":
                sequence = -1  # its counter is the largest integer: it runs before all others
            start = self.now
            engine = f"autograd::engine::evaluate_function: {name}"
            self.evaluate = self._event(engine, backward=True, is_node=True)
            self.inner = self._event(
                name, start + 1900, backward=True, is_node=True, sequence=sequence
            )
            self.node = identity
            self.now += 3000

    def _leave_inner(self) -> None:
        if self.inner is not None:
            self.inner.end_ns = self.now
            self.now += 1700
        self.inner, self.node = None, ("", -1)

    def _leave_node(self) -> None:
        self._leave_inner()
        if self.evaluate is not None:
            self.evaluate.end_ns = self.now
            self.now += 2400
        self.evaluate = None

    def _range(self, operator: Operator) -> None:
        if operator.name:
            self.ranges.append(self._event(operator.name, stack=operator.stack))
        else:
            self.ranges.pop().end_ns = self.now
        self.now += self.noisy_ns(6, 0.1)

    def _call(self, operator: Operator) -> None:
        kernels = launches(operator)
        if operator.name == READS and all("/torch/optim/" not in f.path for f in operator.stack):
            kernels = [COPY]
        # Others that launch nothing would only make the trace longer.
        if not kernels and operator.sequence not in self.differentiated:
            self.now += self.noisy_ns(SILENT_US, 0.1)
            return
        event = self._event(
            operator.name, backward=operator.engine, sequence=operator.sequence,
            stack=operator.stack, arguments=operator.arguments,
        )  # fmt: skip
        self.now += self.noisy_ns(SILENT_US, 0.1)
        for kernel in kernels:
            self.now += self.noisy_ns(BACKWARD_US if operator.engine else FORWARD_US, 0.08)
            task = self._start(kernel)
            event.tasks.append(task)
            # The host needs the result: how many elements a mask selects, the value of a loss.
            if kernel.type == "NonZero" or kernel is COPY:
                self._wait(task)
        event.end_ns = self.now
        self.now += self.noisy_ns(SILENT_US, 0.1)

    def _start(self, kernel: Kernel) -> Task:
        launched = self.now + self.noisy_ns(LAUNCH_US, 0.1)
        start = max(launched, self.device_free + KERNEL_GAP_NS)
        # Profilers of Ascend cards tick at 50 MHz.
        duration = max(round(self.noisy_ns(kernel.duration_us) / 20) * 20, 1000)
        wait = start - self.device_free if self.device_free else 0
        self.device_free = start + duration
        return Task(kernel, start, duration, wait)

    def _wait(self, task: Task) -> None:
        before = self.now
        done = task.start_ns + task.duration_ns + self.noisy_ns(SYNC_US, 0.1)
        self.now = max(self.now, done)
        self.waits_ns.append(self.now - before)


def _without_empty_nodes(events: list[Event]) -> list[Event]:
    """Leave out backward nodes that only looked at their inputs."""
    kept: list[Event] = []
    for event in reversed(events):
        if not event.is_node or (kept and kept[-1].start_ns < event.end_ns):
            kept.append(event)
    return kept[::-1]


def _type(argument: object) -> str:
    """Return the type of an argument as the host names it."""
    if isinstance(argument, Tensor):
        return argument.types[1]
    if isinstance(argument, (list, tuple)):
        tensors = any(isinstance(item, Tensor) for item in argument)
        return "TensorList" if tensors else "ScalarList"
    return "Scalar" if isinstance(argument, (bool, int, float, torch.dtype)) else "None"


def _launches(events: list[Event], program: Path) -> list[Launch]:
    """Return what each event is an instance of."""
    forward = {each.sequence for each in events if not each.backward}
    linked = forward & {each.sequence for each in events if each.is_node} - {-1}
    found = []
    for each in events:
        dims = (item.dims if isinstance(item, Tensor) else "" for item in each.arguments)
        is_linked = each.sequence in linked and each.is_node == each.backward
        found.append(
            Launch(
                (each.name,), tuple(task.kernel for task in each.tasks),
                tuple(frame.text(program) for frame in each.stack),
                dims=_JOIN.join(dims), types=_JOIN.join(map(_type, each.arguments)),
                thread=AUTOGRAD if each.backward else MAIN, slot=is_linked - 1, calls_cann=False,
            )
        )  # fmt: skip
    return found


def _run_of(parameters: Parameters, events: list[Event], folder: Path) -> Run:
    made = _launches(events, folder)
    program = Program(tuple(dict.fromkeys(made)))
    codes = {launch: code for code, launch in enumerate(program.launches)}
    numbers = {kernel: number for number, kernel in enumerate(program.kernels)}
    code = np.array([codes[launch] for launch in made])
    zeros = np.zeros(len(events), np.int64)
    start = np.array([each.start_ns for each in events])
    called = Launches(
        code, zeros, np.array([each.sequence for each in events]),
        np.array([each.step for each in events]), zeros, start,
        np.array([each.end_ns for each in events]) - start,
    )  # fmt: skip
    rows = [
        (numbers[task.kernel], at, within, -1, task.start_ns, task.duration_ns, task.wait_ns)
        for at, each in enumerate(events)
        for within, task in enumerate(each.tasks)
    ]
    steps = tuple(
        StepTimes(each.start_ns, each.end_ns)
        for each in events
        if each.name.startswith("ProfilerStep#")
    )
    return Run(parameters, called, Kernels(*np.array(rows).T), steps, program)
