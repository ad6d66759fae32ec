"""Where the calls of a verification run: on the host, or on the NPU of this process.

Arguments and objects are made on the host and moved, so that both places get the same numbers;
what a call leaves is copied back before it is compared.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from npufix.rewriters.verification.calls.device_failures import find_failure
from npufix.rewriters.verification.calls.values import map_items
from npufix.rewriters.verification.virtual_npu.host_memory import host_view, on_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.verification.virtual_npu import VirtualDevice

LIMITS = frozenset({"NoReferenceKernelError", "ReferenceDisagreesError", "UncoveredLaunchError"})
"""Errors that are limits of the virtual NPU, and tell nothing about the code."""
_DEVICE = "npu"
_LOADING = 10.0

T = TypeVar("T")


class LaunchedKernels(NamedTuple):
    """The kernels that one call of the code launched, in order."""

    forward: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()


class RealDevice(NamedTuple):
    """An NPU with its own kernels."""

    name: str
    """With the version of torch_npu."""


class _Here:
    """What this process is."""

    device: VirtualDevice | None = None
    real: RealDevice | None = None
    broken: bool = False


def use_device(device: VirtualDevice | RealDevice) -> None:
    """Have this process verify on an NPU."""
    if isinstance(device, RealDevice):
        _Here.real = device
    else:
        _Here.device = device


def is_virtual() -> bool:
    """Say whether this process is a virtual NPU."""
    return _Here.device is not None


def is_real() -> bool:
    """Say whether this process has a real NPU."""
    return _Here.real is not None


def is_device() -> bool:
    """Say whether this process has an NPU, virtual or not: then torch_npu is the real one."""
    return is_virtual() or is_real()


def is_broken() -> bool:
    """Say whether the device has failed so that nothing runs on it any more."""
    return _Here.broken


def device_failure(error: str) -> str:
    """Return what an error says about the device and what to do; "" if it is the code's own."""
    known = find_failure(error) if error and is_real() else None
    if known is None:
        return ""
    _Here.broken |= known.breaks
    return str(known)


def wait_for(value: T) -> T:
    """Return what a call has returned, when the device is done with it."""
    synchronise()
    return value


def scale_timeout(seconds: float) -> float:
    """Return how long a call may take: a device loads kernels when they are first used."""
    return seconds * _LOADING if is_real() else seconds


def synchronise() -> None:
    """Wait for the device: what went wrong there is said only then."""
    if is_real():
        torch.npu.synchronize()  # type: ignore[attr-defined] # torch_npu adds it


def describe_place() -> str:
    """Return what computes here, in words."""
    version = f"torch {torch.__version__.partition('+')[0]}"
    if _Here.real is not None:
        return f"{version}, {_Here.real.name}; launches are not recorded there"
    if _Here.device is None:
        return f"{version}, CPU"
    import torch_npu

    return f"{version}, torch_npu {torch_npu.__version__} on a virtual {_Here.device.chip}"


@contextmanager
def compute_on_device(*, on_npu: bool) -> Iterator[None]:
    """Make what is on the device compute, if that is where the code runs."""
    if not on_npu or _Here.device is None:
        yield
        return
    with _Here.device.computing(strict=True):
        yield


def list_launched(since: int = 0) -> tuple[str, ...]:
    """Return the kernels launched so far in this process, but for the first few."""
    if _Here.device is None:
        return ()
    return tuple(launch.kernel for launch in _Here.device.launches()[since:])


def forget_launches() -> None:
    """Start a new list of launches."""
    if _Here.device is not None:
        _Here.device.clear()


def to_device(value: object, device: str = _DEVICE) -> object:
    """Return a value with its tensors on the device, strides and all."""
    if isinstance(value, torch.Tensor):
        return _tensor_on_device(value, device)
    if isinstance(value, torch.nn.Module):
        return instance_to_device(value, device)
    return map_items(value, lambda item: to_device(item, device))


def instance_to_device(instance: object, device: str = _DEVICE) -> object:
    """Move the tensors of an object; a module keeps its parameters registered.

    To another device than the NPU, only what a module has registered: the rest stays behind there.
    """
    parts = [instance]
    if isinstance(instance, torch.nn.Module):
        instance.to(device)
        parts = list(instance.modules()) if device == _DEVICE else []
    for part in parts:
        for name, value in list(getattr(part, "__dict__", {}).items()):
            if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                part.__dict__[name] = _tensor_on_device(value, device)
    return instance


def _tensor_on_device(value: torch.Tensor, device: str) -> torch.Tensor:
    if device != _DEVICE:
        return value.detach().to(device).requires_grad_(value.requires_grad)
    if on_device(value):
        return value
    if value.layout != torch.strided or 0 in value.stride():
        moved = value.detach().to(_DEVICE)
    else:
        moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_DEVICE)
        (moved if is_real() else host_view(moved)).copy_(value.detach())
    return moved.requires_grad_(value.requires_grad)


def copy_to_host(value: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor on the host, free of its history, and dense."""
    if value.layout != torch.strided and not value.is_mkldnn:
        return value.detach().to_dense()
    if not on_device(value):
        return value.detach().clone()
    return value.detach().cpu() if is_real() else host_view(value).clone()


def seed_device(seed: int) -> None:
    """Seed what draws on the device."""
    if is_device():
        torch.npu.manual_seed(seed)  # type: ignore[attr-defined] # torch_npu adds it


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
    use_device(RealDevice(f"torch_npu {torch_npu.__version__} on {name}, npu:{index}"))


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
            known = find_failure(str(reason))
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
