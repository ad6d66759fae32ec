"""Run a training program on the CPU and let it take the turns that it takes on an NPU."""

from __future__ import annotations

import contextlib
import importlib
import io
import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.nn.functional as F
from benchmarks.generator.recorded.record import Frame, Recorder, Step, call_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextlib.contextmanager
def npu_routes(recorder: Recorder) -> Iterator[None]:
    """Operators that torch_npu implements as one, and PyTorch's choice of optimizer loop there."""
    one_hot, repeat_interleave = F.one_hot, torch.repeat_interleave
    adam = importlib.import_module("torch.optim.adam")
    with (
        mock.patch.object(
            F,
            "one_hot",
            lambda *args, **kwargs: recorder.call_whole("aten::one_hot", one_hot, *args, **kwargs),
        ),
        mock.patch.object(
            torch,
            "repeat_interleave",
            lambda *args: recorder.call_whole("aten::repeat_interleave", repeat_interleave, *args),
        ),
        # The CPU draws dropout from bernoulli_ and mul; an NPU has native_dropout.
        mock.patch.object(
            torch._VF,
            "dropout",
            lambda x, probability, train: torch.native_dropout(x, probability, train)[0],
            create=True,
        ),
        # Without fused or foreach asked for, torch.optim loops over lists on an accelerator.
        mock.patch.object(adam, "_default_to_fused_or_foreach", return_value=(False, True)),
    ):
        yield


class Profiler:
    """Stands in for torch_npu.profiler.profile: hands the active steps to the recorder."""

    def __init__(self, recorder: Recorder, schedule: SimpleNamespace) -> None:
        self.recorder = recorder
        self.first = schedule.wait + schedule.warmup
        self.last = self.first + schedule.active
        self.number = 0
        self.steps: list[Step] = []

    def __enter__(self) -> Profiler:  # noqa: PYI034 - Self is newer than Python 3.10
        self._begin(())
        return self

    def __exit__(self, *_: object) -> None:
        self.recorder.step = None

    def step(self) -> None:
        """Begin the next step."""
        self.number += 1
        self._begin(call_stack(sys._getframe(1), self.recorder.entry))

    def _begin(self, stack: tuple[Frame, ...]) -> None:
        self.recorder.step = None
        if self.first <= self.number < self.last:
            self.recorder.step = Step(self.number, stack=stack)
            self.steps.append(self.recorder.step)


def virtual_torch_npu(start: Callable[[SimpleNamespace], Profiler]) -> ModuleType:
    """As much of torch_npu as a program needs to ask for a profile."""
    names = SimpleNamespace(
        ProfilerActivity=SimpleNamespace(CPU="CPU", NPU="NPU"),
        ProfilerLevel=SimpleNamespace(Level1="Level1"),
        AiCMetrics=SimpleNamespace(PipeUtilization="ACL_AICORE_PIPE_UTILIZATION"),
        _ExperimentalConfig=SimpleNamespace,
        schedule=SimpleNamespace,
        tensorboard_trace_handler=lambda folder: folder,
        profile=lambda schedule, **_: start(schedule),
    )
    module: Any = ModuleType("torch_npu")
    module.profiler = names
    return module


def record(entry: Path, *arguments: str) -> list[Step]:
    """Run a program that profiles itself, and return the steps that it asked to record."""
    recorder = Recorder(entry)
    profilers: list[Profiler] = []

    def start(schedule: SimpleNamespace) -> Profiler:
        profilers.append(Profiler(recorder, schedule))
        return profilers[-1]

    with (
        mock.patch.object(sys, "argv", [str(entry), *arguments]),
        mock.patch.object(sys, "path", [str(entry.parent), *sys.path]),
        mock.patch.dict(sys.modules, {"torch_npu": virtual_torch_npu(start)}),
        npu_routes(recorder),
        recorder,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        runpy.run_path(str(entry), run_name="__main__")
    [profiler] = profilers
    return [step for step in profiler.steps if step.operators]
