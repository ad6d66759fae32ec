"""Show tensors on the virtual device: torch prints below everything that could compute."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from npufix.rewriters.verification.virtual_npu.host_memory import host_view, on_device

if TYPE_CHECKING:
    from collections.abc import Iterator

_INDENT = len("tensor(")


@contextmanager
def printable() -> Iterator[None]:
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
