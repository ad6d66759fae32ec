"""The device that code names and this machine lacks: ``x.cuda()``, ``ones(n, device="cuda")``.

The one that is meant is the one that a call runs on: the CPU, the NPU, or torch's ``meta`` where a
call is to show what stays on the host.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Meant(TorchFunctionMode):
    """Has every operator compute on the device that is meant by a name."""

    def __init__(self) -> None:
        super().__init__()
        self.device = "cpu"
        self.names: tuple[str, ...] = ()
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
        if isinstance(value, (str, torch.device)):
            name, _, number = str(value).partition(":")
            if name in self.names and (not number or number.isdigit()):
                return self.device
        return value

    def move(self, held: Any) -> Any:  # noqa: ANN401 - a tensor or a module
        """Return ``x.cuda()``, which is ``x`` itself where that is there already."""
        return held if self.device == "cpu" else held.to(self.device)


_MEANT = _Meant()


def understand(*names: str) -> None:
    """Have ``x.cuda()`` of this process return what a call computes with, if that is a name."""
    _MEANT.names = names
    for kind in (torch.Tensor, torch.nn.Module):
        for name in names:
            setattr(kind, name, lambda self, *_args, **_words: _MEANT.move(self))


def take_names_in(text: str) -> None:
    """Have ``device="cuda"`` be understood from now on, if a text says so, and it is to be at all.

    Each operator then costs some microseconds more, which only those pay who name one.
    """
    if not _MEANT.is_entered and any(name in text for name in _MEANT.names):
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
