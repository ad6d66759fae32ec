"""Let the CPU run take the turns that a run on an NPU takes."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from simulate.record import Frame, Recorder, Step, call_stack


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
        mock.patch.object(adam, "_default_to_fused_or_foreach", lambda *_, **__: (False, True)),
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

    def __enter__(self) -> Profiler:
        self._begin(())
        return self

    def __exit__(self, *_: object) -> None:
        self.recorder.step = None

    def step(self) -> None:
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
        schedule=lambda **values: SimpleNamespace(**values),
        tensorboard_trace_handler=lambda folder: folder,
        profile=lambda schedule, **_: start(schedule),
    )
    module: Any = ModuleType("torch_npu")
    module.profiler = names
    return module
