"""What a program is made of: operators of the host and the kernels that each of them launches.

``{B}`` in a shape is the batch size, which differs between the variants of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MAIN, AUTOGRAD, QUEUE = 0, 1, 2
"""Threads: Python, backward, and the one that hands tasks to the device."""


@dataclass(frozen=True)
class Kernel:
    """A task of the device."""

    name: str
    type: str
    core: str
    duration_us: float
    inputs: tuple[str, str, str] = ("{B},1024,512", "FLOAT", "ND")
    """Shapes, dtypes and formats."""
    outputs: tuple[str, str, str] = ("{B},1024,512", "FLOAT", "ND")
    blocks: int = 40
    stream: int = 2
    busy: tuple[float, ...] = ()
    """Share of its time that each pipe of its core is busy, as CUBE or VECTOR name them."""

    @property
    def collective(self) -> bool:
        """A collective, which runs beside the compute kernels."""
        return self.type.startswith("hcom_")

    @property
    def listed(self) -> bool:
        """Stands in kernel_details.csv, unlike copies."""
        return not self.name.startswith("MEMCPY")


@dataclass(frozen=True)
class Launch:
    """An operator of the host, ``chain`` from the outermost to the one that launches."""

    chain: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    stack: tuple[str, ...] = ()
    """Frames, innermost first; none on the autograd thread."""
    scopes: tuple[str, ...] = ()
    """Python functions around it within its layer, outermost first; ``{L}`` is the layer."""
    dims: str = ""
    types: str = ""
    host_us: float = 30.0
    thread: int = MAIN
    slot: int = -1
    """Which sequence number of its layer the operator has, -1 for none."""
    waits: bool = False
    """The host waits for the device (``.item()``)."""
    calls_cann: bool = True
    """The last of the chain is the call of CANN, which is no operator of the framework."""

    @property
    def operators(self) -> int:
        """How many of the chain are operators of the framework."""
        return len(self.chain) - self.calls_cann

    @property
    def node(self) -> int:
        """Place of the autograd node, behind the event of the engine if there is one."""
        return int(self.chain[0].startswith("autograd::engine") and len(self.chain) > 1)

    def is_numbered(self, place: int) -> bool:
        """Operators of a library have a sequence number, launches and the engine have none."""
        return place < self.operators and not self.chain[place].startswith("autograd::engine")

    def is_backward(self, place: int) -> bool:
        """Whether an operator names the thread that ran it forward."""
        of_node = place > 0 or (self.slot >= 0 and not self.node)
        return self.thread == AUTOGRAD and of_node and self.is_numbered(place)

    def has_shapes(self, place: int) -> bool:
        """Whether an operator records the shapes of its arguments."""
        return bool(self.types) and self.is_numbered(place)


class Program:
    """What a run is made of; its numbers (``code``) lead into these tuples and arrays."""

    def __init__(self, launches: tuple[Launch, ...]) -> None:
        """Keep the launches, and what is often asked of them and of their kernels."""
        self.launches = launches
        self.kernels = tuple(dict.fromkeys(each for one in launches for each in one.kernels))
        numbers = {kernel: number for number, kernel in enumerate(self.kernels)}
        self.kernel_of = np.array([numbers[each] for one in launches for each in one.kernels])
        self.depth = np.array([len(launch.chain) for launch in launches])
        self.count = np.array([len(launch.kernels) for launch in launches])
        self.slots = np.array([launch.slot for launch in launches])
        self.nodes = np.array([launch.node for launch in launches])
        self.autograd = np.array([launch.thread == AUTOGRAD for launch in launches])
        self.collective = np.array([kernel.collective for kernel in self.kernels])
        self.listed = np.array([kernel.listed for kernel in self.kernels])
        self.computes = self.listed & ~self.collective
        self.streams = np.array([kernel.stream for kernel in self.kernels])
