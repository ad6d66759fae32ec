"""When everything happens: one host thread, its autograd thread, and one device stream.

The host walks through the operators of the run in order and pays a modelled price for each; a
kernel starts when it has been launched and the one before it is done. Where the host needs a
result of the device, it waits. Times are integer nanoseconds since the epoch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from simulate.kernels import Kernel
from simulate.record import Frame, Operator, Step
from simulate.special import launches

FORWARD_US = 21.0
BACKWARD_US = 14.0
SILENT_US = 2.2  # views and other operators that launch nothing
SYNC_US = 16.0  # from the end of a kernel to the host going on
LAUNCH_US = 7.0  # from the end of the host call to the earliest start of its kernel
KERNEL_GAP_NS = 240
NOISE = 0.012


@dataclass
class HostEvent:
    """One cpu_op of the trace."""

    name: str
    start_ns: int
    end_ns: int
    backward: bool
    operator: Operator | None = None
    sequence: int = -1
    stack: tuple[Frame, ...] = ()
    kernels: list[DeviceEvent] = field(default_factory=list)
    is_node: bool = False
    """One of the autograd engine's own events, around the operators of a backward node."""


@dataclass
class DeviceEvent:
    kernel: Kernel
    start_ns: int
    duration_ns: int
    wait_ns: int
    step: int
    task: int
    launch_ns: int


@dataclass
class StepTimes:
    number: int
    start_ns: int
    end_ns: int
    stack: tuple[Frame, ...]


@dataclass
class Timeline:
    hosts: list[HostEvent] = field(default_factory=list)
    devices: list[DeviceEvent] = field(default_factory=list)
    steps: list[StepTimes] = field(default_factory=list)
    copies: list[tuple[HostEvent, DeviceEvent]] = field(default_factory=list)
    """Device-to-host copies: on the stream, but no kernel."""
    waits_ns: list[int] = field(default_factory=list)


COPY = Kernel("MEMCPY_ASYNC", "MEMCPY_ASYNC", "PCIE_DMA_SQE", (), (), 2.3)


class Simulation:
    def __init__(self, start_ns: int, seed: int) -> None:
        self.now = start_ns
        self.random = random.Random(seed)
        self.device_free = 0
        self.timeline = Timeline()
        self.task = 2000
        self.evaluate: HostEvent | None = None
        self.inner: HostEvent | None = None
        self.node = ("", -1)
        self.ranges: list[HostEvent] = []
        self.differentiated: set[int] = set()

    def noisy_ns(self, microseconds: float, noise: float = NOISE) -> int:
        factor = min(max(self.random.gauss(1.0, noise), 1 - 3 * noise), 1 + 3 * noise)
        return round(microseconds * 1000 * factor)

    def run(self, steps: list[Step]) -> Timeline:
        for step in steps:
            start = self.now
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
                    self._call(operator, step.number)
            self._leave_node()
            self.now += self.noisy_ns(40, 0.1)
            self.timeline.steps.append(StepTimes(step.number, start, self.now, step.stack))
        self._drop_empty_nodes()
        return self.timeline

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
            self.evaluate = HostEvent(
                f"autograd::engine::evaluate_function: {name}", start, 0, True
            )
            self.inner = HostEvent(name, start + 1900, 0, True, operator, sequence)
            self.inner.is_node = self.evaluate.is_node = True
            self.timeline.hosts += [self.evaluate, self.inner]
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
            event = HostEvent(operator.name, self.now, 0, False, stack=operator.stack)
            self.timeline.hosts.append(event)
            self.ranges.append(event)
        else:
            self.ranges.pop().end_ns = self.now
        self.now += self.noisy_ns(6, 0.1)

    def _call(self, operator: Operator, step: int) -> None:
        kernels = launches(operator)
        reads_loss = operator.name == "aten::_local_scalar_dense" and not any(
            "/torch/optim/" in frame.path for frame in operator.stack
        )
        # Others that launch nothing would only make the trace longer.
        if not kernels and not reads_loss and operator.sequence not in self.differentiated:
            self.now += self.noisy_ns(SILENT_US, 0.1)
            return
        backward = operator.engine
        event = HostEvent(
            operator.name,
            self.now,
            0,
            backward,
            operator=operator,
            sequence=operator.sequence,
            stack=operator.stack,
        )
        price = BACKWARD_US if backward else FORWARD_US
        self.now += self.noisy_ns(SILENT_US, 0.1)
        for kernel in kernels:
            self.now += self.noisy_ns(price, 0.08)
            device = self._start(kernel, step)
            self.timeline.devices.append(device)
            event.kernels.append(device)
            if kernel.waits:
                self._wait(device)
        if reads_loss:
            self.now += self.noisy_ns(price, 0.08)
            copy = self._start(COPY, step)
            self.timeline.copies.append((event, copy))
            self._wait(copy)
        event.end_ns = self.now
        self.timeline.hosts.append(event)
        self.now += self.noisy_ns(SILENT_US, 0.1)

    def _start(self, kernel: Kernel, step: int) -> DeviceEvent:
        launched = self.now + self.noisy_ns(LAUNCH_US, 0.1)
        start = max(launched, self.device_free + KERNEL_GAP_NS)
        # Profilers of Ascend cards tick at 50 MHz.
        duration = max(round(self.noisy_ns(kernel.duration_us) / 20) * 20, 1000)
        wait = start - self.device_free if self.device_free else 0
        self.device_free = start + duration
        self.task = (self.task + 1) % 65536
        return DeviceEvent(kernel, start, duration, wait, step, self.task, self.now)

    def _wait(self, device: DeviceEvent) -> None:
        before = self.now
        done = device.start_ns + device.duration_ns + self.noisy_ns(SYNC_US, 0.1)
        self.now = max(self.now, done)
        self.timeline.waits_ns.append(self.now - before)

    def _drop_empty_nodes(self) -> None:
        """Leave out backward nodes that only looked at their inputs."""
        kept: list[HostEvent] = []
        for event in reversed(self.timeline.hosts):
            if not event.is_node or (kept and kept[-1].start_ns < event.end_ns):
                kept.append(event)
        self.timeline.hosts = kept[::-1]
