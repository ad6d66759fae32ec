"""The real NPU of this process: torch_npu with CANN, as the user has set them up."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from npufix.rewriters.verification.calls.device_failures import failure
from npufix.rewriters.verification.calls.place import RealDevice, become

_FREE = 0.5
"""The share of its memory that must be free, if there is such a device."""


class NoDeviceError(RuntimeError):
    """No device can be used; the message says why, and what to do."""


def take_device() -> None:
    """Import torch_npu and have this process verify on a device.

    Raises:
        NoDeviceError: there is none that works.

    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch_npu
    except (ImportError, OSError, RuntimeError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise NoDeviceError(
            f"torch_npu does not load: {first}; check CANN with a plain `import torch_npu`"
        ) from error
    npu: Any = torch.npu  # type: ignore[attr-defined] # torch_npu adds it
    # Whole kernels out of the library, as a training run uses them: no minutes of compiling.
    npu.set_compile_mode(jit_compile=False)
    index = _free_device(npu)
    name = str(npu.get_device_name(index))
    become(RealDevice(f"torch_npu {torch_npu.__version__} on {name}, npu:{index}"))


def _free_device(npu: Any) -> int:  # noqa: ANN401 - a module without annotations
    """Return the first device that is mostly free, else the one with the most memory left."""
    found: dict[int, float] = {}
    error = "no device is visible (ASCEND_RT_VISIBLE_DEVICES)"
    for index in range(npu.device_count()):
        try:
            npu.set_device(index)
            torch.ones(1).to("npu").cpu()
            free, total = npu.mem_get_info(index)
        except (RuntimeError, AssertionError) as reason:
            known = failure(str(reason))
            error = f"npu:{index}: {known or str(reason).splitlines()[0]}"
            continue
        found[index] = free / max(1, total)
        if found[index] >= _FREE:
            break
    if not found:
        raise NoDeviceError(error)
    best = max(found, key=lambda index: found[index])
    npu.set_device(best)
    return best
