"""The device that code names and this machine lacks: ``x.cuda()``, ``ones(n, device="cuda")``.

Where nothing but the CPU is there, the one that is meant is the one that a call runs on: the CPU,
or torch's ``meta`` where a call is to show what stays on the host.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEVICE = re.compile(r"(cuda|npu)(:\d+)?")
_MENTIONS = re.compile(r"cuda|npu\b")


class _Meant(TorchFunctionMode):
    """Has every operator compute on the device that is meant by a name."""

    def __init__(self) -> None:
        super().__init__()
        self.device = "cpu"
        self.is_known = False
        self.is_entered = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the torch function returns
        given = {key: self._mean(value) for key, value in (kwargs or {}).items()}
        return func(*map(self._mean, args), **given)

    def _mean(self, value: object) -> object:
        if isinstance(value, (str, torch.device)) and _DEVICE.fullmatch(str(value)):
            return self.device
        return value

    def move(self, held: Any) -> Any:  # noqa: ANN401 - a tensor or a module
        """Return ``x.cuda()``, which is ``x`` itself where that is there already."""
        return held if self.device == "cpu" else held.to(self.device)


_MEANT = _Meant()


def stay_on_host() -> None:
    """Have ``x.cuda()`` and ``x.npu()`` of this process return what a call computes with."""
    _MEANT.is_known = True
    for kind in (torch.Tensor, torch.nn.Module):
        for name in ("cuda", "npu"):
            setattr(kind, name, lambda self, *_args, **_words: _MEANT.move(self))


def take_names_in(text: str) -> None:
    """Have the names of devices in a text be understood from now on, if they are to be at all.

    Each operator then costs some microseconds more, which only those pay who name one.
    """
    if _MEANT.is_known and not _MEANT.is_entered and _MENTIONS.search(text):
        _MEANT.is_entered = True
        _MEANT.__enter__()  # type: ignore[no-untyped-call] # torch does not annotate it


@contextmanager
def mean_device(device: str) -> Iterator[None]:
    """Have the names stand for another device for a while."""
    before, _MEANT.device = _MEANT.device, device
    try:
        yield
    finally:
        _MEANT.device = before
