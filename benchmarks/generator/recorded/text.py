"""How the profiler writes shapes, types and stacks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from benchmarks.generator.recorded.record import Frame, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

_SITE = Path(torch.__file__).parents[1]
_LIBRARIES = "/usr/local/lib/python3.11"
_TYPES = {
    torch.float32: ("FLOAT", "float"), torch.float16: ("FLOAT16", "c10::Half"),
    torch.bfloat16: ("DT_BF16", "c10::BFloat16"), torch.float64: ("DOUBLE", "double"),
    torch.int64: ("INT64", "long int"), torch.int32: ("INT32", "int"),
    torch.uint8: ("UINT8", "unsigned char"), torch.bool: ("BOOL", "bool"),
}  # fmt: skip
"""As the device and as the host name them."""
_JOIN = ";\r\n"


def device_tensors(tensors: Sequence[Tensor]) -> tuple[str, str, str]:
    """Return shapes, types and formats."""
    if not tensors:
        return "N/A", "N/A", "N/A"
    types = (_TYPES[tensor.dtype][0] for tensor in tensors)
    return ";".join(map(_dims, tensors)), ";".join(types), ";".join(["FORMAT_ND"] * len(tensors))


def host_arguments(arguments: Sequence[Any]) -> tuple[str, str]:
    """Return shapes and types."""
    dims = (_dims(item) if isinstance(item, Tensor) else "" for item in arguments)
    return _JOIN.join(dims), _JOIN.join(map(_host_type, arguments))


def _dims(tensor: Tensor) -> str:
    return ",".join(map(str, tensor.shape))


def _host_type(argument: object) -> str:
    if isinstance(argument, Tensor):
        return _TYPES[argument.dtype][1]
    if isinstance(argument, (list, tuple)):
        tensors = any(isinstance(item, Tensor) for item in argument)
        return "TensorList" if tensors else "ScalarList"
    return "Scalar" if isinstance(argument, (bool, int, float, torch.dtype)) else "None"


def recorded_path(path: str | Path, program: Path) -> str:
    """Return where a file would have been on the machine with the NPU."""
    if Path(path).is_relative_to(program):
        return f"/workspace/{program.name}/{Path(path).relative_to(program).as_posix()}"
    if Path(path).is_relative_to(_SITE):
        return f"{_LIBRARIES}/site-packages/{Path(path).relative_to(_SITE).as_posix()}"
    return f"{_LIBRARIES}/{Path(path).name}"


def stack(frames: Sequence[Frame], program: Path) -> tuple[str, ...]:
    """Return a call stack as the profiler writes it."""
    return tuple(f"{recorded_path(f.path, program)}({f.line}): {f.function}" for f in frames)
