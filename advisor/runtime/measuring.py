"""``npufix run --measure``: a few steps with the old code, as many with the new, in one process.

The new code asks at each call whether it may run (``at_run_time.holds``): for the first steps the
answer is no. So both halves have the same model, the same process and the same caches. A step ends
when an optimizer has made one. Each half begins with a step that does not count: of ``--measure 2``
steps 2 and 3 are measured with the old code, 5 and 6 with the new; 1 and 4 warm up.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch.optim.optimizer import register_optimizer_step_post_hook

from npufix.advisor.runtime.calls.at_run_time import Switched
from npufix.advisor.runtime.process.reporting import translate
from npufix.rules.shared.quantities import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.advisor.runtime.process.applying import Applied

HALVES = ("before", "after")
_FOLDER = "npufix_measured"


class Meter(Protocol):
    """Measures the steps of one half."""

    def start(self, half: str) -> None:
        """Begin: what happens from now on counts."""

    def step(self) -> None:
        """Take down a step that has ended."""

    def stop(self) -> None:
        """Finish this half after its last step."""

    def shown(self, steps: int) -> str:
        """Return what the two halves gave."""


class LaunchMeter:
    """Counts what a virtual NPU is asked to launch."""

    def __init__(self) -> None:
        from npufix.rewriters.verification.virtual_npu import current_device

        self._device = current_device()
        self._half = ""
        self.counts: dict[str, Counter[str]] = {half: Counter() for half in HALVES}

    def start(self, half: str) -> None:
        """Forget what was launched so far."""
        self._half = half
        self._device.clear()

    def step(self) -> None:
        """Take down what this step launched."""
        self.counts[self._half].update(one.kernel for one in self._device.launches())
        self._device.clear()

    def stop(self) -> None:
        """Have taken down all of it already."""

    def shown(self, steps: int) -> str:
        """Return the launches of a step, and the kernels whose number is another one."""
        old, new = (self.counts[half] for half in HALVES)
        before, after = old.total() / steps, new.total() / steps
        each = format_count(steps, "step")
        lines = [f"launches per step: {before:g} -> {after:g} ({each} each, virtual NPU)"]
        changed = [k for k in {*old, *new} if old[k] != new[k]]
        changed.sort(key=lambda k: (new[k] - old[k], k))
        lines += [f"  {k}: {old[k] / steps:g} -> {new[k] / steps:g}" for k in changed]
        return "\n".join(lines)


class ProfilerMeter:
    """Records both halves with the profiler of torch_npu, and compares the two dumps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._profiler: Any = None

    def start(self, half: str) -> None:
        """Begin to record."""
        import torch_npu

        of = torch_npu.profiler
        self._profiler = of.profile(
            activities=[of.ProfilerActivity.CPU, of.ProfilerActivity.NPU],
            on_trace_ready=of.tensorboard_trace_handler(str(self.folder / half)),
            record_shapes=True,
            experimental_config=of._ExperimentalConfig(  # noqa: SLF001 - documented
                profiler_level=of.ProfilerLevel.Level1, export_type=[of.ExportType.Text]
            ),
        )
        self._profiler.start()

    def step(self) -> None:
        """Mark the end of a step."""
        self._profiler.step()

    def stop(self) -> None:
        """Write the dump."""
        self._profiler.stop()

    def shown(self, steps: int) -> str:
        """Return the headline of the comparison, and how to see the rest."""
        from npufix.advisor.compare.comparison import compare
        from npufix.advisor.compare.side import read_run
        from npufix.advisor.diagnose.diagnosis import Options

        paths = [self.folder / half for half in HALVES]
        result = compare(*(read_run(path, None, Options()) for path in paths))
        command = " ".join(["npufix", "compare", *map(str, paths)])
        return f"{format_count(steps, 'step')} each: {result.headline}\nAll of it: {command}"


class StepMeasurement:
    """Turns the new code off and on as the steps go by."""

    def __init__(self, meter: Meter, steps: int) -> None:
        self.meter = meter
        self.steps = steps
        self.done = 0
        """Steps so far."""
        self._first: object = None

    @property
    def needed(self) -> int:
        """How many steps the program has to make."""
        return 2 * (self.steps + 1)

    def stepped(self, optimizer: object, *_: object) -> None:
        """Note that an optimizer has made a step; of several the first one counts."""
        if self._first is None:
            self._first = optimizer
        if optimizer is not self._first or self.done >= self.needed:
            return
        self.done += 1
        half, at = divmod(self.done, self.steps + 1)
        if at == 1:
            self.meter.start(HALVES[half])
        else:
            self.meter.step()
        if at == 0:
            self.meter.stop()
            Switched.on = True

    def give_up(self) -> None:
        """Stop measuring where the program ends too early."""
        if self.done < self.needed and self.done % (self.steps + 1):
            self.meter.stop()

    def shown(self) -> str:
        """Return what came out, or why nothing did."""
        if self.done >= self.needed:
            return self.meter.shown(self.steps)
        made = format_count(self.done, "step of an optimizer", "steps of an optimizer")
        return f"nothing was measured: {self.needed} steps are needed, and the program made {made}"


@contextmanager
def measure(applied: Applied, steps: int, *, virtual: bool) -> Iterator[StepMeasurement | None]:
    """Measure the program that runs inside the block, and say on stderr what came out."""
    if applied.hook is None:
        yield None
        return
    meter = LaunchMeter() if virtual else ProfilerMeter(_new_folder(Path.cwd()))
    one = StepMeasurement(meter, steps)
    handle: Any = register_optimizer_step_post_hook(one.stepped)
    Switched.on = False
    try:
        yield one
    finally:
        handle.remove()
        Switched.on = True
        one.give_up()
        sys.stderr.write(translate(f"npufix: {one.shown()}\n"))


def _new_folder(base: Path) -> Path:
    """Return a folder that is not there yet: dumps of several runs are not to mix."""
    number, folder = 1, base / _FOLDER
    while folder.exists():
        number += 1
        folder = base / f"{_FOLDER}-{number}"
    return folder
