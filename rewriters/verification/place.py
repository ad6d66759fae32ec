"""Where the calls of a verification run: on the host, or on the virtual NPU of this process.

Arguments and objects are made on the host and moved, so that both places get the same numbers;
what a call leaves is copied back before it is compared.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch

from npufix.rewriters.verification.virtual_npu.host_memory import host_view, on_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.verification.virtual_npu import VirtualDevice

LIMITS = frozenset({"NoReferenceKernelError", "ReferenceDisagreesError", "UncoveredLaunchError"})
"""Errors that are limits of the virtual NPU, and tell nothing about the code."""
_DEVICE = "npu"


class Launched(NamedTuple):
    """The kernels that one call of the code launched, in order."""

    forward: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()


class _Here:
    """What this process is."""

    device: VirtualDevice | None = None
    chip: str = ""


def become(device: VirtualDevice, chip: str) -> None:
    """Have this process verify on a virtual NPU."""
    _Here.device, _Here.chip = device, chip


def is_virtual() -> bool:
    """Say whether this process is a virtual NPU: then torch_npu is the real one."""
    return _Here.device is not None


def described() -> str:
    """Return what computes here, in words."""
    torch_version = torch.__version__.partition("+")[0]
    if _Here.device is None:
        return f"torch {torch_version}, CPU"
    import torch_npu  # noqa: PLC0415 — only here is it the real one

    return f"torch {torch_version}, torch_npu {torch_npu.__version__} on a virtual {_Here.chip}"


@contextmanager
def computing(*, on_npu: bool) -> Iterator[None]:
    """Make what is on the device compute, if that is where the code runs."""
    if not on_npu or _Here.device is None:
        yield
        return
    with _Here.device.computing(strict=True):
        yield


def launched(since: int = 0) -> tuple[str, ...]:
    """Return the kernels launched so far in this process, but for the first few."""
    if _Here.device is None:
        return ()
    return tuple(launch.kernel for launch in _Here.device.launches()[since:])


def forget_launches() -> None:
    """Start a new list of launches."""
    if _Here.device is not None:
        _Here.device.clear()


def to_device(value: object) -> object:
    """Return a value with its tensors on the device, strides and all."""
    if isinstance(value, torch.Tensor):
        return _tensor_on_device(value)
    if isinstance(value, torch.nn.Module):
        return _object_on_device(value)
    if isinstance(value, list):
        return [to_device(item) for item in value]
    if type(value) is tuple:
        return tuple(to_device(item) for item in value)
    if type(value) is dict:
        return {key: to_device(item) for key, item in value.items()}
    return value


def instance_to_device(instance: object) -> object:
    """Move the tensors of an object; a module keeps its parameters registered."""
    return _object_on_device(instance)


def _object_on_device(instance: object) -> object:
    parts = [instance]
    if isinstance(instance, torch.nn.Module):
        instance.to(_DEVICE)
        parts = list(instance.modules())
    for part in parts:
        for name, value in list(getattr(part, "__dict__", {}).items()):
            if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                part.__dict__[name] = _tensor_on_device(value)
    return instance


def _tensor_on_device(value: torch.Tensor) -> torch.Tensor:
    if on_device(value):
        return value
    if value.layout != torch.strided or 0 in value.stride():
        moved = value.detach().to(_DEVICE)
    else:
        moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_DEVICE)
        host_view(moved).copy_(value.detach())
    return moved.requires_grad_(value.requires_grad)


def kept(value: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor on the host, free of its history."""
    own = value.detach()
    return host_view(own).clone() if on_device(own) else own.clone()


def seed_device(seed: int) -> None:
    """Seed what draws on the device."""
    if _Here.device is not None:
        torch.npu.manual_seed(seed)  # type: ignore[attr-defined] # torch_npu adds it
