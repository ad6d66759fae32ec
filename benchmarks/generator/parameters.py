"""What a generated dump looks like."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from benchmarks.generator.ranks import Fault, Layout

Version = Literal["old-2023", "cann8.0", "cann8.2", "cann8.3", "newest"]
VERSIONS: tuple[Version, ...] = ("old-2023", "cann8.0", "cann8.2", "cann8.3", "newest")


@dataclass(frozen=True)
class Parameters:
    """One dump is determined by these, byte for byte."""

    kernels: int = 1000
    """Rows of kernel_details.csv, over all steps."""
    steps: int = 2
    rank: int = 0
    ranks: int = 1
    tp: int = 1
    """Ranks of a tensor parallel group."""
    pp: int = 1
    """Stages of the pipeline."""
    faults: tuple[Fault, ...] = ()
    """What is wrong with the ranks."""
    devices: int = 1
    """Devices that the process drives: several only from cann8.3 on."""
    level: int = 1
    version: Version = "cann8.0"
    schedule: bool = True
    """With a schedule there are steps in the dump."""
    stacks: bool = True
    modules: bool = True
    """Python functions and nn.Modules are recorded."""
    shapes: bool = True
    """Shapes of the arguments of host operators are recorded (record_shapes)."""
    pmu: bool = True
    """The counters of each task are in the database: 28 rows per task."""
    variants: int = 2
    """Number of different shapes in which each layer comes."""
    host_events: int = 0
    """Python functions recorded per launch beyond those that lead to a line."""
    communication: bool = True
    warmup: bool = True
    """The first step is slower than the others."""
    outlier: int = -1
    """Index of a step that is much slower, -1 for none."""
    gap_ns: int = 1_000
    """Idle time of a device before each kernel."""
    compute_factor: float = 1.0
    """How much longer the kernels of this rank take than those of others."""
    runtime: bool = True
    """The trace has the task queue, CANN, the clocks and the garbage collector."""
    pid: int = 3_096_504
    """Process of rank 0."""
    first_step: int = 10
    line_end: str = "\r\n"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no dump can be."""
        if self.kernels < self.steps or self.steps < 1:
            raise ValueError("at least one step, and one kernel per step")
        if self.version not in VERSIONS or self.level not in {0, 1, 2}:
            raise ValueError("unknown version or level")
        if self.devices < 1 or self.variants < 1 or not 0 <= self.rank < self.ranks:
            raise ValueError("devices, variants and ranks start at one")
        if self.devices > 1 and not self.names_device:
            raise ValueError("before cann8.3 a dump does not say which device it is of")
        Layout(self.ranks, self.tp, self.pp, faults=self.faults)

    @cached_property
    def layout(self) -> Layout:
        """Who is in which group and on which host."""
        return Layout(self.ranks, self.tp, self.pp, faults=self.faults)

    @property
    def waits(self) -> bool:
        """The ranks wait for each other: they do where they form groups, or something is wrong."""
        return self.tp * self.pp > 1 or bool(self.faults)

    @property
    def names_device(self) -> bool:
        """Tables have a column Device_id."""
        return self.version in {"cann8.3", "newest"}

    @property
    def collective_core(self) -> str:
        """Accelerator Core of a collective in kernel_details.csv."""
        return "HCCL" if self.version in {"old-2023", "cann8.0"} else "COMMUNICATION"
