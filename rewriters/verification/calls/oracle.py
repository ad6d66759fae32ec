"""The original code in float64: what it means, free of the rounding of its own casts.

``x.float()``, ``.to(torch.float32)``, ``dtype=torch.bfloat16`` and the like stay in float64.
Random numbers are drawn in the original's own precision, because a float64 draw takes another
number of bits from the generator and would be another experiment. A number that float32 is held
against is rounded as it is there: what is equal to 0.6 in float32 is nowhere else.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOW = frozenset({torch.float32, torch.float16, torch.bfloat16})
_CASTS = frozenset({"float", "half", "bfloat16"})
_FLOAT_TYPES = ("FloatTensor", "HalfTensor", "BFloat16Tensor")
_RANDOM = frozenset({"rand", "randn", "rand_like", "randn_like", "bernoulli", "normal"})
_ORDERS = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})
_DROPOUTS = frozenset({"dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d"})


def _widen(value: object) -> object:
    if isinstance(value, torch.dtype):
        return torch.float64 if value in _LOW else value
    if isinstance(value, str) and value.endswith(_FLOAT_TYPES):
        return "torch.DoubleTensor"
    return value


class _Float64(TorchFunctionMode):
    def __init__(self, low: torch.dtype) -> None:
        super().__init__()
        self._low = low

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the torch function returns
        name = getattr(func, "__name__", "")
        keywords = kwargs or {}
        if name in _CASTS and len(args) == 1 and isinstance(args[0], torch.Tensor):
            return args[0].double()
        if name in _RANDOM and keywords.get("generator") is None:
            return self._draw(func, args, keywords)
        if name in _DROPOUTS:
            return self._drop(func, args, keywords)
        if name.strip("_") in _ORDERS and self._low == torch.float32:
            args = tuple(torch.tensor(a).float().item() if type(a) is float else a for a in args)
        return func(*(_widen(a) for a in args), **{key: _widen(v) for key, v in keywords.items()})

    def _narrow(self, value: object) -> object:
        if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
            return value.to(self._low)
        return value

    def _draw(
        self, func: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> object:
        narrow = {key: self._narrow(value) for key, value in keywords.items()}
        factory = getattr(func, "__name__", "") in {"rand", "randn"}
        if factory and narrow.get("dtype") is None:
            narrow["dtype"] = torch.float32
        drawn = func(*(self._narrow(a) for a in args), **narrow)
        return drawn.double() if drawn.dtype in _LOW else drawn

    def _drop(
        self, func: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> object:
        x = args[0] if args else keywords["input"]
        rest = {key: value for key, value in keywords.items() if key != "input"}
        kept = func(torch.ones_like(x, dtype=self._low), *args[1:], **rest)
        # The factor 1 / (1 - p) is rounded in the original's precision; undo that.
        scale = kept.max().double() if kept.numel() else kept.double()
        exact = torch.where(kept == kept.max(), _unround(scale), 0.0) if kept.numel() else kept
        return x.mul_(exact) if getattr(func, "__name__", "").endswith("_") else x * exact


def _unround(scale: torch.Tensor) -> torch.Tensor:
    """Return 1 / (1 - p) for the p in thousandths that rounds to ``scale``."""
    kept = torch.round(1000 / scale.clamp(min=1.0)) / 1000
    return torch.where(scale > 0, 1 / kept.clamp(min=1e-3), scale)


@contextmanager
def compute_in_float64(low: torch.dtype) -> Iterator[None]:
    """Run the block in float64 where it would have used ``low`` or float32."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64(low):
            yield
    finally:
        torch.set_default_dtype(previous)
