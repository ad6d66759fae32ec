"""What a profiling dump says, in one schema whatever its version or format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npufix.profiling_parsers.signals import Signals

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pandas as pd


class DumpError(Exception):
    """Nothing can be diagnosed: ``message`` says what and where, ``remedy`` what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Problem:
    """Something of the dump that is missing or malformed, so that a diagnosis is partial."""

    where: str
    what: str
    remedy: str
    damaged: bool = False
    """The file is there but broken, as opposed to never collected."""


@dataclass(frozen=True, slots=True)
class CallSite:
    """One frame of a call stack: the executing line, as recorded on the profiled machine."""

    path: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and the settings of the profiled run; ``None`` means the dump does not say."""

    rank: int | None = None
    world_size: int | None = None
    torch: str | None = None
    torch_npu: str | None = None
    cann: str | None = None
    chip: str | None = None
    """As the device names itself: ``Ascend910B3``, ``NVIDIA A100-SXM4-40GB``."""
    profiler_level: str | None = None
    with_stack: bool | None = None
    record_shapes: bool | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    source_sha256: Mapping[str, str] = field(default_factory=dict)
    """sha256 of each source file (recorded path -> hex digest), where the run recorded them."""
    simulated: str | None = None
    """How the dump was made, when it does not come from a device."""


@dataclass(frozen=True)
class Profile:
    """One rank of one profiled run. Times are int64 nanoseconds (``*_ns``).

    ``kernels`` -- one row per device task, in start order; ``schema.KERNELS`` says the columns.

    ``host_ops`` -- one row per torch operator call that the dump records, in start order:
    ``name`` (category), ``start_ns``, ``duration_ns`` (int64), ``sequence`` (int64, -1 if none),
    ``input_dims`` (category, ``"4,128;128;"``, one entry per argument), ``input_types``
    (category, ``"float;float;Scalar"``), ``stack`` (int32, that of the operator or of the nearest
    around it; -1 if none), ``basis`` (category, how that was found, as in ``kernels``).

    ``steps`` -- one row per step: ``step`` (Int64), ``device`` (int32), ``computing_ns``,
    ``communication_exposed_ns``, ``overlapped_ns``, ``communication_ns``, ``free_ns``,
    ``bubble_ns`` (int64): how long it received from other stages of a pipeline, -1 if the dump
    does not say; ``preparing_ns`` (int64): the part of ``free_ns`` before the first kernel. A step
    lasts from its mark on the host to the next one.

    ``op_statistic`` -- the dump's own totals: ``type``, ``core``, ``count``, ``total_ns``;
    empty if the dump has none.

    ``stacks`` -- the distinct call stacks, innermost frame first.

    ``modules`` -- the distinct paths of nn.Module, ``AlexNet_0/Sequential_0/Conv2d_0``.
    """

    root: Path
    environment: Environment
    kernels: pd.DataFrame
    host_ops: pd.DataFrame
    steps: pd.DataFrame
    op_statistic: pd.DataFrame
    stacks: tuple[tuple[CallSite, ...], ...]
    problems: tuple[Problem, ...] = ()
    modules: tuple[str, ...] = ()
    signals: Signals = field(default_factory=Signals)
    format: str = "ascend-text"
    """``ascend-text``, ``ascend-db``, ``msprof``, ``trace`` (trace_view.json alone), ``kineto``."""
    step_bounds: str = "kernels"
    """From where to where ``steps`` last: ``marks`` of the host, as ``stated`` by the profiler, or
    ``kernels``, from the first to the last: then what is idle between two steps is in none."""
