"""Device tensors seen as host tensors: the same bytes, because device memory is host memory.

So they can be computed, and printed: torch prints below everything that could compute.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

DEVICE = "npu"
LOW_PRECISION = frozenset({torch.float16, torch.bfloat16})


def on_device(value: object) -> TypeGuard[torch.Tensor]:
    """Say whether a value is a tensor on the virtual device."""
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE


def names_device(value: object) -> bool:
    """Say whether a value is the virtual device itself."""
    return isinstance(value, torch.device) and value.type == DEVICE


def involves_device(values: Iterable[object]) -> bool:
    """Say whether arguments of an operator lie on a device or name one, at any depth."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if not value.is_cpu:
                return True
        elif isinstance(value, list | tuple):
            if involves_device(value):
                return True
        elif isinstance(value, torch.device):
            if value.type != "cpu":
                return True
        elif isinstance(value, torch.Generator) and value.device.type != "cpu":
            return True
    return False


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a host tensor over the memory of a device tensor: writing to one writes to both.

    It must not outlive the device tensor.
    """
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    if size == 0 or tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    memory = (ctypes.c_char * size).from_address(storage.data_ptr())
    data = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    view = torch.empty(0, dtype=tensor.dtype)
    return view.set_(data, tensor.storage_offset(), tensor.shape, tensor.stride())


def host_arguments(values: Any) -> Any:  # noqa: ANN401 - any nesting of arguments
    """Return arguments of a device operator for the host operator: views, and the host itself."""
    return _map_nested(_host_argument, values)


def _host_argument(value: object) -> object:
    if on_device(value):
        return host_view(value)
    if names_device(value):
        return torch.device("cpu")
    if isinstance(value, torch.Generator) and value.device.type == DEVICE:
        return None  # what the host draws instead starts from its state
    return value


def widen(values: Any, clones: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:  # noqa: ANN401 - any nesting
    """Return arguments with float32 in place of low precision; ``clones`` gets (own, widened)."""

    def widen_one(value: object) -> object:
        if isinstance(value, torch.Tensor) and value.dtype in LOW_PRECISION:
            clones.append((value, value.float()))
            return clones[-1][1]
        return torch.float32 if value in LOW_PRECISION else value

    return _map_nested(widen_one, values)


def _map_nested(change: Callable[[object], object], values: Any) -> Any:  # noqa: ANN401 - any nesting
    """Change what is in lists, tuples and dictionaries, in a tenth of the time of ``tree_map``."""
    if type(values) in {list, tuple}:
        return type(values)(_map_nested(change, value) for value in values)
    if type(values) is dict:
        return {key: _map_nested(change, value) for key, value in values.items()}
    return change(values)


def collect(values: object, keep: Callable[[object], bool]) -> list[Any]:
    """Return the values in nested sequences that ``keep`` accepts."""
    if isinstance(values, tuple | list):
        return [found for value in values for found in collect(value, keep)]
    return [values] if keep(values) else []


_INDENT = len("tensor(")


@contextmanager
def allow_printing() -> Iterator[None]:
    """Print what is on the device from the host."""
    module: Any = torch._tensor_str  # noqa: SLF001 - what every way of printing calls
    original = module._str  # noqa: SLF001 - as above

    def shown(tensor: torch.Tensor, *, tensor_contents: str | None = None) -> str:
        if on_device(tensor) and tensor_contents is None:
            tensor_contents = module._tensor_str(host_view(tensor), _INDENT)  # noqa: SLF001 - as above
        text: str = original(tensor, tensor_contents=tensor_contents)
        return text

    module._str = shown  # noqa: SLF001 - as above
    try:
        yield
    finally:
        module._str = original  # noqa: SLF001 - as above
