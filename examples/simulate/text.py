"""How the profiler writes shapes, types, stacks and times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from simulate.record import Frame, Tensor

RECORDED_ROOT = "/workspace/bert_like"
RECORDED_LIBRARIES = "/usr/local/lib/python3.11"

DEVICE_TYPES = {
    torch.float32: "FLOAT",
    torch.float16: "FLOAT16",
    torch.bfloat16: "DT_BF16",
    torch.int64: "INT64",
    torch.int32: "INT32",
    torch.uint8: "UINT8",
    torch.bool: "BOOL",
}
HOST_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "long int",
    torch.int32: "int",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
}
HOST_JOIN = ";\r\n"


def microseconds(nanoseconds: int) -> str:
    """Exact, as text: a float64 cannot hold nanoseconds since the epoch."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def dims(tensor: Tensor) -> str:
    return ",".join(map(str, tensor.shape))


def device_shapes(tensors: Sequence[Tensor]) -> str:
    """With literal quotes, as real dumps have them."""
    return '"' + ";".join(map(dims, tensors)) + '"' if tensors else "N/A"


def device_types(tensors: Sequence[Tensor]) -> str:
    return ";".join(DEVICE_TYPES[tensor.dtype] for tensor in tensors) or "N/A"


def device_formats(tensors: Sequence[Tensor]) -> str:
    return ";".join("FORMAT_ND" for _ in tensors) or "N/A"


def host_dims(arguments: Sequence[Any]) -> str:
    return HOST_JOIN.join(dims(item) if isinstance(item, Tensor) else "" for item in arguments)


def host_types(arguments: Sequence[Any]) -> str:
    return HOST_JOIN.join(map(host_type, arguments))


def host_type(argument: Any) -> str:
    if isinstance(argument, Tensor):
        return HOST_TYPES[argument.dtype]
    if isinstance(argument, (list, tuple)):
        tensors = any(isinstance(item, Tensor) for item in argument)
        return "TensorList" if tensors else "ScalarList"
    if isinstance(argument, (bool, int, float, torch.dtype)):
        return "Scalar"
    return "None"


class Recorded:
    """Where the files of this run would have been on the machine with the NPU."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, path: str) -> str:
        if Path(path).is_relative_to(self.root):
            return f"{RECORDED_ROOT}/{Path(path).relative_to(self.root).as_posix()}"
        for folder in ("site-packages", "dist-packages"):
            head, found, tail = path.rpartition(f"/{folder}/")
            if found:
                return f"{RECORDED_LIBRARIES}/site-packages/{tail}"
        return f"{RECORDED_LIBRARIES}/{Path(path).name}"

    def stack(self, frames: Sequence[Frame]) -> str:
        return HOST_JOIN.join(
            f"{self.path(frame.path)}({frame.line}): {frame.function}" for frame in frames
        )
