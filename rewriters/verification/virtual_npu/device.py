"""The virtual NPU: the installed torch_npu on stubs and host memory, in this process."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npufix.rewriters.verification.virtual_npu.chips import family, soc_name
from npufix.rewriters.verification.virtual_npu.loading import MAIN, Slots, read_kernel_names
from npufix.rewriters.verification.virtual_npu.recorder import Launch, Recorder
from npufix.rewriters.verification.virtual_npu.runtime import HostRuntime
from npufix.rewriters.verification.virtual_npu.stubs import prepare
from npufix.rewriters.verification.virtual_npu.wheel.errors import VirtualNpuError
from npufix.rewriters.verification.virtual_npu.wheel.wheels import find_wheels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEVICE = "npu"
"""What torch calls it."""
_MARK = "NPUFIX_VIRTUAL_NPU"
_LIBRARIES = "LD_LIBRARY_PATH"
_SETTINGS = {
    _MARK: "1",
    # torch must not import torch_npu before the stubs are there.
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    # Launch when an operator is called, in its thread.
    "TASK_QUEUE_ENABLE": "0",
    "ASCEND_LAUNCH_BLOCKING": "1",
}
_started: dict[str, VirtualDevice] = {}


def environment(parent: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child process that may become a virtual NPU: without CANN."""
    kept = {name: value for name, value in parent.items() if not name.startswith("ASCEND_")}
    folders = kept.get(_LIBRARIES, "").split(os.pathsep)
    others = [folder for folder in folders if folder and not Path(folder, MAIN).exists()]
    if len(others) < len(folders):
        kept[_LIBRARIES] = os.pathsep.join(others)
    return kept | _SETTINGS


class VirtualDevice:
    """The one device of this process."""

    def __init__(self, chip: str, stubs: Path | None, *, forks: bool = False) -> None:
        """Load the stubs and import torch_npu on top of them.

        ``forks``: only processes forked from this one compute, after ``after_fork``.
        """
        self.chip = chip
        folder = stubs or prepare(find_wheels())
        self._recorder = Recorder()
        self._runtime = HostRuntime(soc_name(chip), self._recorder)
        self._slots = Slots(folder)
        self._runtime.bind(self._slots, read_kernel_names(folder))
        _import_torch_npu(chip)
        from npufix.rewriters.verification.kernels.common import set_chip
        from npufix.rewriters.verification.virtual_npu.operators.composites import (
            register_composites,
        )

        set_chip(family(chip))

        self._library = register_composites(self._recorder)
        if not forks:  # autograd starts a thread, which a fork would lose
            _warm_up(self)

    def after_fork(self) -> None:
        """Have a forked process be the device: it is host memory, which a fork copies."""
        npu: Any = sys.modules["torch_npu.npu"]
        npu._initialized, npu._is_internal_in_bad_fork = True, False  # noqa: SLF001 - see above
        npu._original_pid = os.getpid()  # noqa: SLF001 - torch_npu compares it
        _warm_up(self)

    def launches(self) -> list[Launch]:
        """Return what was launched since the last ``clear``, in order."""
        return list(self._recorder.launches)

    def clear(self) -> None:
        """Forget the launches so far."""
        self._recorder.launches.clear()

    @contextmanager
    def computing(self, *, strict: bool) -> Iterator[None]:
        """Make operators on the device compute."""
        from npufix.rewriters.verification.virtual_npu.host_memory import allow_printing
        from npufix.rewriters.verification.virtual_npu.operators.numerics import Numerics

        with Numerics(self._recorder, strict=strict), allow_printing():
            yield


@contextmanager
def virtual_npu(
    chip: str = "A2", *, strict: bool = True, stubs: Path | None = None, forks: bool = False
) -> Iterator[VirtualDevice]:
    """Compute what runs on ``npu`` inside the block.

    Only for a process started with ``environment``, for it stays changed: torch_npu is
    imported, once and for one chip. ``stubs`` is the folder from ``prepare``, for a process
    that may not write to the cache. Without ``strict``, what no reference computes is NaN.
    ``forks``: nothing is computed here, but in forks of this process after ``after_fork``.
    """
    device = _started.get(chip) or _start(chip, stubs, forks=forks)
    device.clear()
    with device.computing(strict=strict):
        yield device


def current_device() -> VirtualDevice:
    """Return the virtual device of this process.

    Raises:
        VirtualNpuError: it has none.

    """
    if not _started:
        raise VirtualNpuError("this process is no virtual NPU")
    return next(iter(_started.values()))


def _start(chip: str, stubs: Path | None, *, forks: bool) -> VirtualDevice:
    absent = [name for name, value in _SETTINGS.items() if os.environ.get(name) != value]
    if absent:
        raise VirtualNpuError(
            "this process was not started to become a virtual NPU",
            f"{', '.join(absent)} not set",
            "start a child process with environment()",
        )
    if _started:
        raise VirtualNpuError(f"this process is a virtual {next(iter(_started))} already")
    if "torch_npu" in sys.modules:
        raise VirtualNpuError("torch_npu is imported already, without stubs")
    _started[chip] = VirtualDevice(chip, stubs, forks=forks)
    return _started[chip]


def _import_torch_npu(chip: str) -> None:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch_npu  # noqa: F401 - registers the device

            npu: Any = torch.npu  # type: ignore[attr-defined] # torch_npu adds it
            npu.init()
            # The wheel decides at its first operator how it launches: before that, then.
            npu.set_compile_mode(jit_compile=False)
    except (ImportError, RuntimeError, OSError) as error:
        said = next(iter(str(error).splitlines()), type(error).__name__)
        if "soc version" in said:
            raise VirtualNpuError(
                f"the installed torch_npu does not know the chip {chip}",
                said,
                "use --chip with an older one, or a newer torch_npu",
            ) from error
        raise VirtualNpuError(f"torch_npu does not load: {said}") from error


def _warm_up(device: VirtualDevice) -> None:
    """Run one backward pass: in torch_npu 2.4 the first one of a process fails."""
    import torch

    with device.computing(strict=True), suppress(RuntimeError):
        torch.autograd.backward(torch.ones(1, device=DEVICE).requires_grad_().sum())
